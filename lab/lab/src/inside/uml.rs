//! A run in user-mode Linux, which sees the machine's files.

use std::fs;
use std::path::{Path, PathBuf};

use thalweg_guest::KernelKind;
use thalweg_guest::uml::{Kernel, Ready, check_visible};

use super::Follower;
use crate::error::Error;
use crate::mode::Mode;
use crate::options::{Options, Origin, UsedBackend};
use crate::report::{self, Finished};
use crate::scenario::{self, Scenario};

/// The packaged kernel with the modules that scenarios and modes need.
pub(crate) fn packaged_kernel(scenarios: &[Scenario], modes: &[Mode]) -> Result<Kernel, Error> {
    Ok(Kernel::packaged_kernel(super::cc_modules(
        scenarios, modes,
    ))?)
}

/// Boots the kernel, runs the scenarios there and returns the results. Kernel and directory are
/// gone on every way out.
pub(crate) fn run_in_uml(
    kernel: &Kernel,
    options: &Options,
    scenarios: &[Scenario],
) -> Result<Finished, Error> {
    let memory = super::guest_memory(KernelKind::UserMode, options, scenarios)?;
    let program = super::lab_program(options)?;
    let agent = super::agent_program(options, scenarios)?;
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| report::DEFAULT.into());
    // Created now, so that a fault does not appear after a minute.
    fs::create_dir_all(&out).map_err(Error::io("cannot create", &out))?;
    let out = fs::canonicalize(&out).map_err(Error::io("cannot find", &out))?;
    check_visible("the report's directory", &out, "choose another with --out")?;
    for policy in scenarios.iter().flat_map(|scenario| &scenario.policies) {
        let file = fs::canonicalize(&policy.file)
            .map_err(Error::io("cannot find the policy", &policy.file))?;
        check_visible("the policy", &file, "copy it elsewhere")?;
    }
    let ready = Ready::new(kernel, memory, &program)?;
    let surroundings = ready.surroundings();
    let files = options.scenarios.iter();
    let inner = Options {
        scenarios: copy_scenarios(&options.scenarios, surroundings.work.path())?,
        agent_binary: agent.unwrap_or_else(|| options.agent_binary.clone()),
        program,
        progress: false,
        origin: Origin {
            place: UsedBackend {
                kernel_command: Some(ready.command_line()),
                ..options.origin.place.clone()
            },
            command: Some(options.origin.command_line()),
            started: Some(options.origin.start_time()),
            policy_folders: files
                .map(|file| surroundings.current.join(scenario::scenario_folder(file)))
                .collect(),
            channel: Some(ready.channel_file()),
        },
        ..options.clone()
    };
    let document = super::to_document(&inner)?;
    let mut follower = Follower::new(options.progress);
    let limits = super::guest_limits(options, scenarios);
    let answer = ready.run_document(document, limits, &mut |words| follower.take_report(words))?;
    super::from_document(answer)
}

/// Copies the scenarios to a directory that the kernel sees.
fn copy_scenarios(files: &[PathBuf], work: &Path) -> Result<Vec<PathBuf>, Error> {
    let copy = |(index, file): (usize, &PathBuf)| {
        let copy = work.join(super::copy_of_scenario(index));
        fs::copy(file, &copy).map_err(Error::io("cannot copy the scenario", file))?;
        Ok(copy)
    };
    files.iter().enumerate().map(copy).collect()
}
