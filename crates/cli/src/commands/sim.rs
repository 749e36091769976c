//! `thalweg sim`.

mod batch;
mod document;
mod published;
mod report;
mod run;
mod table;

use anyhow::Result;
use clap::Subcommand;

use crate::options::Global;

/// What to do with the simulator.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Simulate scenarios; exit code 5 if one of their expectations is not met.
    ///
    /// Every scenario is run with every controller and every seed. The same scenario, controller
    /// and seed give the same figures on any number of threads.
    Run(run::Options),
    /// Repeat the published tables of rate controllers and write ours beside them.
    Table(table::Options),
}

/// Simulates datacenter networks.
pub fn run(global: &Global, what: &What) -> Result<()> {
    match what {
        What::Run(options) => run::run(global, options),
        What::Table(options) => table::run(global, options),
    }
}
