//! Timers of a kernel that lives in the machine's time.
//!
//! An idle kernel sleeps until its timer's signal, and the machine takes tens of microseconds to
//! run it again. The library here (`idle.c`), preloaded, sets the timer to a moment earlier, and
//! waits for the rest by looking at the clock.

use std::process::Command;

use crate::error::Error;

/// The variable that says how much earlier, ns.
pub const EARLY: &str = "THALWEG_EARLY_NS";
/// That which says in which file to note how late the kernel's timers are.
pub const LATE: &str = "THALWEG_LATE_FILE";
/// What the machine takes to run the kernel again, mostly.
#[cfg(target_arch = "x86_64")]
const EARLY_NS: u32 = 20_000;

/// Has the timers of a command's kernel expire when they are due. A variable that is set already
/// stays, so that it can be measured.
///
/// # Errors
/// [`Error::Process`] where the library cannot be handed over.
#[cfg(target_arch = "x86_64")]
pub fn in_time(command: &mut Command) -> Result<(), Error> {
    const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/idle.so"));
    if std::env::var_os(EARLY).is_none() {
        command.env(EARLY, EARLY_NS.to_string());
    }
    crate::preload::preload(command, c"thalweg-idle.so", LIBRARY)
}

/// User-mode Linux is for x86 alone.
///
/// # Errors
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub fn in_time(_command: &mut Command) -> Result<(), Error> {
    Ok(())
}
