//! Processes at the ends of a link: started there, and none left behind.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{self, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::PollFlags;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use thalweg_process::interrupt::{self, OnSignal};

use crate::error::Error;
use crate::namespace::{Endpoint, Endpoints};

/// How long a process that was asked to end may take.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Which process group a child is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// This process's: the terminal's keys reach both.
    Shared,
    /// A group of the child's own.
    Own,
}

/// A running child. Dropped, it is killed and reaped.
#[derive(Debug)]
pub(crate) struct Child {
    child: process::Child,
    ended: OwnedFd,
    group: Group,
    status: Option<ExitStatus>,
}

impl Child {
    /// Starts a command at an end of the link, with the signal mask given. It is
    /// killed when the thread that starts it ends.
    pub(crate) fn spawn_at(
        command: &mut Command,
        ends: &Endpoints,
        end: &Endpoint,
        mask: SigSet,
        group: Group,
    ) -> Result<Self, Error> {
        let program = command.get_program().to_owned();
        let failed = |why| Error::Start { program, why };
        let entrance = ends.open_entrance(end)?;
        if group == Group::Own {
            command.process_group(0);
        }
        let parent = process::id();
        // SAFETY: between fork and exec only system calls are made: setns(2),
        // prctl(2), getppid(2) and sigprocmask(2).
        unsafe {
            command.pre_exec(move || {
                entrance.enter_namespace()?;
                // After setns(2), which forgets it together with the credentials.
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before the call above took effect.
                if libc::getppid() as u32 != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
                Ok(())
            });
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(why) => return Err(failed(why)),
        };
        match interrupt::open_pidfd(child.id()) {
            Ok(ended) => Ok(Self {
                child,
                ended,
                group,
                status: None,
            }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(error))
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Becomes readable when it has ended.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Exit status of the child if it has ended.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>, Error> {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .map_err(Error::system("cannot wait for a child"))?;
        }
        Ok(self.status)
    }

    /// Sends a signal: to the group if it has its own, otherwise to it alone.
    pub(crate) fn send_signal(&self, signal: i32) {
        // Not reaped yet, so the number is still its own.
        if self.status.is_none() {
            let id = self.child.id() as libc::pid_t;
            let target = if self.group == Group::Own { -id } else { id };
            // SAFETY: takes two integers.
            unsafe { libc::kill(target, signal) };
        }
    }

    /// Asks it to end, and kills it if it does not.
    pub(crate) fn terminate_or_kill(&mut self) {
        self.send_signal(libc::SIGTERM);
        self.wait_up_to(GRACE);
        self.kill_and_reap();
    }

    /// Waits for its end, but no longer than this.
    pub(crate) fn wait_up_to(&self, patience: Duration) {
        wait_for_process(self.ended.as_fd(), patience);
    }

    /// Kills what is left of it and its group, and reaps it.
    pub(crate) fn kill_and_reap(&mut self) {
        self.send_signal(libc::SIGKILL);
        if self.status.is_none() {
            self.status = self.child.wait().ok();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill_and_reap();
    }
}

/// Kills whatever else still runs at the ends of a link: what the commands left
/// in the background.
pub(crate) fn kill_leftovers(ends: &Endpoints) {
    let identities: Vec<_> = [&ends.near, &ends.far]
        .into_iter()
        .filter_map(|end| end.namespace_identity().ok().flatten())
        .collect();
    let inside = |pid: u32| {
        fs::metadata(format!("/proc/{pid}/ns/net"))
            .is_ok_and(|found| identities.contains(&(found.dev(), found.ino())))
    };
    // Each round may find what a process forked before it was killed.
    for _ in 0..100 {
        let mut found = false;
        for pid in process_ids().filter(|pid| inside(*pid)) {
            found |= kill_checked(pid, inside);
        }
        if !found {
            return;
        }
    }
    tracing::warn!("processes that fork faster than they can be killed are left on the link");
}

fn process_ids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Kills a process if it is inside, and waits for its end. The descriptor keeps
/// the number from belonging to another process meanwhile.
fn kill_checked(pid: u32, inside: impl Fn(u32) -> bool) -> bool {
    let Ok(process) = interrupt::open_pidfd(pid) else {
        return false;
    };
    if !inside(pid) {
        return false;
    }
    // SAFETY: a descriptor, two integers and no further information.
    unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            Signal::SIGKILL as libc::c_int,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        );
    }
    wait_for_process(process.as_fd(), GRACE);
    true
}

/// Waits for a process to end; if it does not, there is nothing else to do.
fn wait_for_process(process: BorrowedFd<'_>, patience: Duration) {
    let deadline = Instant::now() + patience;
    let _ = interrupt::wait_for_event(process, PollFlags::POLLIN, deadline, OnSignal::KeepWaiting);
}
