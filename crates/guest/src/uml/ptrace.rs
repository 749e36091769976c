//! Kernels that know less of the processor's register state than there is.
//!
//! A user-mode kernel before 6.14 ends as soon as its first process starts where the state has
//! more than 2,696 bytes, as with AMX. The library here, preloaded, wraps its `ptrace(2)`
//! (`ptrace.c`, `xstate.c`).

use std::process::Command;

use crate::error::Error;

/// Built by `build.rs`.
#[cfg(target_arch = "x86_64")]
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ptrace.so"));

/// Has a command start a user-mode kernel before 6.14 with `ptrace` wrapped. What the environment
/// preloads stays, behind it. The library is a file in memory, which goes with the kernel.
///
/// # Errors
/// [`Error::Process`] where there is no such file to be had.
#[cfg(target_arch = "x86_64")]
pub fn wrap(command: &mut Command) -> Result<(), Error> {
    crate::preload::preload(command, c"thalweg-ptrace.so", LIBRARY)
}

/// User-mode Linux is for x86 alone, so there is no kernel to wrap `ptrace` for.
///
/// # Errors
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub fn wrap(_command: &mut Command) -> Result<(), Error> {
    Ok(())
}
