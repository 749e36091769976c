//! `thalweg-lab run`.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use thalweg_lab::units::Size;
use thalweg_lab::{Backend, KernelOptions, Mode};
use thalweg_terminal::kinds::{self, Kind};
use thalweg_terminal::{Failure, Format, output, whole_number};

/// The scenarios, and how they run.
#[derive(Debug, Args)]
pub struct Options {
    /// Scenario files.
    #[arg(required = true, value_name = "FILE")]
    scenarios: Vec<PathBuf>,
    /// Modes to measure: baseline, fixed (each congestion control), fixed:NAME, random, classic,
    /// thalweg, gain, null (an agent that keeps the default: the run fails unless it misses a bound),
    /// policy:NAME (a policy of the scenario); repeatable. Default: baseline, fixed, classic,
    /// thalweg.
    #[arg(long, value_name = "MODE")]
    mode: Vec<Mode>,
    /// Connections a mode. Default: as the scenario says.
    #[arg(long, value_name = "N", value_parser = whole_number(1..=u32::MAX))]
    connections: Option<u32>,
    /// Modes without an agent run in every Nth round only.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_number(1..=u32::MAX))]
    reference_every: u32,
    /// Directory of the report. Default: a new one below lab-results.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The kernel: host (this machine's, needs root), link (the same, over an emulated path), uml
    /// (user-mode Linux), virtual (user-mode Linux in virtual time), qemu (a distribution's in
    /// virtual time, see `thalweg-lab kernels`), auto (host, link or uml, by what the scenarios need).
    #[arg(long, value_name = "NAME", default_value_t = Backend::Auto)]
    backend: Backend,
    /// With qemu: a name of `thalweg-lab kernels list`, or a file; default: the newest of the list. For
    /// ends that are stacks: a user-mode kernel, as of `thalweg-lab build-kernel`; default: that of the
    /// package user-mode-linux.
    #[arg(long, value_name = "NAME|FILE")]
    kernel: Option<OsString>,
    /// With qemu: an instruction takes 2^N ns. 0 is 10⁹ instructions a second.
    #[arg(long, value_name = "N", value_parser = whole_number::<u8>(0..=10))]
    shift: Option<u8>,
    /// Memory of a guest (uml, virtual, qemu, stack), 128mib to 4000mb. Default: the largest of the
    /// scenarios, or 1 GiB.
    #[arg(long, value_name = "SIZE", alias = "uml-mem")]
    memory: Option<Size>,
    /// Seconds that a guest may take to boot. Default: 300.
    #[arg(long, value_name = "SECONDS", value_parser = whole_number::<u64>(1..=3600))]
    boot_limit: Option<u64>,
}

/// Runs scenarios.
///
/// # Errors
/// A scenario that is not valid, a missing precondition, a step that failed; an expectation that was
/// not met.
pub fn run(format: &Format, run: &Options) -> Result<()> {
    let defaults = thalweg_lab::Options::default();
    if run.shift.is_some() && run.backend != Backend::Qemu {
        let why = format!("--shift goes with --backend qemu, found {}", run.backend);
        return Err(Failure::Usage(why).into());
    }
    for file in &run.scenarios {
        kinds::expect_kind(file, Kind::LabScenario)?;
    }
    let settings = thalweg_lab::Options {
        scenarios: run.scenarios.clone(),
        modes: if run.mode.is_empty() {
            defaults.modes.clone()
        } else {
            run.mode.clone()
        },
        connections: run.connections,
        reference_every: run.reference_every,
        out: run.out.clone(),
        program: std::env::current_exe().context("cannot tell where this program is")?,
        progress: std::io::stderr().is_terminal(),
        kernel: KernelOptions {
            backend: run.backend,
            memory: run.memory,
            name: run.kernel.clone(),
            shift: run.shift.unwrap_or_default(),
            boot_limit_s: run.boot_limit,
        },
        ..defaults
    };
    let finished = thalweg_lab::backend::run_on_backend(&settings)?;
    output::show_value(format, &finished.document, || finished.text)?;
    if finished.passed {
        Ok(())
    } else {
        Err(Failure::with_code(5, "an expectation was not met").into())
    }
}
