//! Measures one scenario without an agent and prints the tables:
//! `cargo run --example measure -- scenarios/lab/loss-5.toml [CONNECTIONS]`.

use thalweg_lab::{Mode, Options, run_scenarios, table};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let scenario = arguments.next().ok_or("which scenario file?")?;
    let connections = arguments.next().map(|count| count.parse()).transpose()?;
    let outcome = run_scenarios(&Options {
        scenarios: vec![scenario.into()],
        modes: vec![Mode::Baseline, Mode::EveryFixed],
        connections,
        ..Options::default()
    })?;
    for scenario in &outcome.scenarios {
        println!(
            "{}\nreport: {}",
            table::scenario_text(scenario),
            scenario.report.display()
        );
    }
    Ok(())
}
