//! Regret of exploration rules: the evidence for the rule that `thalweg_learner` implements.
//!
//! `cargo bench -p thalweg-learner --bench regret` plays every rule in every scenario over the same
//! seeded worlds. It prints a table per scenario and a summary. Losses are shares of the best arm's
//! expected goodput, averaged over connections, then over seeds.
#![forbid(unsafe_code)]

#[path = "regret/play.rs"]
mod play;
#[path = "regret/policy.rs"]
mod policy;
#[path = "regret/random.rs"]
mod random;
#[path = "regret/world.rs"]
mod world;

use play::{Run, mean, play};
use policy::ENTRIES;
use world::{EARLY, HORIZON, SCENARIOS, Scenario};

/// Worlds for each scenario.
const SEEDS: u64 = 400;

/// One row's means over the scenarios.
#[derive(Clone, Default)]
struct Summary {
    early_loss: f64,
    loss: f64,
    loss_bits: f64,
    below_default: f64,
    worst: f64,
}

fn main() {
    println!(
        "Share of the best arm's goodput lost, %: mean ± standard error over {SEEDS} seeds \
         (worst seed).\n\"on best\": connections within 1 % of the best, after the first \
         change if there is one.\n\"below default\": goodput given away against arm 0 alone, \
         first {EARLY} connections."
    );
    let mut summaries = vec![Summary::default(); ENTRIES.len()];
    for scenario in SCENARIOS {
        print_header(scenario);
        for (entry, summary) in ENTRIES.iter().zip(&mut summaries) {
            let runs: Vec<Run> = (0..SEEDS).map(|seed| play(scenario, entry, seed)).collect();
            print_row(entry.name, &runs);
            summary.add(&runs);
        }
    }
    print_summary(&summaries);
}

fn print_header(scenario: &Scenario) {
    println!(
        "\n{} ({} arms, spread {} bits)\n{:<22} {:>20} {:>20} {:>6} {:>8} {:>20}",
        scenario.name,
        scenario.arms(),
        scenario.spread_bits,
        "rule",
        format!("first {EARLY}"),
        format!("all {HORIZON}"),
        "bits",
        "on best",
        "below default"
    );
}

fn print_row(name: &str, runs: &[Run]) {
    println!(
        "{name:<22} {:>20} {:>20} {:>6.3} {:>7.1}% {:>20}",
        spread(runs.iter().map(|run| run.early_loss)),
        spread(runs.iter().map(|run| run.loss)),
        mean(runs.iter().map(|run| run.loss_bits)),
        100.0 * mean(runs.iter().map(|run| run.on_best)),
        spread(runs.iter().map(|run| run.early_below_default)),
    );
}

fn print_summary(summaries: &[Summary]) {
    println!(
        "\nmean over the {} scenarios\n{:<22} {:>9} {:>9} {:>7} {:>14} {:>14} {:>11}",
        SCENARIOS.len(),
        "rule",
        format!("first {EARLY}"),
        format!("all {HORIZON}"),
        "bits",
        "below default",
        "worst default",
        "propensity"
    );
    for (entry, summary) in ENTRIES.iter().zip(summaries) {
        let scenarios = SCENARIOS.len() as f64;
        println!(
            "{:<22} {:>8.2}% {:>8.2}% {:>7.3} {:>13.2}% {:>13.2}% {:>11}",
            entry.name,
            100.0 * summary.early_loss / scenarios,
            100.0 * summary.loss / scenarios,
            summary.loss_bits / scenarios,
            100.0 * summary.below_default / scenarios,
            100.0 * summary.worst,
            entry.propensity,
        );
    }
    println!("\"worst default\": the most that any seed of any scenario gave away.");
}

impl Summary {
    fn add(&mut self, runs: &[Run]) {
        self.early_loss += mean(runs.iter().map(|run| run.early_loss));
        self.loss += mean(runs.iter().map(|run| run.loss));
        self.loss_bits += mean(runs.iter().map(|run| run.loss_bits));
        self.below_default += mean(runs.iter().map(|run| run.early_below_default));
        self.worst = runs
            .iter()
            .map(|run| run.early_below_default)
            .fold(self.worst, f64::max);
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
