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
    let (seeds, agents) = if quick { (2, 100) } else { (8, 200) };
    let size = Size {
        agents,
        new: 20,
        kept,
    };
    let runs = runs(from, seeds, size);
    let of =
        |lie: usize, value: fn(&Outcome) -> f64| spread(runs.iter().map(|run| value(&run[lie])));
    println!(
        "A fleet of {agents} agents, a tenth of them hostile; {seeds} seeds, median (least to most, \
         # their seeds). Blind agents lose {} of the best arm's goodput over their first {} \
         connections; with the best arm of each network from the start {}.",
        of(0, |run| run.blind_lost),
        fleet::CONNECTIONS,
        of(0, |run| run.least_lost),
    );
    println!(
        "{:<10} {:>28} {:>28} {:>28} {:>28} {:>28}",
        "liars", "first", "first, all", "first, blind", "new / blind", "together / blind"
    );
    for (index, lie) in LIES.iter().enumerate() {
        println!(
            "{:<10} {:>28} {:>28} {:>28} {:>28} {:>28}",
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

/// Median, and the least and the most, each with the number of its seed, from 1 on.
fn spread(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<(f64, usize)> = values.zip(1..).collect();
    values.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (least, most) = (values[0], values[values.len() - 1]);
    let middle = values.len() / 2;
    let median = match values.len() % 2 {
        0 => (values[middle - 1].0 + values[middle].0) / 2.0,
        _ => values[middle].0,
    };
    format!(
        "{median:.3} ({:.3} #{} to {:.3} #{})",
        least.0, least.1, most.0, most.1
    )
}
