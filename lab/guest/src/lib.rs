//! Linux kernels as processes of this machine ([`uml`], [`qemu`]): found, added or built, booted,
//! given a job, listened to, and cleared away.
//!
//! A job is a program, or a document whose answer is handed back. Their meaning is the caller's.
//! This crate must not know the purpose of its kernels: no scenario, mode, traffic or report, and
//! no stack.

mod cache;
mod channel;
pub mod console;
mod error;
mod inside;
pub mod kernels;
mod modules;
pub mod preload;
pub mod qemu;
mod running;
pub mod system;
pub mod ticks;
pub mod uml;
pub mod virtual_kernel;
pub mod workdir;

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thalweg_process::tool;
use thalweg_units::Size;

use channel::Message;
pub use channel::{Channel, SERIAL};
pub use error::{Error, Hint};
pub(crate) use inside::{Job, Task, read_answer, read_output};
pub use inside::{OUT, main};
pub use running::CONSOLE;
use running::Running;

/// With less, a program does not fit beside the kernel.
pub const LEAST_MEMORY: Size = Size::from_bytes(128 << 20);
/// The largest [`Size`] that is read from text.
pub const MOST_MEMORY: Size = Size::from_bytes(4_000_000_000);
/// The default memory of a kernel.
pub const DEFAULT_MEMORY: Size = Size::from_bytes(1 << 30);
/// Time that a job may be silent beyond its own estimate.
const SILENCE: Duration = Duration::from_secs(120);
/// Time that it may take to stop after announcing it.
const STOP: Duration = Duration::from_secs(20);

/// The kinds of kernels that are processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KernelKind {
    /// User-mode Linux.
    UserMode,
    /// A kernel on an emulated processor.
    Qemu,
}

impl fmt::Display for KernelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UserMode => "user-mode Linux",
            Self::Qemu => "QEMU",
        })
    }
}

/// Programs that jobs call, with their packages.
pub const TOOLS: [(&str, &str); 3] = [("iperf3", "iperf3"), ("ip", "iproute2"), ("tc", "iproute2")];

/// The missing ones of these programs, one line each.
pub fn missing_programs<'a>(tools: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    tools
        .into_iter()
        .filter(|(program, _)| tool::find_program(program).is_none())
        .map(|(program, package)| {
            format!("no {program}: install the package {package} (apt-get install {package})")
        })
        .collect()
}

/// Checks that a kernel can have this much memory.
pub fn check_memory(memory: Size) -> Result<(), String> {
    if (LEAST_MEMORY..=MOST_MEMORY).contains(&memory) {
        Ok(())
    } else {
        Err(format!(
            "expected memory from {LEAST_MEMORY} to {MOST_MEMORY}, found {memory}"
        ))
    }
}

/// Fails if a kernel cannot have this much memory, or the machine lacks it. `by` names the option
/// that changes it.
pub fn check_available(kind: KernelKind, memory: Size, by: &str) -> Result<(), Error> {
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

/// Usual time limit for booting a kernel. User-mode Linux takes two seconds, QEMU ten, on a machine that does nothing
/// else. A kernel that dies meanwhile is noticed at once.
pub const BOOT: Duration = Duration::from_secs(300);

/// Time limits of a job.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Time to boot, seconds; none: [`BOOT`].
    pub boot_s: Option<u64>,
    /// The longest silence that it plans, in its kernel's time.
    pub silence: Duration,
}

/// Follows the messages of a running kernel until it has stopped. The kernel may be `slowness`
/// times slower than real time. `told` takes the job's messages, and returns their faults.
pub(crate) fn follow_messages(
    running: &mut Running,
    limits: Limits,
    slowness: u32,
    told: &mut dyn FnMut(Value) -> Result<(), String>,
) -> Result<(), Error> {
    let silence = (limits.silence + SILENCE) * slowness;
    let kind = running.kind();
    let limit = limits.boot_s.map_or(BOOT, Duration::from_secs);
    let booting = format!("{kind} did not boot within {} s", limit.as_secs());
    let silent = format!("{kind} was silent for {} s", silence.as_secs());
    let mut deadline = Instant::now() + limit;
    let mut overdue = &booting;
    loop {
        match running.next_message(deadline, overdue)? {
            Message::Ready => {}
            Message::Told(words) => {
                let text = words.to_string();
                told(words).map_err(|why| running.no_message(&text, why))?;
            }
            Message::File { path, bytes } => running.keep_file(&path, bytes, deadline, overdue)?,
            Message::End { error } => {
                running.await_stop(Instant::now() + STOP)?;
                return error.map_or(Ok(()), |why| Err(Error::Inside { kind, why }));
            }
        }
        deadline = Instant::now() + silence;
        overdue = &silent;
    }
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
