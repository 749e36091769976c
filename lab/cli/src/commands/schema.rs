//! `thalweg-lab schema`.

use anyhow::Result;
use clap::{Args, ValueEnum};
use thalweg_terminal::output;

/// The kind of file.
#[derive(Debug, Args)]
pub struct Options {
    /// The kind of file.
    kind: SchemaKind,
}

/// Kinds of files that have a schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SchemaKind {
    /// Scenarios of `thalweg-lab run`.
    Lab,
    /// Scenarios of `thalweg-lab sim run`.
    Sim,
}

/// Prints a schema: one of the files that a test generates from the readers' keys.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(options: &Options) -> Result<()> {
    output::print(match options.kind {
        SchemaKind::Lab => include_str!("../../../../schemas/lab.json"),
        SchemaKind::Sim => include_str!("../../../../schemas/sim.json"),
    })
}
