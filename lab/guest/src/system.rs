//! Duties of a kernel's first process.

use std::fs::{self, File};
use std::path::Path;

use nix::kmod::ModuleInitFlags;
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{FsType, statfs};
use nix::sys::wait::{WaitStatus, wait};

use crate::error::Error;

/// `HOSTFS_SUPER_MAGIC`, linux/magic.h.
const HOSTFS: FsType = FsType(0x00c0_ffee);
/// `MODULE_INIT_COMPRESSED_FILE`, linux/module.h.
const COMPRESSED: i32 = 4;
/// Temporary files of the run, in memory instead of on the machine's disk.
pub(crate) const TEMPORARY: &str = "/run/tmp";

/// Whether the root is the machine's file system, as in a user-mode kernel.
pub fn is_user_mode() -> bool {
    statfs("/").is_ok_and(|it| it.filesystem_type() == HOSTFS)
}

/// Waits for a child, and reaps all orphans that process 1 gets.
pub fn reap_child(pid: u32) -> Result<WaitStatus, Error> {
    loop {
        match wait() {
            Ok(status) if status.pid().is_some_and(|it| it.as_raw() as u32 == pid) => {
                return Ok(status);
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(Error::system("wait")(errno.into())),
        }
    }
}

/// Mounts the kernel's own file systems over the machine's directories.
pub fn mount_all() -> Result<(), Error> {
    for (kind, point, data) in [
        ("proc", "/proc", ""),
        ("sysfs", "/sys", ""),
        ("tmpfs", "/run", "mode=755"),
        ("cgroup2", "/sys/fs/cgroup", ""),
        ("bpf", "/sys/fs/bpf", "mode=700"),
    ] {
        mount_one(kind, point, data)?;
    }
    fs::create_dir(TEMPORARY).map_err(Error::io("cannot create", TEMPORARY))
}

/// Mounts a file system of a given type.
pub fn mount_one(kind: &str, point: &str, data: &str) -> Result<(), Error> {
    mount(Some(kind), point, Some(kind), MsFlags::empty(), Some(data))
        .map_err(|errno| Error::system(format!("cannot mount {kind} on {point}"))(errno.into()))
}

/// Inserts a module, unless it is there.
pub fn insert_module(module: &Path) -> Result<(), Error> {
    let file = File::open(module).map_err(Error::io("cannot open the module", module))?;
    let plain = module.extension().is_some_and(|ending| ending == "ko");
    let flags = ModuleInitFlags::from_bits_retain(if plain { 0 } else { COMPRESSED as _ });
    match nix::kmod::finit_module(&file, c"", flags) {
        Ok(()) | Err(nix::errno::Errno::EEXIST) => Ok(()),
        Err(errno) => Err(Error::io("cannot insert the module", module)(errno.into())),
    }
}

/// Sets a sysctl(8) key.
pub fn set_sysctl(key: &str, value: &str) -> Result<(), Error> {
    let path = Path::new("/proc/sys").join(key.replace('.', "/"));
    fs::write(&path, value).map_err(Error::io("cannot write", path))
}
