//! `thalweg policy apply FILE`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use thalweg_control::policy::{ApplyOptions, Report};

use crate::client::check_pins_last;
use crate::options::Global;

/// Options of `policy apply`.
#[derive(Debug, Args)]
pub struct Options {
    /// The policy: a TOML file.
    file: PathBuf,
    /// Count what would match, and set nothing.
    #[arg(long)]
    dry_run: bool,
    /// Reach open connections, too. Needs Linux 5.15 with /sys/kernel/btf/vmlinux; elsewhere
    /// nothing is changed.
    #[arg(long)]
    existing: bool,
}

/// Applies it.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let (bytes, compiled, warnings) = super::compile_file(&options.file)?;
    let (place, history) = super::own_place(global)?;
    check_pins_last(&place.pin)?;
    let file = std::path::absolute(&options.file).unwrap_or_else(|_| options.file.clone());
    let how = ApplyOptions {
        dry_run: options.dry_run,
        existing: options.existing,
    };
    let mut outcome = history.apply(&place, &bytes, compiled, &file, how)?;
    outcome.applied.notes.extend(warnings);
    let report = match options.existing {
        true => Report::read_counters(&place.pin, &history)?,
        false => None,
    };
    super::show_outcome(global, &outcome, report.as_ref())
}
