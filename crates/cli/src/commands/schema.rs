//! `thalweg schema`.

use anyhow::Result;
use clap::{Args, ValueEnum};

use thalweg_terminal::{Failure, output};

/// The kind of file.
#[derive(Debug, Args)]
pub struct Options {
    /// The kind of file.
    kind: Kind,
}

/// Kinds of files that have a schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// The agent's configuration, /etc/thalweg/thalweg.toml.
    Configuration,
    /// Files of `thalweg policy`.
    Policy,
    /// Moved to `thalweg-lab`.
    #[value(hide = true)]
    Lab,
    /// Moved to `thalweg-lab`.
    #[value(hide = true)]
    Sim,
}

/// Prints a schema: one of the files that a test generates from the readers' keys.
pub fn run(options: &Options) -> Result<()> {
    output::print(match options.kind {
        Kind::Configuration => include_str!("../../../../schemas/configuration.json"),
        Kind::Policy => include_str!("../../../../schemas/policy.json"),
        Kind::Lab => return report_moved("lab"),
        Kind::Sim => return report_moved("sim"),
    })
}

fn report_moved(kind: &str) -> Result<()> {
    let message = format!("`thalweg schema {kind}` is now `thalweg-lab schema {kind}`");
    Err(Failure::Usage(message).into())
}
