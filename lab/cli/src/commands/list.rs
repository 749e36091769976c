//! `thalweg-lab list`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use thalweg_lab::scenario::Scenario;
use thalweg_terminal::Format;
use thalweg_terminal::kinds::Kind;

use super::scenarios;

/// The scenarios.
#[derive(Debug, Args)]
pub struct Options {
    /// Directory of the files.
    #[arg(value_name = "DIR", default_value = "scenarios/lab")]
    directory: PathBuf,
}

/// Lists scenarios.
///
/// # Errors
/// The directory cannot be read.
pub fn run(format: &Format, options: &Options) -> Result<()> {
    scenarios::list_scenarios(format, &options.directory, Kind::LabScenario, |file| {
        Scenario::load(file).map(|scenario| (scenario.name, scenario.description))
    })
}
