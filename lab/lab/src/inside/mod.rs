//! A run in a kernel of its own. The options go in as one document, and the results come out as
//! another. Inside, the run is as on any kernel.

pub(crate) mod qemu;
pub(crate) mod uml;

use std::fs;
use std::path::PathBuf;

use indicatif::ProgressBar;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thalweg_guest::{DEFAULT_MEMORY, KernelKind, Limits, check_available};

use crate::error::Error;
use crate::mode::Mode;
use crate::options::Options;
use crate::progress::{self, Step};
use crate::scenario::{PolicyFile, Scenario};
use crate::units::Size;

pub(crate) fn to_document(value: &impl serde::Serialize) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|error| Error::system("what goes in")(error.into()))
}

pub(crate) fn from_document<T: DeserializeOwned>(document: Value) -> Result<T, Error> {
    serde_json::from_value(document).map_err(|error| Error::system("what came out")(error.into()))
}

/// The laboratory's program, which runs inside, from the options.
pub(crate) fn lab_program(options: &Options) -> Result<PathBuf, Error> {
    fs::canonicalize(&options.program)
        .map_err(Error::io("cannot find the laboratory", &options.program))
}

/// The agent's program, from the options; none if no mode and no scenario needs it.
pub(crate) fn agent_program(
    options: &Options,
    scenarios: &[Scenario],
) -> Result<Option<PathBuf>, Error> {
    if !scenarios.iter().any(|one| one.needs_agent(&options.modes)) {
        return Ok(None);
    }
    let found = fs::canonicalize(&options.agent_binary);
    found
        .map(Some)
        .map_err(Error::io("cannot find the agent", &options.agent_binary))
}

/// The memory asked for, if the machine has it.
pub(crate) fn guest_memory(
    kind: KernelKind,
    options: &Options,
    scenarios: &[Scenario],
) -> Result<Size, Error> {
    let largest = scenarios.iter().filter_map(|one| one.system.memory).max();
    let memory = options.kernel.memory.or(largest).unwrap_or(DEFAULT_MEMORY);
    check_available(kind, memory, "--memory, or `memory` of the scenario")?;
    Ok(memory)
}

fn guest_limits(options: &Options, scenarios: &[Scenario]) -> Limits {
    let durations = scenarios.iter().map(|it| it.traffic.duration.duration());
    Limits {
        boot_s: options.kernel.boot_limit_s,
        silence: durations.max().unwrap_or_default(),
    }
}

/// The kernel modules of the congestion controls that scenarios and modes name.
fn cc_modules<'a>(
    scenarios: &'a [Scenario],
    modes: &'a [Mode],
) -> impl Iterator<Item = String> + 'a {
    let policies = scenarios.iter().flat_map(move |scenario| {
        let of = move |mode: &'a Mode| scenario.mode_policy(mode);
        modes.iter().filter_map(of)
    });
    let fixed = modes.iter().filter_map(|mode| match mode {
        Mode::Fixed(name) => Some(name.as_str()),
        _ => None,
    });
    let learns = modes.iter().any(Mode::learns);
    let agents = move |scenario: &'a Scenario| {
        let arms = scenario.agent.arms.iter().filter(move |_| learns);
        arms.map(String::as_str)
    };
    scenarios
        .iter()
        .map(|scenario| scenario.system.default_cc.as_str())
        .chain(fixed)
        .chain(scenarios.iter().flat_map(agents))
        .chain(
            policies.flat_map(|policy: &PolicyFile| {
                policy.congestion_controls.iter().map(String::as_str)
            }),
        )
        .map(|name| format!("tcp_{name}"))
}

/// Name of a scenario's copy in the directory of a job.
fn copy_of_scenario(index: usize) -> String {
    format!("scenario-{index}.toml")
}

/// Shows the progress that a run reports from inside.
struct Follower {
    wanted: bool,
    bar: ProgressBar,
}

impl Follower {
    fn new(wanted: bool) -> Self {
        let bar = ProgressBar::hidden();
        Self { wanted, bar }
    }

    /// Takes one report.
    fn take_report(&mut self, words: Value) -> Result<(), String> {
        match serde_json::from_value(words).map_err(|error| error.to_string())? {
            Step::Scenario { name, connections } => {
                self.bar.finish_and_clear();
                self.bar = progress::progress_bar(self.wanted, &name, connections);
            }
            Step::Connection { made, mode } => {
                self.bar.set_position(made);
                self.bar.set_message(mode);
            }
        }
        Ok(())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
