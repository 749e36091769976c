//! The run itself: set up, interleave the modes, take down.

mod environment;
mod paths;
mod testbed;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use thalweg_process::interrupt;

use crate::arms;
use crate::error::Error;
use crate::expect;
use crate::gain;
use crate::host::{preflight, stale};
use crate::mode::{self, Mode};
use crate::options::Options;
use crate::outcome::{ModeOutcome, Outcome, ScenarioOutcome};
use crate::progress::Progress;
use crate::report;
use crate::rundir::RunDir;
use crate::scenario::{self, Scenario};
use crate::stack_endpoints::Stacks;
use environment::describe_environment;
use testbed::Testbed;

/// Runs the scenarios and writes a report of each.
///
/// SIGINT and SIGTERM end it in order. Everything that it created is removed on every way out, also
/// on errors and panics. The calling thread must live until it returns.
///
/// # Errors
/// The first fault: a scenario that is not valid (before anything is created), a missing
/// precondition, a step that failed. A missed expectation is not an error, see [`Outcome::has_passed`].
pub fn run_scenarios(options: &Options) -> Result<Outcome, Error> {
    let scenarios = check_options(options)?;
    preflight::check_requirements(
        &scenarios,
        &options.modes,
        options.origin.place.name.wire_kind(),
    )?;
    let _signals = interrupt::Guard::install_handlers()?;
    stale::remove_stale();

    let _arms = arms::load_missing(&options.agent_binary, &scenarios)?;
    let stacks = Stacks::find_kernel(options, &scenarios)?;
    let environment = describe_environment(options, stacks.as_ref())?;
    let modes = mode::expand_modes(&options.modes, &environment.congestion_controls);
    let directories = report::report_directories(
        options.out.as_deref(),
        &scenarios,
        &options.origin.start_time(),
    )?;
    let mut outcome = Outcome {
        environment,
        scenarios: Vec::new(),
    };
    for (serial, (mut scenario, directory)) in scenarios.into_iter().zip(directories).enumerate() {
        if let Some(connections) = options.connections {
            scenario.traffic.connections = connections;
        }
        let bench = RunContext {
            options,
            stacks: stacks.as_ref(),
            scenario: &scenario,
        };
        let (modes, wall_s) = run_scenario(bench, &modes, serial, &directory)?;
        let result = ScenarioOutcome {
            checks: expect::evaluate_expectations(&scenario.expect, &modes),
            null_checks: expect::evaluate_null(&scenario.expect, &modes),
            scenario,
            reference_every: options.reference_every,
            modes,
            wall_s,
            report: directory,
        };
        report::write_report(&outcome.environment, &result)?;
        outcome.scenarios.push(result);
    }
    Ok(outcome)
}

/// Checks the options and reads the scenarios. It creates nothing.
pub(crate) fn check_options(options: &Options) -> Result<Vec<Scenario>, Error> {
    if options.scenarios.is_empty() {
        return Err(Error::Options("no scenario was given".into()));
    }
    if options.modes.is_empty() {
        return Err(Error::Options("no mode was given".into()));
    }
    if options.reference_every == 0 || options.connections == Some(0) {
        return Err(Error::Options(
            "the number of rounds must be at least 1".into(),
        ));
    }
    let load = |(index, file): (usize, &PathBuf)| -> Result<Scenario, Error> {
        let scenario = match options.origin.policy_folders.get(index) {
            Some(folder) => Scenario::load_in(file, folder)?,
            None => Scenario::load(file)?,
        };
        for mode in &options.modes {
            if let Mode::Policy(name) = mode {
                scenario::policy::check_policy_name(name, &scenario.policies).map_err(|why| {
                    Error::Options(format!("{}: {why} (mode {mode})", file.display()))
                })?;
            }
        }
        Ok(scenario)
    };
    let scenarios = options.scenarios.iter().enumerate().map(load);
    let scenarios: Vec<Scenario> = scenarios.collect::<Result<_, _>>()?;
    if scenarios.iter().any(|one| one.needs_agent(&options.modes))
        && !options.agent_binary.is_file()
    {
        return Err(Error::Preconditions(vec![format!(
            "{}: no such program; modes with an agent or a policy, and congestion controls of a \
             scenario, need the agent: install the package thalweg",
            options.agent_binary.display()
        )]));
    }
    Ok(scenarios)
}

/// A scenario and the means to run it.
#[derive(Clone, Copy)]
struct RunContext<'a> {
    options: &'a Options,
    stacks: Option<&'a Stacks>,
    scenario: &'a Scenario,
}

/// Returns the results of each mode, and the wall time, seconds.
fn run_scenario(
    bench: RunContext<'_>,
    modes: &[Mode],
    serial: usize,
    report: &Path,
) -> Result<(Vec<ModeOutcome>, f64), Error> {
    let RunContext {
        options, scenario, ..
    } = bench;
    let started = Instant::now();
    let raw = report.join("raw");
    fs::create_dir_all(&raw).map_err(Error::io("cannot create", &raw))?;
    let directory = RunDir::create(serial)?;
    let bpf = if modes.iter().any(Mode::uses_bpf) {
        Some(directory.mount_bpf()?)
    } else {
        None
    };
    // Each mode is set up at its first turn, so that the first connection does not wait for all of
    // them. The first round has a turn of each.
    let mut rigs: Vec<Option<Testbed>> = modes.iter().map(|_| None).collect();
    let rounds = scenario.traffic.connections;
    let turns = schedule_turns(modes, rounds, options.reference_every);
    let progress = Progress::new(
        options.progress,
        options.origin.channel.as_deref(),
        &scenario.name,
        turns.len() as u64,
    )?;
    for (made, Turn { round, mode }) in turns.into_iter().enumerate() {
        interrupt::check_interrupt()?;
        let of = &modes[mode];
        progress.begin_connection(made as u64, of.to_string());
        let rig = match &mut rigs[mode] {
            Some(rig) => rig,
            vacant => {
                let rig = Testbed::set_up(bench, of, directory.path(), bpf.as_deref())?;
                vacant.insert(rig)
            }
        };
        rig.connect_round(bench, round, &raw)?;
    }
    progress.remove_bar();

    let mut modes = rigs
        .into_iter()
        .flatten()
        .map(|rig| rig.into_outcome(scenario, report))
        .collect::<Result<Vec<_>, _>>()?;
    relate_modes(&mut modes, scenario);
    gain::compare_with_measured(&mut modes, scenario);
    Ok((modes, started.elapsed().as_secs_f64()))
}

/// Gives each mode the figures that hold for the whole scenario.
fn relate_modes(modes: &mut [ModeOutcome], scenario: &Scenario) {
    let least = |modes: &[ModeOutcome], host: &str| {
        modes
            .iter()
            .flat_map(|mode| &mode.connections)
            .filter(|connection| connection.host == host)
            .filter_map(|connection| connection.min_rtt_us)
            .reduce(f64::min)
    };
    let last_change = |host: Option<&str>| {
        scenario
            .changes
            .iter()
            .filter(|change| host.is_none_or(|name| change.host == name))
            .map(|change| change.at - 1)
            .rfind(|round| *round < scenario.traffic.connections)
    };
    let alone = least(modes, "");
    let of_hosts: Vec<_> = scenario
        .hosts
        .iter()
        .map(|host| {
            // Queue delays behind different paths have no common origin.
            let alone = host.others.is_empty();
            let least = alone.then(|| least(modes, &host.name)).flatten();
            (least, last_change(Some(&host.name)))
        })
        .collect();
    for mode in modes {
        // Several hosts have a least round-trip time each, and none together.
        mode.least_rtt_us = alone;
        mode.last_change = last_change(None);
        for (remote, of_host) in mode.remotes.iter_mut().zip(&of_hosts) {
            (remote.least_rtt_us, remote.last_change) = *of_host;
        }
    }
}

/// A connection to make: round, and index into the modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    round: u32,
    mode: usize,
}

/// All connections in order. The modes of a round follow each other, so that a disturbance of the
/// machine affects all alike. Each round begins with another mode.
fn schedule_turns(modes: &[Mode], rounds: u32, reference_every: u32) -> Vec<Turn> {
    let mut turns = Vec::new();
    for round in 0..rounds {
        for place in 0..modes.len() {
            let mode = (place + round as usize) % modes.len();
            if modes[mode].learns() || round % reference_every == 0 {
                turns.push(Turn { round, mode });
            }
        }
    }
    turns
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
