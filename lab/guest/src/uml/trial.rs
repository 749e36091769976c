//! A trial of the packaged kernel on this machine.

use std::fs;
use std::path::Path;
use std::time::Instant;

use thalweg_process::interrupt;

use super::boot::Machine;
use super::{Kernel, TEMPORARY, check_visible, kernel_version};
use crate::channel::Message;
use crate::error::Error;
use crate::workdir::{self, WorkDir};
use crate::{BOOT, Job, KernelKind, LEAST_MEMORY, Task, console};

/// A kernel that boots on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// Version of the kernel, such as `6.1.176`.
    pub version: String,
    /// Whether it needs its `ptrace` [wrapped](super::ptrace::wrap_ptrace), because it does not know all
    /// of the processor's register state.
    pub wrapped: bool,
}

/// Boots the packaged kernel until its first process, `program` (this one), is ready, and ends it.
/// That takes some two seconds.
///
/// # Errors
/// [`Error::Preconditions`] if it is not installed; else why it does not boot.
pub fn try_out(program: &Path) -> Result<Trial, Error> {
    let kernel = Kernel::packaged_kernel(std::iter::empty())?;
    let trial = Trial {
        version: kernel_version(&kernel.program)?,
        wrapped: !kernel.sets_all_state && console::has_amx(),
    };
    let _signals = interrupt::Guard::install_handlers()?;
    workdir::remove_stale();
    let work = WorkDir::create()?;
    let program =
        fs::canonicalize(program).map_err(Error::io("cannot find this program", program))?;
    check_visible(TEMPORARY, work.path(), "set TMPDIR to another")?;
    check_visible("this program", &program, "copy it elsewhere")?;
    let job = Job {
        kind: KernelKind::UserMode,
        task: Task::Boot,
        current: "/".into(),
        modules: kernel.modules.clone(),
    };
    let machine = Machine {
        kernel: &kernel,
        memory: LEAST_MEMORY,
        work: work.path(),
    };
    let overdue = format!("user-mode Linux did not boot within {} s", BOOT.as_secs());
    let mut running = machine.boot_job(&job, &program)?;
    match running.next_message(Instant::now() + BOOT, &overdue)? {
        Message::End { error } => Err(Error::Inside {
            kind: KernelKind::UserMode,
            why: error.unwrap_or_else(|| "it stopped at once".to_owned()),
        }),
        _ => Ok(trial),
    }
}
