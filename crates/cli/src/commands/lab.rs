//! `thalweg lab`.

mod kernels;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use thalweg_lab::measure::Measure;
use thalweg_lab::scenario::Scenario;
use thalweg_lab::units::Size;
use thalweg_lab::worker::Job;
use thalweg_lab::{Backend, KernelOptions, Mode, compare};

use crate::failure::Failure;
use crate::kinds::{self, Kind};
use crate::options::{Global, whole};
use crate::output;

/// Sub-commands for the laboratory.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    command: Lab,
}

#[derive(Debug, Subcommand)]
enum Lab {
    /// Run scenarios; exit code 5 if one of their expectations is not met.
    ///
    /// The machine's connections and its agent are not touched. Needs iproute2 and iperf3, and root
    /// or one of Debian's packages user-mode-linux and qemu-system-x86.
    Run(Run),
    /// List scenarios.
    List {
        /// Directory of the files.
        #[arg(value_name = "DIR", default_value = "scenarios/lab")]
        directory: PathBuf,
    },
    /// Build the kernel for `--backend virtual`, unless that is done, and print its path.
    ///
    /// From Debian's package linux-source-6.1, in some ten minutes on two CPUs; needs 2 GB of disk,
    /// and no privilege. It is kept below $XDG_CACHE_HOME/thalweg.
    BuildKernel {
        /// Ticks a second: 100, 250 or 1000; 250 and 1000 for scenarios with that `hz`.
        #[arg(long, value_name = "N", default_value_t = thalweg_guest::ticks::DEFAULT)]
        hz: u32,
    },
    /// Stock kernels of distributions, for `--backend qemu`: list, add, remove.
    #[command(subcommand)]
    Kernels(kernels::Kernels),
    /// The first process in a kernel of its own, and the run there.
    #[command(hide = true)]
    Guest {
        /// The directory with the job.
        #[arg(value_name = "DIR")]
        work: PathBuf,
    },
    /// Compare two runs; exit code 6 if B is worse than A.
    ///
    /// A and B are results.json files, directories that hold one, or directories of such
    /// directories. Medians are compared, with a bootstrap interval of their ratio; B is better or
    /// worse where the whole interval says so.
    Compare(Compare),
    /// Measure how late timers are, for a page of `python -m thalweg.results`.
    #[command(hide = true)]
    Timers {
        /// On the kernel of `thalweg stack`.
        #[arg(long)]
        stack: bool,
        /// With real-time priority on the machine.
        #[arg(long)]
        real_time: bool,
        /// How much before its timers are due the kernel of a stack wakes, µs. Default: as ever.
        #[arg(long, value_name = "US")]
        early: Option<u32>,
        /// Directory of the result. Default: none, the result is printed.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Make the traffic of a scenario; `run` starts it inside its hosts.
    #[command(hide = true, subcommand)]
    Worker(Worker),
}

#[derive(Debug, Subcommand)]
enum Worker {
    /// Receive on an address until killed.
    Serve {
        /// Address and port.
        address: std::net::SocketAddr,
    },
    /// Send what the plan on standard input says.
    Send {
        /// Where the result goes.
        result: PathBuf,
    },
    /// Ask a web server for the pages of the plan on standard input.
    Fetch {
        /// Where the result goes.
        result: PathBuf,
    },
    /// Run the programs that are ordered on standard input, one after the other.
    Turns,
    /// Measure how late timers are.
    Timers,
}

#[derive(Debug, Args)]
struct Compare {
    /// The run to compare with.
    a: PathBuf,
    /// The run that may be better or worse.
    b: PathBuf,
    /// Difference to ignore: 0.05 is 5 % of A's median, or of shares 5 percentage points.
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    tolerance: f64,
    /// Confidence of the intervals.
    #[arg(long, value_name = "PART", default_value_t = 0.95)]
    confidence: f64,
    /// Resamples of the bootstrap.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    resamples: u32,
    /// Seed of the bootstrap.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only this measure (goodput, retransmission-share, rtt, srtt, queue-delay, fct); repeatable.
    #[arg(long, value_name = "MEASURE")]
    measure: Vec<Measure>,
    /// Only this mode; repeatable.
    #[arg(long, value_name = "MODE")]
    mode: Vec<Mode>,
}

#[derive(Debug, Args)]
struct Run {
    /// Scenario files.
    #[arg(required = true, value_name = "FILE")]
    scenarios: Vec<PathBuf>,
    /// What to measure: baseline, fixed (each congestion control), fixed:NAME, random, classic,
    /// thalweg, gain, null (an agent that keeps the default: the run fails unless it misses a bound),
    /// policy:NAME (a policy of the scenario); repeatable. Default: baseline, fixed, classic,
    /// thalweg.
    #[arg(long, value_name = "MODE")]
    mode: Vec<Mode>,
    /// Connections a mode. Default: as the scenario says.
    #[arg(long, value_name = "N", value_parser = whole(1..=u32::MAX))]
    connections: Option<u32>,
    /// Modes without an agent run in every Nth round only.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1..=u32::MAX))]
    reference_every: u32,
    /// Directory of the report. Default: a new one below lab-results.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The kernel: host (this machine's, needs root), link (the same, over an emulated path), uml
    /// (user-mode Linux), virtual (user-mode Linux in virtual time), qemu (a distribution's in
    /// virtual time, see `lab kernels`), auto (host, link or uml, by what the scenarios need).
    #[arg(long, value_name = "NAME", default_value_t = Backend::Auto)]
    backend: Backend,
    /// With qemu: a name of `lab kernels list`, or a file; default: the newest of the list. For
    /// ends that are stacks: a user-mode kernel, as of `lab build-kernel`; default: that of the
    /// package user-mode-linux.
    #[arg(long, value_name = "NAME|FILE")]
    kernel: Option<OsString>,
    /// With qemu: an instruction takes 2^N ns. 0 is 10⁹ instructions a second.
    #[arg(long, value_name = "N", value_parser = whole::<u8>(0..=10))]
    shift: Option<u8>,
    /// Memory of a guest (uml, virtual, qemu, stack), 128mib to 4000mb. Default: the largest of the
    /// scenarios, or 1 GiB.
    #[arg(long, value_name = "SIZE", alias = "uml-mem")]
    memory: Option<Size>,
    /// Seconds that a guest may take to boot. Default: 300.
    #[arg(long, value_name = "SECONDS", value_parser = whole::<u64>(1..=3600))]
    boot_limit: Option<u64>,
}

/// Measures congestion controls on this machine's own TCP stack.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    match &options.command {
        Lab::Run(run) => run_scenarios(global, run),
        Lab::List { directory } => {
            super::scenarios::list(global, directory, Kind::LabScenario, |file| {
                Scenario::load(file).map(|scenario| (scenario.name, scenario.description))
            })
        }
        Lab::BuildKernel { hz } => build_kernel(global, *hz),
        Lab::Kernels(what) => kernels::run(global, what),
        Lab::Compare(compare) => compare_runs(global, compare),
        Lab::Timers {
            stack,
            real_time,
            early,
            out,
        } => Ok(thalweg_lab::timers::measure(
            &thalweg_lab::timers::Options {
                stack: *stack,
                real_time: *real_time,
                early_us: *early,
                out: out.clone(),
                program: std::env::current_exe().context("cannot tell where this program is")?,
            },
        )?),
        Lab::Worker(job) => Ok(thalweg_lab::worker::work(&match job {
            Worker::Serve { address } => Job::Serve { address: *address },
            Worker::Send { result } => Job::Send {
                result: result.clone(),
            },
            Worker::Fetch { result } => Job::Fetch {
                result: result.clone(),
            },
            Worker::Turns => Job::Turns,
            Worker::Timers => Job::Timers,
        })?),
        Lab::Guest { work } => Ok(thalweg_lab::backend::run_inside(work)?),
    }
}

fn compare_runs(global: &Global, options: &Compare) -> Result<()> {
    let settings = compare::Options {
        tolerance: options.tolerance,
        confidence: options.confidence,
        resamples: options.resamples,
        seed: options.seed,
        measures: options.measure.clone(),
        modes: options.mode.iter().map(Mode::to_string).collect(),
    };
    let comparison = compare::compare(&options.a, &options.b, &settings)?;
    output::show(global, &comparison, || {
        let mut text = format!("{}\n", compare::title(&comparison));
        for table in compare::tables(&comparison) {
            let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
            text.push_str(&format!("\n{}\n", table.title));
            text.push_str(&output::table(&header, &[2, 3, 4, 5, 6, 7], table.rows));
        }
        for remark in compare::remarks(&comparison) {
            text.push_str(&format!("{remark}\n"));
        }
        text
    })?;
    if comparison.is_worse() {
        return Err(Failure::Worse.into());
    }
    Ok(())
}

fn run_scenarios(global: &Global, run: &Run) -> Result<()> {
    let defaults = thalweg_lab::Options::default();
    if run.shift.is_some() && run.backend != Backend::Qemu {
        let why = format!("--shift goes with --backend qemu, found {}", run.backend);
        return Err(Failure::Usage(why).into());
    }
    for file in &run.scenarios {
        kinds::expect(file, Kind::LabScenario)?;
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
        agent_binary: std::env::current_exe().context("cannot tell where this program is")?,
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
    let finished = thalweg_lab::backend::run(&settings)?;
    output::show(global, &finished.document, || finished.text)?;
    if finished.passed {
        Ok(())
    } else {
        Err(Failure::Expectation.into())
    }
}

fn build_kernel(global: &Global, hz: u32) -> Result<()> {
    let program = thalweg_guest::virtual_kernel::build(hz, std::io::stderr().is_terminal())?;
    let document = serde_json::json!({ "kernel": program });
    output::show(global, &document, || format!("{}\n", program.display()))
}
