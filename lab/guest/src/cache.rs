//! The cache of built and downloaded kernels.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_process::owned::{PREFIX, orphaned_entries};

use crate::error::Error;

/// The first of `$XDG_CACHE_HOME/thalweg`, `~/.cache/thalweg` and `/var/cache/thalweg` that the
/// environment names.
pub(crate) fn cache_directory() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    variable("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| Some(variable("HOME")?.join(".cache")).filter(|path| path.is_absolute()))
        .unwrap_or_else(|| "/var/cache".into())
        .join("thalweg")
}

/// A directory for unfinished files; dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates one below a directory of the cache, which is created, too. Remains of a killed
    /// process are removed.
    pub(crate) fn create(parent: &Path) -> Result<Self, Error> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        for name in orphaned_entries(parent) {
            remove_remains(&parent.join(name));
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-new{serial}", std::process::id()));
        fs::create_dir_all(&path).map_err(Error::io("cannot create", &path))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove_remains(&self.0);
    }
}

fn remove_remains(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}
