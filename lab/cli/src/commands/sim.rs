//! `thalweg-lab sim`.

mod batch;
mod document;
mod report;
mod run;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;
use thalweg_sim::cc::Kind;
use thalweg_sim::{Scenario, cc};
use thalweg_terminal::{Format, kinds, output};

use super::scenarios;

/// Sub-commands for the simulator.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Simulate scenarios; exit code 5 if one of their expectations is not met.
    ///
    /// Every scenario runs with every controller and every seed.
    Run(run::Options),
    /// List scenarios.
    List {
        /// Directory of the files.
        #[arg(value_name = "DIR", default_value = "scenarios/sim")]
        directory: PathBuf,
    },
    /// List rate controllers; with --json, with their parameters and defaults.
    Controllers,
}

#[derive(Serialize)]
struct Controller {
    name: &'static str,
    description: &'static str,
    parameters: toml::Table,
}

/// Simulates datacenter networks.
pub fn run(format: &Format, what: &SimCommand) -> Result<()> {
    match what {
        SimCommand::Run(options) => run::run(format, options),
        SimCommand::List { directory } => {
            scenarios::list_scenarios(format, directory, kinds::Kind::SimScenario, |file| {
                Scenario::load(file).map(|scenario| (scenario.name, scenario.description))
            })
        }
        SimCommand::Controllers => list_controllers(format),
    }
}

fn list_controllers(format: &Format) -> Result<()> {
    let of_file = Controller {
        name: cc::LEARNED,
        description: "what a model file holds: learned:model=FILE",
        parameters: toml::Table::new(),
    };
    let all: Vec<Controller> = Kind::ALL
        .iter()
        .map(|kind| Controller {
            name: kind.name(),
            description: kind.description(),
            parameters: kind.spec().parameters(),
        })
        .chain([of_file])
        .collect();
    let row = |one: &Controller| vec![one.name.to_owned(), one.description.to_owned()];
    output::show_value(format, &all, || {
        let rows = all.iter().map(row).collect();
        output::table(&["Controller", "What it does"], &[], rows)
    })
}
