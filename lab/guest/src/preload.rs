//! Libraries preloaded into other programs (ld.so(8)).

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::error::Error;

/// The variable of ld.so(8).
const PRELOAD: &str = "LD_PRELOAD";

/// Preloads a library into a command's program. Libraries from the environment or an earlier call
/// stay, behind it. The library is a memory file, which goes with the program.
///
/// # Errors
/// [`Error::Process`] if the file cannot be created.
pub fn preload_library(command: &mut Command, name: &CStr, library: &[u8]) -> Result<(), Error> {
    let failed = Error::system("cannot create a file in memory");
    let library = memfd_create(name, MFdFlags::MFD_CLOEXEC)
        .map_err(std::io::Error::from)
        .and_then(|file| {
            let mut file = File::from(file);
            file.write_all(library)?;
            Ok(file)
        })
        .map_err(failed)?;
    let mut list = OsString::from(format!("/proc/self/fd/{}", library.as_raw_fd()));
    let own = command.get_envs().find(|(name, _)| *name == PRELOAD);
    let others = match own {
        Some((_, others)) => others.map(OsString::from),
        None => std::env::var_os(PRELOAD),
    };
    if let Some(others) = others.filter(|others| !others.is_empty()) {
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
