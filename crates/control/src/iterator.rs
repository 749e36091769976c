//! TCP iterators: programs that visit every socket of a network namespace.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::error::{Context, Result, check_outcome};

/// A visit to the sockets of one network namespace. Until it is dropped it keeps the namespace.
pub struct SocketVisit(File);

impl SocketVisit {
    /// Begins one, by a link of the program, to the thread's present namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn begin(link: BorrowedFd<'_>) -> Result<Self> {
        // SAFETY: the descriptor is open for the whole call.
        let fd = unsafe { libbpf_rs::libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
        let fd = check_outcome(fd).context("starting a TCP iterator")?;
        // SAFETY: fd is a fresh descriptor that nobody else owns.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Goes on from any namespace until the program writes a byte; false at the end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn go_on(&mut self) -> Result<bool> {
        Ok(self.read_output(&mut [0])? != 0)
    }

    /// Goes on from any namespace until the program has written something; returns its bytes, 0 at the
    /// end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read_output(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match self.0.read(buffer) {
                Ok(read) => return Ok(read),
                // The kernel pauses after a million sockets.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error).context("reading a TCP iterator"),
            }
        }
    }
}
