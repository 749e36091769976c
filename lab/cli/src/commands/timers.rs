//! `thalweg-lab timers`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

/// Where timers are measured.
#[derive(Debug, Args)]
pub struct Options {
    /// On the kernel of `thalweg-lab stack`.
    #[arg(long)]
    stack: bool,
    /// With real-time priority on the machine.
    #[arg(long)]
    real_time: bool,
    /// How much before its timers are due the kernel of a stack wakes, µs. Default: as always.
    #[arg(long, value_name = "US")]
    early: Option<u32>,
    /// Directory of the result. Default: none, the result is printed.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Measures how late timers are.
///
/// # Errors
/// The worker fails, or its result cannot be written.
pub fn run(options: &Options) -> Result<()> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    Ok(thalweg_lab::timers::measure_timers(
        &thalweg_lab::timers::Options {
            stack: options.stack,
            real_time: options.real_time,
            early_us: options.early,
            out: options.out.clone(),
            program,
        },
    )?)
}
