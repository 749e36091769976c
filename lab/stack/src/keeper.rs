//! A process that cleans up after this one was killed: the remains of the kernel (`workdir`), and
//! the directory.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::PollFlags;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, setsid};
use thalweg_guest::workdir;
use thalweg_process::interrupt::{self, OnSignal};

use crate::error::Error;
use crate::system_error;

/// Duration of one wait.
const LONG: Duration = Duration::from_secs(3600);

/// The keeper; dropped, it is ended, as this process has cleaned up.
#[derive(Debug)]
pub(crate) struct Keeper(Pid);

impl Keeper {
    /// Starts one for a work directory. This process has a single thread, and blocks the signals
    /// that ask it to end.
    pub(crate) fn start_keeper(work: &Path) -> Result<Self, Error> {
        let this = interrupt::open_pidfd(std::process::id())
            .map_err(Error::system("cannot find myself"))?;
        // SAFETY: this process has a single thread, so the child's copy is consistent, and may do
        // whatever the parent may. It ends by _exit.
        match unsafe { fork() }.map_err(system_error("cannot fork"))? {
            ForkResult::Parent { child } => Ok(Self(child)),
            ForkResult::Child => {
                let _ = setsid();
                leave_files(this.as_raw_fd());
                while !matches!(
                    interrupt::wait_for_event(
                        this.as_fd(),
                        PollFlags::POLLIN,
                        Instant::now() + LONG,
                        OnSignal::KeepWaiting,
                    ),
                    Ok(true)
                ) {}
                workdir::clear_workdir(work);
                // SAFETY: this ends the child at once, without the parent's clean-up.
                unsafe { libc::_exit(0) }
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        while waitpid(self.0, None) == Err(Errno::EINTR) {}
    }
}

/// Closes all other files: their readers wait for the end.
fn leave_files(keep: i32) {
    // SAFETY: the arguments are a path that lives throughout, and integers. Closed descriptors are
    // not used afterwards.
    unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for stream in 0..3 {
            libc::dup2(nothing, stream);
        }
        let keep = keep as libc::c_uint;
        libc::syscall(libc::SYS_close_range, 3, keep - 1, 0);
        libc::syscall(libc::SYS_close_range, keep + 1, libc::c_uint::MAX, 0);
    }
}
