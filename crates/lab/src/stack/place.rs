//! A network namespace without a name: it goes with the last process and descriptor in it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};

use super::system;
use crate::error::Error;

/// A network namespace.
#[derive(Debug)]
pub(super) struct Place(File);

impl Place {
    /// Makes one, with nothing but a loopback that is down.
    pub(super) fn create() -> Result<Self, Error> {
        on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(system("cannot create a network namespace"))?;
            let path = "/proc/thread-self/ns/net";
            File::open(path)
                .map(Self)
                .map_err(Error::io("cannot open", path))
        })
    }

    /// One that is there, by a path.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        File::open(path)
            .map(Self)
            .map_err(Error::io("cannot open the network namespace", path))
    }

    /// Does something inside, on a thread of its own.
    pub(super) fn within<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        on_a_thread(|| {
            setns(self.descriptor(), CloneFlags::CLONE_NEWNET)
                .map_err(system("cannot enter a network namespace"))?;
            work()
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// A path by which other processes find it while this one lives.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(work);
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
