//! Named network namespaces, as of `ip netns`.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use thalweg_process::tool;

use crate::error::Error;

/// The directory where `ip netns` mounts them.
pub(crate) const DIRECTORY: &str = "/run/netns";

/// A network namespace; dropped, it is deleted.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// Creates a namespace with a loopback that is down.
    pub(crate) fn create(name: &str) -> Result<Self, Error> {
        tool::run_tool("ip", &format!("netns add {name}"))?;
        let path = PathBuf::from(DIRECTORY).join(name);
        let file = File::open(&path)
            .map_err(Error::io("cannot open the namespace", &path))
            .inspect_err(|_| delete_namespace(name))?;
        Ok(Self {
            name: name.to_owned(),
            file,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A descriptor of the namespace, independent of this guard.
    pub(crate) fn open_handle(&self) -> Result<File, Error> {
        self.file
            .try_clone()
            .map_err(Error::system("cannot duplicate a descriptor"))
    }

    /// Runs a closure in a thread of its own inside the namespace. No child process may be tied to
    /// that thread, which ends with the closure.
    pub(crate) fn run_within<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|errno| {
                    Error::system(format!("cannot enter the namespace {}", self.name))(errno.into())
                })?;
                work()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Writes a setting below `net.` of this namespace.
    pub(crate) fn set_sysctl(&self, key: &str, value: &str) -> Result<(), Error> {
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        self.run_within(|| {
            std::fs::write(&path, value).map_err(Error::system(format!(
                "cannot set {key} to {value:?} in a namespace"
            )))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        delete_namespace(&self.name);
    }
}

fn delete_namespace(name: &str) {
    if let Err(error) = tool::run_tool("ip", &format!("netns delete {name}")) {
        tracing::warn!("{error}");
    }
}
