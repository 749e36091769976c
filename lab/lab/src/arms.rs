//! Congestion controls that scenarios bring along: `thalweg cc load` loads them for a run, and they
//! go with it.
//!
//! They are pinned in a BPF file system of their own. If a run is killed by SIGKILL, the next run
//! clears them away.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::agent::write_configuration;
use crate::error::Error;
use crate::host::available_congestion_controls;
use crate::rundir::RunDir;
use crate::scenario::{Arm, Scenario};

/// Serials of these run directories begin here; those of scenarios begin at 0.
const SERIAL: usize = 1_000_000;
/// Type information of the kernel; it exists where congestion controls in BPF can be loaded.
const TYPES: &str = "/sys/kernel/btf/vmlinux";

/// The loaded congestion controls, unregistered on drop. Open connections keep theirs to the end.
#[derive(Debug)]
pub(crate) struct Loaded(
    #[allow(dead_code, reason = "its end is what is wanted of it")] Option<RunDir>,
);

/// The congestion controls of the scenarios, each once.
///
/// # Errors
/// Two scenarios give one name to different models.
pub(crate) fn distinct_arms(scenarios: &[Scenario]) -> Result<Vec<&Arm>, Error> {
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

/// Whether this kernel seems to take congestion controls in BPF.
pub(crate) fn kernel_takes_bpf_cc() -> bool {
    Path::new(TYPES).exists()
}

/// Loads the congestion controls that the kernel lacks. A kernel that takes none gets none.
///
/// # Errors
/// [`Error::CongestionControl`] with the message of `thalweg cc load`, or where the kernel already
/// has a model's name: it may run another model.
pub(crate) fn load_missing(binary: &Path, scenarios: &[Scenario]) -> Result<Loaded, Error> {
    let arms = distinct_arms(scenarios)?;
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
    if wanted.is_empty() || !kernel_takes_bpf_cc() {
        return Ok(Loaded(None));
    }
    let directory = RunDir::create(SERIAL)?;
    let bpf = directory.mount_bpf()?;
    // No agent reads this configuration; only its pin directory is used.
    let settings = write_configuration(None, Path::new("/"), &bpf.join("arms"), directory.path())?;
    for arm in wanted {
        load_arm(binary, &settings, arm)?;
    }
    Ok(Loaded(Some(directory)))
}

fn load_arm(binary: &Path, settings: &Path, arm: &Arm) -> Result<(), Error> {
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
