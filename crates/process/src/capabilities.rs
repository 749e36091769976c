//! Capabilities of this process (linux/capability.h).

use std::io;

use rustix::process::Pid;
use rustix::thread::{capabilities, configure_capability_in_ambient_set, set_capabilities};

pub use rustix::thread::CapabilitySet;

/// Whether capabilities are in force.
pub fn is_in_force(wanted: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

/// Whether a process has, or may raise, one of these capabilities at least.
pub fn may_raise_any(pid: u32, wanted: CapabilitySet) -> bool {
    let sets = Pid::from_raw(pid as i32).map(|pid| capabilities(Some(pid)));
    matches!(sets, Some(Ok(sets)) if sets.permitted.intersects(wanted))
}

/// Whether this process may make network namespaces, devices and rules.
pub fn may_administrate() -> bool {
    is_in_force(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN)
}

/// Has capabilities that this process is permitted outlive execve(2), which takes them from users other than root
/// (ambient capabilities, capabilities(7)). Async-signal-safe.
///
/// # Errors
/// One of them is not permitted.
pub fn keep_across_exec(kept: CapabilitySet) -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= kept;
    set_capabilities(None, sets)?;
    for capability in kept.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}
