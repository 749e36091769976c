//! Links of programs to cgroups, and their pins.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, ProgramMut};

use crate::pins::remove_file;
use crate::system;

/// Opens a cgroup's directory.
///
/// # Errors
/// System errors.
pub fn open_cgroup(cgroup: &Path) -> Result<File> {
    File::open(cgroup).with_context(|| format!("opening cgroup {}", cgroup.display()))
}

/// The kernel's id of a cgroup.
///
/// # Errors
/// System errors.
pub fn cgroup_id(cgroup: &File) -> Result<u64> {
    Ok(cgroup.metadata()?.ino())
}

/// The directory of a cgroup. It is searched in the whole hierarchy, because cgroups may be
/// renamed.
pub fn cgroup_path(id: u64) -> Option<PathBuf> {
    let mut waiting = vec![system::cgroup2_mount().ok()?];
    while let Some(path) = waiting.pop() {
        if fs::metadata(&path).is_ok_and(|metadata| metadata.ino() == id) {
            return Some(path);
        }
        let Ok(entries) = fs::read_dir(&path) else {
            continue;
        };
        waiting.extend(
            entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
    }
    None
}

/// The pinned link; `None` if nothing is pinned.
///
/// # Errors
/// A pin that cannot be opened.
pub fn open(path: &Path) -> Result<Option<Link>> {
    if !path.exists() {
        return Ok(None);
    }
    let link = Link::open(path).with_context(|| format!("opening link {}", path.display()))?;
    Ok(Some(link))
}

/// The id of a link's cgroup: 0 if it was removed; `None` for a link to something else.
///
/// # Errors
/// The kernel's.
pub fn attached_to(link: &Link) -> Result<Option<u64>> {
    Ok(match link.info()?.info {
        LinkTypeInfo::Cgroup(info) => Some(info.cgroup_id),
        _ => None,
    })
}

/// The pinned link, if there is one and it is on this cgroup. A link on another cgroup (or on a
/// removed one) is removed.
///
/// # Errors
/// A pin that cannot be opened or removed.
pub fn open_on(path: &Path, cgroup_id: u64) -> Result<Option<Link>> {
    let Some(link) = open(path)? else {
        return Ok(None);
    };
    if attached_to(&link)? == Some(cgroup_id) {
        return Ok(Some(link));
    }
    remove_file(path)?;
    Ok(None)
}

/// Attaches a program to a cgroup. The link's pin keeps it attached.
///
/// # Errors
/// A refusal of the kernel.
pub fn attach_and_pin(program: &mut ProgramMut<'_>, cgroup: &File, path: &Path) -> Result<Link> {
    let name = program.name().to_string_lossy().into_owned();
    let mut link = program
        .attach_cgroup(cgroup.as_raw_fd())
        .with_context(|| format!("attaching {name} to the cgroup"))?;
    link.pin(path)
        .with_context(|| format!("pinning {}", path.display()))?;
    Ok(link)
}

/// Pins a map, a program or a link.
///
/// # Errors
/// The kernel's.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the descriptor is open and the name is NUL-terminated for the whole call.
    let failed = unsafe { libbpf_rs::libbpf_sys::bpf_obj_pin(object.as_raw_fd(), name.as_ptr()) };
    if failed != 0 {
        return Err(std::io::Error::from_raw_os_error(-failed))
            .with_context(|| format!("pinning {}", path.display()));
    }
    Ok(())
}
