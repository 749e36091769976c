//! `thalweg-lab model`, one sub-command a file.

mod check;
mod show;

use anyhow::Result;
use clap::Subcommand;

use thalweg_terminal::Format;

/// Sub-commands for model files.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Show what a model file holds, and where it comes from.
    Show(show::Options),
    /// Check model files; exit code 1 if one is no model.
    Check(check::Options),
}

/// Runs the sub-command.
pub fn run(format: &Format, what: &ModelCommand) -> Result<()> {
    match what {
        ModelCommand::Show(options) => show::run(format, options),
        ModelCommand::Check(options) => check::run(format, options),
    }
}
