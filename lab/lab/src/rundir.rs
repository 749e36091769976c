//! The private directory of a run: sockets, agents' configuration, and a BPF file system.
//! Unmounting that removes every pinned object.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use thalweg_process::owned::PREFIX;

use crate::error::Error;

/// Parent of run directories.
pub(crate) const PARENT: &str = "/run";

/// A directory under [`PARENT`]; dropped, it is unmounted and removed.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
}

impl RunDir {
    pub(crate) fn create(serial: usize) -> Result<Self, Error> {
        let path = Path::new(PARENT).join(format!("{PREFIX}{}-run{serial}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(Error::io("cannot create", &path))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts a BPF file system on a subdirectory and returns its path.
    pub(crate) fn mount_bpf(&self) -> Result<PathBuf, Error> {
        let point = bpf_mount(&self.path);
        fs::create_dir(&point).map_err(Error::io("cannot create", &point))?;
        mount(
            Some("bpf"),
            &point,
            Some("bpf"),
            MsFlags::empty(),
            Some("mode=0700"),
        )
        .map_err(|errno| Error::io("cannot mount a BPF file system on", &point)(errno.into()))?;
        Ok(point)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        remove_run_directory(&self.path);
    }
}

fn bpf_mount(path: &Path) -> PathBuf {
    path.join("bpf")
}

/// Unmounts a run directory's file system and removes the directory.
pub(crate) fn remove_run_directory(path: &Path) {
    // This fails if nothing is mounted, which is fine.
    let _ = umount2(&bpf_mount(path), MntFlags::MNT_DETACH);
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}
