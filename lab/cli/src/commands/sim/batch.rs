//! Scenario × controller × seed, on all CPUs.

use std::io::IsTerminal;
use std::num::NonZeroUsize;

use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use thalweg_process::interrupt;
use thalweg_sim::cc::{Spec, SpecError};
use thalweg_sim::metrics::Summary;
use thalweg_sim::sweep::{Job, run_sweep};
use thalweg_sim::{Outcome, Progress, Scenario, Statistic, Time, longest_round_trip};

use thalweg_terminal::{Failure, output, whole_number};

/// Options of all simulations.
#[derive(Debug, Args)]
pub struct Common {
    /// A controller, as NAME or NAME:parameter=value,…; repeatable. Default: dcqcn, hpcc, swift and
    /// proportional. All: docs/reference/controllers.md.
    #[arg(long, value_name = "NAME")]
    pub cc: Vec<String>,
    /// Seeds; 1 to N are run.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole_number::<u64>(1..=10_000))]
    pub seeds: u64,
    /// Simulations at a time. Default: one a CPU.
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
}

/// A scenario's runs.
pub struct Runs {
    /// The scenario of the file.
    pub scenario: Scenario,
    /// With each controller, in order.
    pub controllers: Vec<ControllerRuns>,
}

/// The runs with one controller.
pub struct ControllerRuns {
    /// The controller.
    pub controller: Spec,
    /// One outcome per completed seed, in order.
    pub runs: Vec<Outcome>,
    /// Whether all seeds were run.
    pub complete: bool,
}

impl ControllerRuns {
    /// Mean and spread over the seeds; none if no run has the statistic.
    pub fn statistic_summary(&self, statistic: Statistic) -> Option<Summary> {
        let values: Vec<f64> = (self.runs.iter())
            .filter_map(|run| statistic.value_in(run))
            .collect();
        Summary::from_values(&values)
    }
}

/// All runs.
pub struct Batch {
    /// By scenario.
    pub scenarios: Vec<Runs>,
    /// Number of completed and of planned runs.
    pub done: (usize, usize),
}

/// A controller in the form of `--cc`.
fn parse_controller(text: &str) -> Result<Spec> {
    text.parse().map_err(|error| match error {
        // The file is faulty, not the command line.
        SpecError::Model(_) | SpecError::Program(_) => anyhow::Error::from(error),
        error => Failure::Usage(format!("--cc {text}: {error}")).into(),
    })
}

/// Points of a time series in a report.
const POINTS: u64 = 400;

/// Runs every scenario with every controller and seed. With `series` the first seed's runs have
/// time series even if the scenario requests none. After SIGINT or SIGTERM no further run starts,
/// running ones are abandoned, and the completed ones are returned.
pub fn run_batch(scenarios: Vec<Scenario>, common: &Common, series: bool) -> Result<Batch> {
    let controllers: Vec<Spec> = if common.cc.is_empty() {
        let names = ["dcqcn", "hpcc", "swift", "proportional"];
        names
            .map(str::parse)
            .into_iter()
            .collect::<Result<_, _>>()?
    } else {
        let named = common.cc.iter().map(|text| parse_controller(text));
        named.collect::<Result<_>>()?
    };
    for scenario in &scenarios {
        let (base_rtt, hops) = longest_round_trip(scenario);
        for controller in &controllers {
            if let Some(warning) = controller.path_warning(base_rtt, hops) {
                output::print_warning(&format!("{}: {controller}: {warning}", scenario.name));
            }
        }
    }
    // The scenario for the first seed, and the one for the others.
    let drawn: Vec<[Scenario; 2]> = (scenarios.iter())
        .map(|scenario| {
            let mut first = scenario.clone();
            if series && first.series.is_none() {
                let step = first.duration.ps().div_ceil(POINTS).max(1);
                first.series = Some(Time::from_ps(step));
            }
            [first, scenario.clone()]
        })
        .collect();
    let mut jobs = Vec::new();
    for [first, others] in &drawn {
        for controller in &controllers {
            for seed in 1..=common.seeds {
                let scenario = if seed == 1 { first } else { others };
                jobs.push(Job {
                    scenario,
                    controller,
                    seed,
                });
            }
        }
    }
    for job in &jobs {
        job.check_hosts()
            .map_err(|error| Failure::Usage(error.to_string()))?;
    }
    let threads = match common.jobs {
        Some(jobs) => jobs.get(),
        None => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
    };
    let stop = interrupt::interrupt_flag()?;
    let bar = progress_bar(jobs.iter().map(|job| job.scenario.duration.ps()).sum());
    bar.tick();
    let mut reached = vec![Progress::default(); jobs.len()];
    let outcomes = run_sweep(&jobs, threads, stop, |place, progress| {
        let before = std::mem::replace(&mut reached[place], progress);
        bar.set_message(progress_message(&jobs[place], before, progress));
        bar.inc(progress.now.ps() - before.now.ps());
    });
    bar.finish_and_clear();
    let total = outcomes.len();
    let done = outcomes.iter().flatten().count();
    let mut outcomes = outcomes.into_iter();
    let scenarios = scenarios
        .into_iter()
        .map(|scenario| Runs {
            scenario,
            controllers: controllers
                .iter()
                .map(|controller| {
                    let wanted = common.seeds as usize;
                    let runs: Vec<Outcome> = outcomes.by_ref().take(wanted).flatten().collect();
                    ControllerRuns {
                        controller: controller.clone(),
                        complete: runs.len() == wanted,
                        runs,
                    }
                })
                .collect(),
        })
        .collect();
    Ok(Batch {
        scenarios,
        done: (done, total),
    })
}

/// Drops of this share of the packets are worth a word: they are what takes the time.
const OVERLOAD_PERCENT: u64 = 50;

/// The running job, and whether it is slow because queues drop most of the packets.
fn progress_message(job: &Job<'_>, before: Progress, now: Progress) -> String {
    let mut text = format!("{} {} {}", job.scenario.name, job.controller, job.seed);
    let sent = now.sent_packets - before.sent_packets;
    let dropped = now.dropped_packets - before.dropped_packets;
    if sent > 0 && dropped * 100 >= sent * OVERLOAD_PERCENT {
        let percent = dropped * 100 / sent;
        text.push_str(&format!(": overload, {percent} % of the packets dropped"));
    }
    text
}

/// A bar of simulated time, so that a single long run has an estimate of its end, too.
fn progress_bar(length: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    let style = "[{bar:32}] {percent} % {eta} left  {msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}
