//! What kernels that are processes ([`crate::uml`], [`crate::qemu`]) have in common: the job
//! that goes in, the messages and results that come out, and the program inside.

pub(crate) mod console;
mod inside;
pub(crate) mod preload;
pub(crate) mod running;
pub(crate) mod system;
pub(crate) mod workdir;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::host::tool;
use crate::progress::{self, Message};
use crate::run::Options;
use crate::scenario::Scenario;
use crate::units::Size;
pub use inside::main;
pub(crate) use inside::{CHANNEL, Job, REPORTS, SERIAL, Task, result, written};
use running::Running;

/// Below this the run itself does not fit beside the kernel.
pub(crate) const LEAST_MEMORY: Size = Size::from_bytes(128 << 20);
/// What [`Size`] can say at most.
const MOST_MEMORY: Size = Size::from_bytes(4_000_000_000);
/// Memory where neither scenario nor options say.
const DEFAULT_MEMORY: Size = Size::from_bytes(1 << 30);
/// How much longer than its own time a connection may keep the kernel silent.
const SILENCE: Duration = Duration::from_secs(120);
/// How long it may take to stop once it has said that it will.
const STOP: Duration = Duration::from_secs(20);

/// What runs a kernel as a process, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// User-mode Linux.
    UserMode,
    /// A processor made of software.
    Qemu,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UserMode => "user-mode Linux",
            Self::Qemu => "QEMU",
        })
    }
}

/// Programs and the packages that have them.
pub(crate) const TOOLS: [(&str, &str); 3] =
    [("iperf3", "iperf3"), ("ip", "iproute2"), ("tc", "iproute2")];

/// Which of these programs are not there, one line each.
pub(crate) fn missing<'a>(tools: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    tools
        .into_iter()
        .filter(|(program, _)| tool::find(program).is_none())
        .map(|(program, package)| {
            format!("no {program}: install the package {package} (apt-get install {package})")
        })
        .collect()
}

/// Whether a kernel could have this much memory.
pub(crate) fn check_memory(memory: Size) -> Result<(), String> {
    if (LEAST_MEMORY..=MOST_MEMORY).contains(&memory) {
        Ok(())
    } else {
        Err(format!(
            "expected memory from {LEAST_MEMORY} to {MOST_MEMORY}, found {memory}"
        ))
    }
}

/// The memory that is asked for, if the machine has it.
pub(crate) fn memory(kind: Kind, options: &Options, scenarios: &[Scenario]) -> Result<Size, Error> {
    let largest = scenarios.iter().filter_map(|one| one.system.memory).max();
    let memory = options.memory.or(largest).unwrap_or(DEFAULT_MEMORY);
    check_available(kind, memory, "--memory, or `memory` of the scenario")?;
    Ok(memory)
}

/// Fails where a kernel cannot have this much memory, or the machine has not; `by` says what
/// changes it.
pub(crate) fn check_available(kind: Kind, memory: Size, by: &str) -> Result<(), Error> {
    check_memory(memory).map_err(|why| Error::Options(format!("--memory: {why}")))?;
    let table =
        fs::read_to_string("/proc/meminfo").map_err(Error::io("cannot read", "/proc/meminfo"))?;
    if let Some(available) = available_bytes(&table)
        && available < memory.bytes()
    {
        return Err(Error::Options(format!(
            "{kind} shall have {memory} of memory, but only {} are available: \
             ask for less ({by})",
            Size::from_bytes(available / 1_000_000 * 1_000_000)
        )));
    }
    Ok(())
}

/// `MemAvailable` of proc(5)'s `/proc/meminfo`, bytes.
fn available_bytes(table: &str) -> Option<u64> {
    let line = table
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// The program that is to run inside, as the options name it.
pub(crate) fn program(options: &Options) -> Result<PathBuf, Error> {
    fs::canonicalize(&options.agent_binary)
        .map_err(Error::io("cannot find the agent", &options.agent_binary))
}

/// A scenario's copy in the directory of a job.
pub(crate) fn copy_of_scenario(index: usize) -> String {
    format!("scenario-{index}.toml")
}

/// Follows the messages of a running kernel until it has stopped. It may be `slowness` times
/// slower than real time.
pub(crate) fn follow(
    running: &mut Running,
    options: &Options,
    scenarios: &[Scenario],
    slowness: u32,
) -> Result<(), Error> {
    let longest = scenarios
        .iter()
        .map(|scenario| scenario.traffic.duration.duration())
        .max()
        .unwrap_or_default();
    let silence = (longest + SILENCE) * slowness;
    let kind = running.kind();
    let usual = match kind {
        Kind::UserMode => 60,
        // Some ten seconds on a processor that it has to itself.
        Kind::Qemu => 300,
    };
    let limit = Duration::from_secs(options.boot_limit_s.unwrap_or(usual));
    let booting = format!("{kind} did not boot within {} s", limit.as_secs());
    let silent = format!("{kind} was silent for {} s", silence.as_secs());
    let mut bar = progress::bar(false, "", 0);
    let mut deadline = Instant::now() + limit;
    let mut overdue = &booting;
    loop {
        match running.message(deadline, overdue)? {
            Message::Ready => {}
            Message::Scenario { name, connections } => {
                bar.finish_and_clear();
                bar = progress::bar(options.progress, &name, connections);
            }
            Message::Connection { made, mode } => {
                bar.set_position(made);
                bar.set_message(mode);
            }
            Message::File { path, bytes } => running.keep(&path, bytes, deadline, overdue)?,
            Message::End { error } => {
                bar.finish_and_clear();
                running.await_stop(Instant::now() + STOP)?;
                return error.map_or(Ok(()), |why| Err(Error::Guest { kind, why }));
            }
        }
        deadline = Instant::now() + silence;
        overdue = &silent;
    }
}

/// Creates the file that a kernel's messages go to.
pub(crate) fn channel(work: &Path) -> Result<fs::File, Error> {
    let path = work.join(CHANNEL);
    let failed = |path: &Path| Error::io("cannot create", path.to_owned());
    fs::File::create(&path).map_err(failed(&path))?;
    fs::File::open(&path).map_err(failed(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_bounds() {
        for (memory, fine) in [("127mib", false), ("128mib", true), ("4000mb", true)] {
            assert_eq!(
                check_memory(memory.parse().unwrap()).is_ok(),
                fine,
                "{memory}"
            );
        }
    }

    #[test]
    fn available_memory_is_read() {
        let table = "MemTotal:       24684096 kB\nMemFree:  1 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(available_bytes(table), Some(23_000_000 * 1024));
        assert_eq!(available_bytes("MemTotal: 1 kB\n"), None);
    }
}
