//! An unnamed network namespace: it goes with the last process and descriptor in it.

use std::fs::File;
use std::io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::Error;
use crate::system_error;

/// A network namespace.
#[derive(Debug)]
pub(crate) struct NetworkNamespace(File);

impl NetworkNamespace {
    /// Makes one with a loopback that is down.
    pub(crate) fn create() -> Result<Self, Error> {
        on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(system_error("cannot create a network namespace"))?;
            let path = "/proc/thread-self/ns/net";
            File::open(path)
                .map(Self)
                .map_err(Error::io("cannot open", path))
        })
    }

    /// Opens one by a path.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        File::open(path)
            .map(Self)
            .map_err(Error::io("cannot open the network namespace", path))
    }

    /// Runs a closure inside, in a thread of its own.
    pub(crate) fn run_within<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        on_a_thread(|| {
            setns(self.descriptor(), CloneFlags::CLONE_NEWNET)
                .map_err(system_error("cannot enter a network namespace"))?;
            work()
        })
    }

    /// Spreads packets received by a device here over these processors (RPS,
    /// Documentation/networking/scaling.rst), instead of the one where they arrive. Does nothing if
    /// there are none, if the machine's kernel has no RPS, or if a container may not set it: all
    /// works without, but slower.
    pub(crate) fn receive_on(
        &self,
        device: &str,
        processors: impl Iterator<Item = usize>,
    ) -> Result<(), Error> {
        let Some(mask) = processor_mask(processors) else {
            return Ok(());
        };
        self.run_within(|| {
            // /sys shows the devices of the network namespace that it was mounted in.
            let none = None::<&str>;
            let file = format!("/sys/class/net/{device}/queues/rx-0/rps_cpus");
            let set = unshare(CloneFlags::CLONE_NEWNS)
                .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
                .and_then(|()| mount(none, "/sys", Some("sysfs"), MsFlags::empty(), none))
                .map_err(std::io::Error::from)
                .and_then(|()| std::fs::write(&file, &mask));
            match set.as_ref().map_err(std::io::Error::kind) {
                Err(NotFound | PermissionDenied | ReadOnlyFilesystem) => Ok(()),
                _ => set.map_err(Error::io("cannot set", file)),
            }
        })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// A path by which other processes reach it while this one lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// The mask of processors as in /sys: groups of 32, the last ones first. None if it is empty.
fn processor_mask(processors: impl Iterator<Item = usize>) -> Option<String> {
    let mut groups: Vec<u32> = Vec::new();
    for processor in processors {
        let group = processor / 32;
        groups.resize(groups.len().max(group + 1), 0);
        groups[group] |= 1 << (processor % 32);
    }
    let groups: Vec<String> = groups.iter().rev().map(|it| format!("{it:08x}")).collect();
    (!groups.is_empty()).then(|| groups.join(","))
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(work);
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_as_the_kernel_reads_them() {
        let of = |processors: &[usize]| processor_mask(processors.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[1]).as_deref(), Some("00000002"));
        assert_eq!(of(&[0, 33, 31]).as_deref(), Some("00000002,80000001"));
    }
}
