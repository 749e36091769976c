//! A fleet in simulation: what new agents gain by what others know, and what liars can do.
//!
//! `cargo bench -p thalweg-learner --bench fleet` (`-- --quick`: fewer seeds; `-- --from 100`: other
//! worlds than those in which the rule's constants were chosen; `-- --kept 64`: of each network a sample
//! of so many reports, as an agent with little room has it).
#![forbid(unsafe_code)]
#![allow(dead_code, reason = "the modules belong to the bench `regret`")]

#[path = "regret/fleet.rs"]
mod fleet;
#[path = "regret/policy.rs"]
mod policy;
#[path = "regret/random.rs"]
mod random;

use fleet::{LIES, Outcome, Size, play};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let number = |option: &str| -> Option<u64> {
        let text = arguments.iter().skip_while(|it| *it != option).nth(1)?;
        Some(text.parse().expect("a whole number"))
    };
    let from = number("--from").unwrap_or(0);
    let kept = number("--kept").map_or(usize::MAX, |it| it as usize);
    // A fleet that is half as large, and fewer seeds.
    let (seeds, agents) = if quick { (2, 100) } else { (5, 200) };
    let size = Size {
        agents,
        new: 20,
        kept,
    };
    let runs = runs(from, seeds, size);
    let of =
        |lie: usize, value: fn(&Outcome) -> f64| spread(runs.iter().map(|run| value(&run[lie])));
    println!(
        "A fleet of {agents} agents, a tenth of them hostile; {seeds} seeds, median (least to most). \
         Blind agents lose {} of the best arm's goodput over their first {} connections; with the best \
         arm of each network from the start {}.",
        of(0, |run| run.blind_lost),
        fleet::CONNECTIONS,
        of(0, |run| run.least_lost),
    );
    println!(
        "{:<10} {:>22} {:>22} {:>22} {:>22} {:>22}",
        "liars", "first", "first, all", "first, blind", "new / blind", "together / blind"
    );
    for (index, lie) in LIES.iter().enumerate() {
        println!(
            "{:<10} {:>22} {:>22} {:>22} {:>22} {:>22}",
            format!("{lie:?}"),
            of(index, |run| run.first),
            of(index, |run| run.first_all),
            of(index, |run| run.first_blind),
            of(index, |run| run.new),
            of(index, |run| run.together),
        );
    }
}

/// Plays so many seeds from the first one, on all processors.
fn runs(from: u64, seeds: u64, size: Size) -> Vec<Vec<Outcome>> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let of_thread = |first: u64| -> Vec<(u64, Vec<Outcome>)> {
        let seeds = (first..seeds).step_by(threads as usize);
        seeds
            .map(|seed| (seed, play(from + seed, size, &LIES)))
            .collect()
    };
    let mut runs: Vec<(u64, Vec<Outcome>)> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || of_thread(first)))
            .collect();
        let ended = started.into_iter().filter_map(|thread| thread.join().ok());
        ended.flatten().collect()
    });
    runs.sort_by_key(|&(seed, _)| seed);
    runs.into_iter().map(|(_, outcomes)| outcomes).collect()
}

/// Median, and the least and the most.
fn spread(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (least, most) = (values[0], values[values.len() - 1]);
    let middle = values.len() / 2;
    let median = match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    };
    format!("{median:.3} ({least:.3} to {most:.3})")
}
