//! Timers of a kernel in the machine's time.
//!
//! An idle kernel sleeps until its timer's signal, and the machine takes tens of microseconds to
//! run it again. The preloaded library (`idle.c`) sets the timer to an earlier moment, and polls
//! the clock for the rest.

use std::process::Command;

use crate::error::Error;

/// Variable: how much earlier, ns.
pub const EARLY: &str = "THALWEG_EARLY_NS";
/// Variable: file for the lateness of the kernel's timers.
pub const LATE: &str = "THALWEG_LATE_FILE";
/// The time that the machine usually takes to run the kernel again.
#[cfg(target_arch = "x86_64")]
const EARLY_NS: u32 = 20_000;

/// Lets the timers of a command's kernel expire when they are due. Variables that are set already
/// stay, for measurements.
///
/// # Errors
/// [`Error::Process`] if the library cannot be handed over.
#[cfg(target_arch = "x86_64")]
pub fn in_time(command: &mut Command) -> Result<(), Error> {
    const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/idle.so"));
    if std::env::var_os(EARLY).is_none() {
        command.env(EARLY, EARLY_NS.to_string());
    }
    crate::preload::preload_library(command, c"thalweg-idle.so", LIBRARY)
}

/// Does nothing: user-mode Linux is for x86 only.
///
/// # Errors
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub fn in_time(_command: &mut Command) -> Result<(), Error> {
    Ok(())
}
