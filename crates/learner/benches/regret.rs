//! Regret of exploration rules: the evidence for the rule that `thalweg_learner` implements.
//!
//! `cargo bench -p thalweg-learner --bench regret` first holds bad learners and the shipped one to
//! the bounds of worlds like servers'. Then it plays every rule in every scenario over the same
//! seeded worlds (`-- --quick`: few seeds). It prints a table per scenario and a summary. Losses are shares of the best arm's
//! expected goodput, averaged over connections, then over seeds.
#![forbid(unsafe_code)]

#[path = "regret/long.rs"]
mod long;
#[path = "regret/play.rs"]
mod play;
#[path = "regret/policy.rs"]
mod policy;
#[path = "regret/random.rs"]
mod random;
#[path = "regret/serve.rs"]
mod serve;
#[path = "regret/server.rs"]
mod server;
#[path = "regret/world.rs"]
mod world;

use play::{Run, mean, play};
use policy::{ENTRIES, GATE};
use serve::{broken, outcome, worst_twentieth};
use server::SERVERS;
use world::{EARLY, HORIZON, SCENARIOS, Scenario};

/// Worlds for each scenario.
const SEEDS: u64 = 400;
/// Worlds like servers' for each of theirs.
const SERVER_SEEDS: u64 = 200;
/// The same with `--quick`.
const QUICK_SEEDS: u64 = 20;

/// One row's means over the scenarios.
#[derive(Clone, Default)]
struct Summary {
    early_loss: f64,
    loss: f64,
    loss_bits: f64,
    below_default: f64,
    worst: f64,
    /// Most of any scenario: mean over its seeds, and over the worst 5 % of them.
    worst_mean: f64,
    worst_twentieth: f64,
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (seeds, server_seeds) = if quick {
        (QUICK_SEEDS, QUICK_SEEDS)
    } else {
        (SEEDS, SERVER_SEEDS)
    };
    servers(server_seeds);
    scenarios(seeds);
}

/// The worlds like servers'.
fn servers(seeds: u64) {
    println!(
        "Worlds like servers', {seeds} seeds (a tenth where there are 10,000 hosts). Goodput lost \
         against the best arm and the default (mean, worst 5 % of seeds);\n\
         p99 of the time as a multiple of the default's; lost by neighbours; on another arm than \
         the best; share of the best arm's gain; hosts whose first connection is on the best arm; \
         bounds that it breaks."
    );
    for server in SERVERS {
        println!(
            "\n{}\n{:<16} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            server.name,
            "rule",
            "best",
            "default",
            "worst",
            "p99",
            "harm",
            "wrong",
            "gained",
            "first"
        );
        for (name, build) in GATE {
            let outcome = outcome(server, *build, seeds);
            println!(
                "{name:<16} {:>7.2}% {:>7.2}% {:>7.2}% {:>8.3} {:>7.2}% {:>7.2}% {:>7.1}% {:>7.1}%  {}",
                100.0 * outcome.best,
                100.0 * outcome.mean,
                100.0 * outcome.worst,
                outcome.p99,
                100.0 * outcome.harm,
                100.0 * outcome.wrong,
                100.0 * outcome.gained,
                100.0 * outcome.first,
                broken(server, &outcome).join(" ")
            );
        }
    }
    println!();
}

/// The scenarios of one host.
fn scenarios(seeds: u64) {
    println!(
        "Share of the best arm's goodput lost, %: mean ± standard error over {seeds} seeds \
         (worst seed).\n\"on best\": connections within 1 % of the best, after the first \
         change if there is one.\n\"below default\": goodput given away against arm 0 alone, \
         first {EARLY} connections."
    );
    let mut summaries = vec![Summary::default(); ENTRIES.len()];
    for scenario in SCENARIOS {
        print_header(scenario);
        for (entry, summary) in ENTRIES.iter().zip(&mut summaries) {
            let runs: Vec<Run> = (0..seeds).map(|seed| play(scenario, entry, seed)).collect();
            print_row(entry.name, &runs);
            summary.add(&runs);
        }
    }
    print_summary(&summaries);
}

fn print_header(scenario: &Scenario) {
    println!(
        "\n{} ({} arms, spread {} bits)\n{:<22} {:>20} {:>20} {:>6} {:>8} {:>20} {:>9}",
        scenario.name,
        scenario.arms(),
        scenario.spread_bits,
        "rule",
        format!("first {EARLY}"),
        format!("all {HORIZON}"),
        "bits",
        "on best",
        "below default",
        "worst 5 %"
    );
}

fn print_row(name: &str, runs: &[Run]) {
    println!(
        "{name:<22} {:>20} {:>20} {:>6.3} {:>7.1}% {:>20} {:>8.2}%",
        spread(runs.iter().map(|run| run.early_loss)),
        spread(runs.iter().map(|run| run.loss)),
        mean(runs.iter().map(|run| run.loss_bits)),
        100.0 * mean(runs.iter().map(|run| run.on_best)),
        spread(runs.iter().map(|run| run.early_below_default)),
        100.0 * worst_twentieth(runs.iter().map(|run| run.early_below_default).collect()),
    );
}

fn print_summary(summaries: &[Summary]) {
    println!(
        "\nmean over the {} scenarios\n{:<22} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9} {:>11}",
        SCENARIOS.len(),
        "rule",
        format!("first {EARLY}"),
        format!("all {HORIZON}"),
        "bits",
        "default",
        "worst",
        "5 %",
        "seed",
        "propensity"
    );
    for (entry, summary) in ENTRIES.iter().zip(summaries) {
        let scenarios = SCENARIOS.len() as f64;
        println!(
            "{:<22} {:>8.2}% {:>8.2}% {:>7.3} {:>8.2}% {:>8.2}% {:>8.2}% {:>8.2}% {:>11}",
            entry.name,
            100.0 * summary.early_loss / scenarios,
            100.0 * summary.loss / scenarios,
            summary.loss_bits / scenarios,
            100.0 * summary.below_default / scenarios,
            100.0 * summary.worst_mean,
            100.0 * summary.worst_twentieth,
            100.0 * summary.worst,
            entry.propensity,
        );
    }
    println!(
        "\"default\": lost against the default, first {EARLY} connections, gains left out; then \
         the most of any scenario:\nmean over seeds, mean over the worst 5 % of seeds, worst seed."
    );
}

impl Summary {
    fn add(&mut self, runs: &[Run]) {
        self.early_loss += mean(runs.iter().map(|run| run.early_loss));
        self.loss += mean(runs.iter().map(|run| run.loss));
        self.loss_bits += mean(runs.iter().map(|run| run.loss_bits));
        let losses = runs.iter().map(|run| run.early_below_default);
        self.below_default += mean(losses.clone().map(|loss| loss.max(0.0)));
        self.worst = losses.clone().fold(self.worst, f64::max);
        self.worst_mean = self.worst_mean.max(mean(losses.clone()));
        self.worst_twentieth = self.worst_twentieth.max(worst_twentieth(losses.collect()));
    }
}

/// `mean ± standard error (highest)` in percent.
fn spread(values: impl ExactSizeIterator<Item = f64> + Clone) -> String {
    let count = values.len() as f64;
    let mean = mean(values.clone());
    let variance = values
        .clone()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (count - 1.0);
    let worst = values.fold(0.0, f64::max);
    format!(
        "{:.2} ± {:.2} ({:.1})",
        100.0 * mean,
        100.0 * (variance / count).sqrt(),
        100.0 * worst
    )
}
