//! Kernels that know less of the processor's register state than there is.
//!
//! A user-mode kernel before 6.14 ends as soon as its first process starts where the state has
//! more than 2,696 bytes, as with AMX. The library here, preloaded, wraps its `ptrace(2)`
//! (`ptrace.c`, `xstate.c`).

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::error::Error;

/// Built by `build.rs`.
#[cfg(target_arch = "x86_64")]
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ptrace.so"));

/// The variable of ld.so(8).
const PRELOAD: &str = "LD_PRELOAD";

/// Has a command start a user-mode kernel before 6.14 with `ptrace` wrapped. What the environment
/// preloads stays, behind it. The library is a file in memory, which goes with the kernel.
///
/// # Errors
/// [`Error::System`] where there is no such file to be had.
#[cfg(target_arch = "x86_64")]
pub fn wrap(command: &mut Command) -> Result<(), Error> {
    let failed = Error::system("cannot create a file in memory");
    let library = memfd_create(c"thalweg-ptrace.so", MFdFlags::MFD_CLOEXEC)
        .map_err(std::io::Error::from)
        .and_then(|file| {
            let mut file = File::from(file);
            file.write_all(LIBRARY)?;
            Ok(file)
        })
        .map_err(failed)?;
    let mut list = std::ffi::OsString::from(format!("/proc/self/fd/{}", library.as_raw_fd()));
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    command.env(PRELOAD, list);
    // SAFETY: between fork and exec only fcntl(2) is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            fcntl(&library, FcntlArg::F_SETFD(FdFlag::empty()))?;
            Ok(())
        });
    }
    Ok(())
}

/// User-mode Linux is for x86 alone, so there is no kernel to wrap `ptrace` for.
///
/// # Errors
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub fn wrap(_command: &mut Command) -> Result<(), Error> {
    Ok(())
}
