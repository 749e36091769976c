//! The congestion controls that scenarios bring along: loaded for a run by the product's own
//! command, gone with it.
//!
//! They are pinned in a BPF file system of their own, whose end is theirs too, so that
//! nothing stays even after SIGKILL once the next run has cleared away.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::agent::configuration;
use crate::error::Error;
use crate::host::available_congestion_controls;
use crate::rundir::RunDir;
use crate::scenario::{Arm, Scenario};

/// The run directories of scenarios count from 0.
const SERIAL: usize = 1_000_000;
/// What a kernel that takes congestion controls in BPF tells of its types.
const TYPES: &str = "/sys/kernel/btf/vmlinux";

/// What was loaded. Dropped, it is unregistered; connections that have it keep it to
/// their end.
#[derive(Debug)]
pub(crate) struct Loaded(
    #[allow(dead_code, reason = "its end is what is wanted of it")] Option<RunDir>,
);

/// The congestion controls that the scenarios bring along, each once.
///
/// # Errors
/// Two scenarios mean different things by one name.
pub(crate) fn of(scenarios: &[Scenario]) -> Result<Vec<&Arm>, Error> {
    let mut arms: Vec<&Arm> = Vec::new();
    for arm in scenarios.iter().flat_map(|scenario| &scenario.arms) {
        match arms.iter().find(|other| other.name == arm.name) {
            None => arms.push(arm),
            Some(other) if *other == arm => {}
            Some(other) => {
                return Err(Error::Options(format!(
                    "the scenarios load {} and {} as {}: run them one after the other",
                    other.load, arm.load, arm.name
                )));
            }
        }
    }
    Ok(arms)
}

/// Whether this kernel takes congestion controls in BPF, as far as that can be told at once.
pub(crate) fn loadable() -> bool {
    Path::new(TYPES).exists()
}

/// Loads what the kernel has none of. Where it takes none at all, nothing is loaded.
///
/// # Errors
/// [`Error::CongestionControl`] with the words of `thalweg cc load`; or where the kernel has
/// one of a model's name: it may run another model.
pub(crate) fn load(binary: &Path, scenarios: &[Scenario]) -> Result<Loaded, Error> {
    let arms = of(scenarios)?;
    let offered = available_congestion_controls()?;
    for arm in &arms {
        if arm.is_model() && offered.contains(&arm.name) {
            return Err(Error::CongestionControl {
                name: arm.name.clone(),
                why: format!(
                    "the kernel has one of that name already, which need not be {}; unload it \
                     first (thalweg cc unload {})",
                    arm.load, arm.name
                ),
            });
        }
    }
    let wanted: Vec<&Arm> = arms
        .into_iter()
        .filter(|arm| !offered.contains(&arm.name))
        .collect();
    if wanted.is_empty() || !loadable() {
        return Ok(Loaded(None));
    }
    let directory = RunDir::create(SERIAL)?;
    let bpf = directory.mount_bpf()?;
    // No agent reads it: only where pins are counts.
    let settings = configuration(None, Path::new("/"), &bpf.join("arms"), directory.path())?;
    for arm in wanted {
        one(binary, &settings, arm)?;
    }
    Ok(Loaded(Some(directory)))
}

fn one(binary: &Path, settings: &Path, arm: &Arm) -> Result<(), Error> {
    let program = arm.file.clone().unwrap_or_else(|| PathBuf::from(&arm.load));
    let mut command = Command::new(binary);
    command
        .arg("--config")
        .arg(settings)
        .args(["cc", "load"])
        .arg(program)
        .args(["--name", &arm.name]);
    if let Some(rate) = arm.reference_rate {
        command.args(["--reference-rate", &rate.to_string()]);
    }
    if let Some(rtt) = arm.reference_rtt {
        command.args(["--reference-rtt", &rtt.to_string()]);
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(Error::system(format!("cannot start {}", binary.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(Error::CongestionControl {
        name: arm.name.clone(),
        why: format!("{} ({})", words.trim(), output.status),
    })
}
