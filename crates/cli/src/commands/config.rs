//! `thalweg config`, one sub-command a file.

mod check;
mod show;

use anyhow::Result;
use clap::Subcommand;

use crate::options::Global;

/// Sub-commands for the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check configuration files; exit code 1 if one has a fault.
    ///
    /// Every fault has file, line and column. The table that `networks.table` names is checked, too.
    /// Needs no privilege.
    Check(check::Options),
    /// Show the configuration in force: every key with its value, and where that is from.
    ///
    /// The output is a configuration itself. A running agent has that of its start.
    Show,
}

/// Runs the sub-command.
pub fn run(global: &Global, what: &ConfigCommand) -> Result<()> {
    match what {
        ConfigCommand::Check(options) => check::run(global, options),
        ConfigCommand::Show => show::run(global),
    }
}
