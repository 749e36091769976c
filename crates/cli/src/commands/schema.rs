//! `thalweg schema`.

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::output;

/// The kind of file.
#[derive(Debug, Args)]
pub struct Options {
    /// The kind of file.
    kind: Kind,
}

/// Kinds of files that have a schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Of the agent, /etc/thalweg/thalweg.toml.
    Configuration,
    /// Of `thalweg policy`.
    Policy,
    /// Scenarios of `thalweg lab run`.
    Lab,
    /// Scenarios of `thalweg sim run`.
    Sim,
}

/// Prints a schema: one of the files that a test generates from the readers' keys.
pub fn run(options: &Options) -> Result<()> {
    output::print(match options.kind {
        Kind::Configuration => include_str!("../../../../schemas/configuration.json"),
        Kind::Policy => include_str!("../../../../schemas/policy.json"),
        Kind::Lab => include_str!("../../../../schemas/lab.json"),
        Kind::Sim => include_str!("../../../../schemas/sim.json"),
    })
}
