//! `thalweg policy apply FILE`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::options::Global;

/// Which policy, and how.
#[derive(Debug, Args)]
pub struct Options {
    /// The policy: a TOML file.
    file: PathBuf,
    /// Count what would match, and set nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Applies it.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    super::load(&options.file)?;
    let bytes = super::read(&options.file)?;
    let (place, history) = super::place(global)?;
    let file = std::path::absolute(&options.file).unwrap_or_else(|_| options.file.clone());
    let outcome = history.apply(&place, &bytes, &file, options.dry_run)?;
    super::tell(global, &outcome)
}
