//! The private directory of a user-mode kernel: job, result, console, sockets.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;
use crate::host::PREFIX;
use crate::host::stale;

/// A directory below the system's directory for temporary files, for this user
/// alone; dropped, it is removed.
#[derive(Debug)]
pub(super) struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    pub(super) fn create() -> Result<Self, Error> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let parent = std::env::temp_dir();
        let parent =
            fs::canonicalize(&parent).map_err(Error::io("cannot use the directory", &parent))?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-uml{serial}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(Error::io("cannot create", &path))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes this user's directories whose process is gone: it was killed.
pub(super) fn remove_stale() {
    let parent = std::env::temp_dir();
    let own = nix::unistd::geteuid().as_raw();
    for name in stale::orphans(&parent) {
        let path = parent.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir() && it.uid() == own) {
            remove(&path);
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}
