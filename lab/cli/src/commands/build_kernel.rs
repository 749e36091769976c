//! `thalweg-lab build-kernel`.

use std::io::IsTerminal as _;

use anyhow::Result;
use clap::Args;
use thalweg_terminal::{Format, output};

/// The kernel.
#[derive(Debug, Args)]
pub struct Options {
    /// Ticks a second: 100, 250 or 1000; 250 and 1000 for scenarios with that `hz`.
    #[arg(long, value_name = "N", default_value_t = thalweg_guest::ticks::DEFAULT)]
    hz: u32,
}

/// Builds the kernel for `--backend virtual`, unless that is done, and prints its path.
///
/// # Errors
/// The build fails; its last lines are in the error.
pub fn run(format: &Format, options: &Options) -> Result<()> {
    let program =
        thalweg_guest::virtual_kernel::build_virtual(options.hz, std::io::stderr().is_terminal())?;
    let document = serde_json::json!({ "kernel": program });
    output::show_value(format, &document, || format!("{}\n", program.display()))
}
