//! `thalweg policy apply FILE`.

use std::path::PathBuf;

use anyhow::{Context, Result};
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
    let bytes = std::fs::read(&options.file)
        .with_context(|| format!("reading {}", options.file.display()))?;
    let (place, history) = super::place(global)?;
    let file = std::path::absolute(&options.file).unwrap_or_else(|_| options.file.clone());
    let outcome = history.apply(&place, &bytes, &file, options.dry_run)?;
    super::tell(global, &outcome)
}
