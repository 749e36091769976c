//! Signals that can be read and passed on.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::Error;

/// Signals that ask a process to end, and the two for any use.
const CAUGHT: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// While it lives, the signals in `CAUGHT` and further ones are read from a descriptor. Dropping
/// it restores the previous mask. Signals until then have had their effect: the command has ended,
/// and everything is removed.
#[derive(Debug)]
pub struct Signals {
    before: SigSet,
    descriptor: SignalFd,
}

/// A received signal.
#[derive(Debug, Clone, Copy)]
pub struct CaughtSignal {
    /// Number of the signal.
    pub number: i32,
    /// A process sent it to this one. A signal from a key of the terminal goes to the whole process
    /// group, including the command.
    pub to_us_alone: bool,
}

impl CaughtSignal {
    /// Whether the signal asks the process to end.
    pub fn ends_process(self) -> bool {
        ![libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH].contains(&self.number)
    }
}

impl Signals {
    /// Blocks the signals in this thread, and in threads that it starts later.
    ///
    /// # Errors
    /// System errors.
    pub fn catch(further: &[Signal]) -> Result<Self, Error> {
        let failed = |errno: Errno| Error::system("cannot catch signals")(errno.into());
        let caught: SigSet = CAUGHT.iter().chain(further).copied().collect();
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let descriptor = SignalFd::with_flags(&caught, flags).map_err(failed)?;
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&caught), Some(&mut before)).map_err(failed)?;
        Ok(Self { before, descriptor })
    }

    /// The previous mask, for children.
    pub fn previous_mask(&self) -> SigSet {
        self.before
    }

    /// Readable when a signal has arrived.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// The next received signal, if any.
    pub fn next(&self) -> Result<Option<CaughtSignal>, Error> {
        let read = self
            .descriptor
            .read_signal()
            .map_err(|errno| Error::system("cannot read a signal")(errno.into()))?;
        Ok(read.map(|information| CaughtSignal {
            number: information.ssi_signo as i32,
            to_us_alone: information.ssi_code <= 0,
        }))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        while matches!(self.next(), Ok(Some(_))) {}
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
    }
}
