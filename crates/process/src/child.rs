//! A child process that does not outlive its guard.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::PollFlags;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::Error;
use crate::interrupt::{self, OnSignal};

/// A running child in a process group of its own. Dropping it kills the group and reaps the child.
#[derive(Debug)]
pub struct Process {
    child: Child,
    ended: OwnedFd,
    status: Option<ExitStatus>,
}

/// Makes the kernel kill the child when the *thread* that starts it ends. Also puts it into a
/// process group of its own, away from the terminal's signals.
pub fn tie_to_thread(command: &mut Command) {
    command.process_group(0);
    let parent = std::process::id();
    // SAFETY: between fork and exec only prctl(2) and getppid(2) are called,
    // both async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the call above took effect.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

impl Process {
    /// Starts the command, tied to this thread.
    pub fn spawn(command: &mut Command) -> Result<Self, Error> {
        tie_to_thread(command);
        Self::spawn_tied(command)
    }

    /// Starts a command that was passed to [`tie_to_thread`] before.
    pub fn spawn_tied(command: &mut Command) -> Result<Self, Error> {
        let failed = |command: &Command| {
            Error::system(format!(
                "cannot start {}",
                command.get_program().to_string_lossy()
            ))
        };
        let mut child = command.spawn().map_err(failed(command))?;
        match interrupt::open_pidfd(child.id()) {
            Ok(ended) => Ok(Self {
                child,
                ended,
                status: None,
            }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(command)(error))
            }
        }
    }

    /// The child itself, for its pipes.
    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Becomes readable when the child has ended.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Waits for its end until the deadline; `None` if it still runs then.
    pub fn wait_until(
        &mut self,
        deadline: Instant,
        on_signal: OnSignal,
    ) -> Result<Option<ExitStatus>, Error> {
        if self.status.is_none()
            && interrupt::wait_for_event(
                self.ended.as_fd(),
                PollFlags::POLLIN,
                deadline,
                on_signal,
            )?
        {
            self.status = Some(
                self.child
                    .wait()
                    .map_err(Error::system("wait for a child"))?,
            );
        }
        Ok(self.status)
    }

    /// The exit status if it has ended.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.wait_until(Instant::now(), OnSignal::KeepWaiting)
    }

    /// Sends SIGTERM, and kills the child if it does not end within the time.
    pub fn terminate(&mut self, timeout: Duration) {
        self.signal_group(Signal::SIGTERM);
        let deadline = Instant::now() + timeout;
        if !matches!(
            self.wait_until(deadline, OnSignal::KeepWaiting),
            Ok(Some(_))
        ) {
            self.kill();
        }
    }

    /// Kills the child and its process group, and reaps it.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            self.signal_group(Signal::SIGKILL);
            self.status = self.child.wait().ok();
        }
    }

    /// Sends a signal to the process group. Only this guard reaps the child, so the number cannot
    /// belong to another process.
    fn signal_group(&self, signal: Signal) {
        if self.status.is_none() {
            let _ = killpg(Pid::from_raw(self.child.id() as i32), signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
