//! `thalweg config`, one sub-command a file.

mod check;
mod show;

use anyhow::Result;
use clap::Subcommand;

use crate::options::Global;

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Check configuration files; exit code 1 if one has a fault.
    ///
    /// Every fault is told with file, line and column. Needs no agent and no privilege.
    Check(check::Options),
    /// Show the configuration in force: every key with its value, and where that is from.
    ///
    /// What is printed is a configuration itself. A running agent has the configuration that it
    /// began with.
    Show,
}

/// Does it.
pub fn run(global: &Global, what: &What) -> Result<()> {
    match what {
        What::Check(options) => check::run(global, options),
        What::Show => show::run(global),
    }
}
