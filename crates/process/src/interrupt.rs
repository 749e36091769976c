//! SIGINT and SIGTERM as a flag that every wait checks.
//!
//! Children run in process groups of their own. So Ctrl-C at the terminal reaches only this
//! process, and the clean-up happens in order.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::Error;

static REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether a second signal ends the process.
static HASTY: AtomicBool = AtomicBool::new(false);
static WAKE_FD: AtomicI32 = AtomicI32::new(-1);
static WAKE: OnceLock<EventFd> = OnceLock::new();

extern "C" fn on_signal(_: libc::c_int) {
    if REQUESTED.swap(true, Ordering::SeqCst) && HASTY.load(Ordering::SeqCst) {
        // SAFETY: _exit(2) is async-signal-safe.
        unsafe { libc::_exit(130) };
    }
    let one = 1u64;
    // SAFETY: write(2) is async-signal-safe and reads eight bytes of a local; a closed or absent
    // descriptor only makes it fail. errno is restored because the interrupted code may be about to
    // read it.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(
            WAKE_FD.load(Ordering::SeqCst),
            (&raw const one).cast(),
            size_of::<u64>(),
        );
        *libc::__errno_location() = errno;
    }
}

/// The number of guards, and the dispositions before the first.
static GUARDS: Mutex<(usize, Vec<(Signal, SigAction)>)> = Mutex::new((0, Vec::new()));

/// While it lives, SIGINT and SIGTERM set a flag instead of ending the process. Dropping the last
/// guard restores the dispositions before the first.
#[derive(Debug)]
pub struct Guard(());

impl Guard {
    /// Starts to handle them. Guards may overlap.
    ///
    /// # Errors
    /// System errors.
    pub fn install_handlers() -> Result<Self, Error> {
        let failed = |errno: Errno| Error::system("cannot handle SIGINT and SIGTERM")(errno.into());
        let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, before) = &mut *guards;
        if *count > 0 {
            *count += 1;
            return Ok(Self(()));
        }
        if WAKE.get().is_none() {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let wake = EventFd::from_value_and_flags(0, flags).map_err(failed)?;
            let wake = WAKE.get_or_init(|| wake);
            WAKE_FD.store(wake.as_fd().as_raw_fd(), Ordering::SeqCst);
        }
        REQUESTED.store(false, Ordering::SeqCst);
        if let Some(wake) = WAKE.get() {
            // EAGAIN means that it is already empty.
            let _ = wake.read();
        }
        let action = SigAction::new(
            SigHandler::Handler(on_signal),
            SaFlags::empty(),
            SigSet::empty(),
        );
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            // SAFETY: the handler only stores to atomics and calls write(2) or _exit(2).
            match unsafe { sigaction(signal, &action) } {
                Ok(former) => before.push((signal, former)),
                Err(errno) => {
                    restore_actions(before);
                    return Err(failed(errno));
                }
            }
        }
        *count = 1;
        Ok(Self(()))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, before) = &mut *guards;
        *count -= 1;
        if *count == 0 {
            restore_actions(before);
        }
    }
}

fn restore_actions(before: &mut Vec<(Signal, SigAction)>) {
    for (signal, before) in before.drain(..) {
        // SAFETY: restores a disposition that was in force before.
        let _ = unsafe { sigaction(signal, &before) };
    }
}

/// A flag that SIGINT and SIGTERM set from here to the end of the process. A second signal ends the
/// process at once.
///
/// # Errors
/// System errors.
pub fn interrupt_flag() -> Result<&'static AtomicBool, Error> {
    std::mem::forget(Guard::install_handlers()?);
    HASTY.store(true, Ordering::SeqCst);
    Ok(&REQUESTED)
}

/// Fails if SIGINT or SIGTERM has arrived.
pub fn check_interrupt() -> Result<(), Error> {
    if REQUESTED.load(Ordering::SeqCst) {
        Err(Error::Interrupted)
    } else {
        Ok(())
    }
}

/// Whether SIGINT or SIGTERM ends a wait. Clean-up itself must not be interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSignal {
    /// The wait ends with [`Error::Interrupted`].
    Fail,
    /// The wait continues.
    KeepWaiting,
}

/// Waits until the descriptor reports one of the events (`Ok(true)`) or the
/// deadline has passed (`Ok(false)`).
pub fn wait_for_event(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Instant,
    on_signal: OnSignal,
) -> Result<bool, Error> {
    loop {
        let mut watched = vec![PollFd::new(fd, events)];
        if on_signal == OnSignal::Fail {
            check_interrupt()?;
            if let Some(wake) = WAKE.get() {
                watched.push(PollFd::new(wake.as_fd(), PollFlags::POLLIN));
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that the last wait does not spin.
        let milliseconds = left.as_micros().div_ceil(1000).min(60_000) as i32;
        let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::ZERO);
        match poll(&mut watched, timeout) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(_) if watched[0].any() == Some(true) => return Ok(true),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::system("poll")(errno.into())),
        }
    }
}

/// A descriptor that becomes readable when the process ends (Linux 5.3).
pub fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).ok_or(Errno::ESRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handled() -> bool {
        // SAFETY: all zeros is a valid sigaction, which the call only writes.
        let now = unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            assert_eq!(
                libc::sigaction(libc::SIGTERM, std::ptr::null(), &raw mut now),
                0
            );
            now
        };
        now.sa_sigaction == on_signal as *const () as usize
    }

    #[test]
    fn signals_are_handled_until_the_last_guard_goes() {
        let [first, last] = [(); 2].map(|()| Guard::install_handlers().unwrap());
        drop(first);
        assert!(handled());
        drop(last);
        assert!(!handled());
    }
}
