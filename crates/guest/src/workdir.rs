//! The private directory of a kernel that is a process: job, result, console, sockets.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use thalweg_process::interrupt::{self, OnSignal};
use thalweg_process::owned::{PREFIX, orphans};

use crate::error::Error;

/// How long the processes of a killed kernel may take to be gone.
const PATIENCE: Duration = Duration::from_secs(3);

/// A directory below the system's directory for temporary files, for this user
/// alone; dropped, it is removed.
#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    /// Makes one.
    ///
    /// # Errors
    /// Where the directory for temporary files cannot be used.
    pub fn create() -> Result<Self, Error> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let parent = std::env::temp_dir();
        let parent =
            fs::canonicalize(&parent).map_err(Error::io("cannot use the directory", &parent))?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        // As long in each run, because the kernel has it on its command line.
        let name = format!("{PREFIX}{:07}-kernel{serial}", std::process::id());
        let path = parent.join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(Error::io("cannot create", &path))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        clear(&self.path);
    }
}

/// Removes a directory and what is left of its kernel.
pub fn clear(path: &Path) {
    // A kernel that was killed is reaped, but its helpers are nobody's children,
    // and may still be dying.
    end_helpers(path);
    remove(path);
}

/// Removes this user's directories whose process is gone because it was killed,
/// and what is left of their kernels: those die with that process, but not their
/// helper threads, which are processes of their own.
pub fn remove_stale() {
    let parent = std::env::temp_dir();
    let own = nix::unistd::geteuid().as_raw();
    for name in orphans(&parent) {
        let path = parent.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir() && it.uid() == own) {
            clear(&path);
        }
    }
}

/// Kills the processes that have a directory on their command line as the kernel's,
/// and waits until they are gone.
fn end_helpers(directory: &Path) {
    let mark = uml_dir(directory);
    let deadline = Instant::now() + PATIENCE;
    // One that was starting another when it was killed may have left it behind.
    while end_those_marked(mark.as_bytes(), deadline) && Instant::now() < deadline {}
}

/// Kills the processes that have this word on their command line, and waits for their
/// end; returns whether there were any.
fn end_those_marked(mark: &[u8], deadline: Instant) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    let mut found = false;
    for pid in processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    {
        let Ok(ended) = interrupt::pidfd(pid) else {
            continue;
        };
        // Read after the descriptor was opened, so that it is this process.
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if !command.split(|&byte| byte == 0).any(|word| word == mark) {
            continue;
        }
        found = true;
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        let _ = interrupt::wait(
            ended.as_fd(),
            PollFlags::POLLIN,
            deadline,
            OnSignal::KeepWaiting,
        );
    }
    found
}

/// The word of a kernel's command line that names its directory.
pub(crate) fn uml_dir(directory: &Path) -> String {
    format!("uml_dir={}/", directory.display())
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}
