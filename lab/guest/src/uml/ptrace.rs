//! Kernels that do not know all of the processor's register state.
//!
//! A user-mode kernel before 6.14 ends when its first process starts if the state exceeds 2,696
//! bytes, as with AMX. The preloaded library wraps its `ptrace(2)` (`ptrace.c`, `xstate.c`).

use std::process::Command;

use crate::error::Error;

/// Built by `build.rs`.
#[cfg(target_arch = "x86_64")]
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ptrace.so"));

/// Wraps the `ptrace` of a command's user-mode kernel before 6.14. Libraries that the environment
/// preloads stay, behind it. The library is a memory file, which goes with the kernel.
///
/// # Errors
/// [`Error::Process`] if the file cannot be created.
#[cfg(target_arch = "x86_64")]
pub fn wrap_ptrace(command: &mut Command) -> Result<(), Error> {
    crate::preload::preload_library(command, c"thalweg-ptrace.so", LIBRARY)
}

/// Does nothing: user-mode Linux is for x86 only.
///
/// # Errors
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub fn wrap_ptrace(_command: &mut Command) -> Result<(), Error> {
    Ok(())
}
