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
use thalweg_process::owned::{PREFIX, orphaned_entries};

use crate::error::Error;

/// Time that the processes of a killed kernel may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// A directory for this user alone, in the system's directory for temporary files; dropped, it is
/// removed.
#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    /// Makes one.
    ///
    /// # Errors
    /// The directory for temporary files cannot be used.
    pub fn create() -> Result<Self, Error> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let parent = std::env::temp_dir();
        let parent =
            fs::canonicalize(&parent).map_err(Error::io("cannot use the directory", &parent))?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        // The name has the same length in each run, as it is on the kernel's command line.
        let name = format!("{PREFIX}{:07}-kernel{serial}", std::process::id());
        let path = parent.join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(Error::io("cannot create", &path))?;
        Ok(Self { path })
    }

    /// Path of the work directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        clear_workdir(&self.path);
    }
}

/// Removes a directory and the remains of its kernel.
pub fn clear_workdir(path: &Path) {
    // A killed kernel is reaped. Its helpers are not its children, and may still be ending.
    end_helpers(path);
    remove_directory(path);
}

/// Removes this user's directories whose process was killed, and the remains of their kernels.
/// Kernels die with that process, but their helper threads are processes of their own.
pub fn remove_stale() {
    let parent = std::env::temp_dir();
    let own = nix::unistd::geteuid().as_raw();
    for name in orphaned_entries(&parent) {
        let path = parent.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir() && it.uid() == own) {
            clear_workdir(&path);
        }
    }
}

/// Kills the processes whose command line names a directory as the kernel's, and waits for their
/// end.
fn end_helpers(directory: &Path) {
    let mark = uml_dir(directory);
    let deadline = Instant::now() + END_TIMEOUT;
    // A process killed while it started another may have left that behind.
    while end_those_marked(mark.as_bytes(), deadline) && Instant::now() < deadline {}
}

/// Kills the processes with this word on their command line, and waits for their end. Returns
/// whether there were any.
fn end_those_marked(mark: &[u8], deadline: Instant) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    let mut found = false;
    for pid in processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    {
        let Ok(ended) = interrupt::open_pidfd(pid) else {
            continue;
        };
        // Read after the descriptor was opened, so that it is the same process.
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if !command.split(|&byte| byte == 0).any(|word| word == mark) {
            continue;
        }
        found = true;
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        let _ = interrupt::wait_for_event(
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

fn remove_directory(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}
