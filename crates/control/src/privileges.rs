//! Privileges of this process: capabilities that it needs, drops, and raises for a moment.
//!
//! The agent keeps three capabilities effective, and two more permitted, which are raised around
//! the few steps that need them. `docs/reference/security.md` has the table.

use rustix::thread::{self, CapabilitySet, CapabilitySets};

use crate::error::{Context, Error, Result};

/// Effective as long as the agent runs. They are for maps, links and programs; for congestion
/// controls reserved for administrators; and for programs that read the kernel's structures.
const IN_FORCE: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::PERFMON);
/// Permitted only: for network namespaces of others, and for kernel objects by id.
const AT_HAND: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_PTRACE);

/// Names of the capabilities for loading and attaching programs that are not effective.
/// CAP_SYS_ADMIN substitutes for CAP_BPF and CAP_PERFMON, as in the kernel.
///
/// # Errors
/// The kernel's.
pub fn missing_capabilities() -> Result<Vec<&'static str>> {
    let have = thread::capabilities(None).context("asking for capabilities")?;
    Ok(missing_of(have.effective))
}

fn missing_of(mut have: CapabilitySet) -> Vec<&'static str> {
    if have.contains(CapabilitySet::SYS_ADMIN) {
        have |= CapabilitySet::BPF | CapabilitySet::PERFMON;
    }
    lacking_capabilities(
        have,
        &[
            (CapabilitySet::BPF, "CAP_BPF"),
            (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
            (CapabilitySet::PERFMON, "CAP_PERFMON"),
        ],
    )
}

/// Names of the capabilities for entering other network namespaces that are not permitted.
///
/// # Errors
/// The kernel's.
pub fn missing_for_namespaces() -> Result<Vec<&'static str>> {
    let have = thread::capabilities(None).context("asking for capabilities")?;
    Ok(lacking_capabilities(
        have.permitted,
        &[
            (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
            (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
        ],
    ))
}

fn lacking_capabilities(
    have: CapabilitySet,
    needed: &[(CapabilitySet, &'static str)],
) -> Vec<&'static str> {
    needed
        .iter()
        .filter(|(capability, _)| !have.contains(*capability))
        .map(|(_, name)| *name)
        .collect()
}

/// Fails unless this process may load programs and attach them.
pub fn check_privileges() -> Result<()> {
    let missing = missing_capabilities()?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::MissingPrivilege(missing.join(", ")))
}

/// Drops for good the privileges that the agent does not use once it has its directories and
/// socket. This affects the calling thread and threads that it starts later.
///
/// # Errors
/// The kernel's.
pub fn give_up() -> Result<()> {
    let give_up = || {
        // No program that this process runs can regain the dropped privileges.
        thread::set_no_new_privs(true)?;
        let have = thread::capabilities(None)?;
        thread::set_capabilities(None, kept_capabilities(have.permitted))
    };
    give_up().context("giving up capabilities")
}

fn kept_capabilities(permitted: CapabilitySet) -> CapabilitySets {
    let effective = if permitted.contains(IN_FORCE) {
        IN_FORCE
    } else {
        // CAP_SYS_ADMIN substitutes for the others.
        IN_FORCE | CapabilitySet::SYS_ADMIN
    };
    CapabilitySets {
        effective: permitted & effective,
        permitted: permitted & (IN_FORCE | AT_HAND),
        inheritable: CapabilitySet::empty(),
    }
}

/// Runs a function with the permitted capabilities effective, on the calling thread. If they are
/// missing, the function still runs, and the kernel refuses what it must.
pub fn with_raised<T>(work: impl FnOnce() -> T) -> T {
    let Ok(before) = thread::capabilities(None) else {
        return work();
    };
    let raised = CapabilitySets {
        effective: before.effective | (before.permitted & AT_HAND),
        ..before
    };
    if raised == before || thread::set_capabilities(None, raised).is_err() {
        return work();
    }
    let _lower = Lower(before);
    work()
}

/// Restores a thread's capabilities, also when the work panics.
struct Lower(CapabilitySets);

impl Drop for Lower {
    fn drop(&mut self) {
        // A thread can always drop effective capabilities.
        let _ = thread::set_capabilities(None, self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_of_old_kernels_stands_in_for_two() {
        assert!(missing_of(IN_FORCE).is_empty());
        assert!(missing_of(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN).is_empty());
        assert_eq!(missing_of(CapabilitySet::SYS_ADMIN), ["CAP_NET_ADMIN"]);
        assert_eq!(
            missing_of(CapabilitySet::NET_ADMIN),
            ["CAP_BPF", "CAP_PERFMON"]
        );
    }

    #[test]
    fn three_stay_in_force_and_two_at_hand() {
        let root = kept_capabilities(CapabilitySet::all());
        assert_eq!(root.effective, IN_FORCE);
        assert_eq!(root.permitted, IN_FORCE | AT_HAND);
        let three = kept_capabilities(IN_FORCE);
        assert_eq!((three.effective, three.permitted), (IN_FORCE, IN_FORCE));
        let old = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
        assert_eq!(
            (
                kept_capabilities(old).effective,
                kept_capabilities(old).permitted
            ),
            (old, old)
        );
    }

    #[test]
    fn what_is_at_hand_is_in_force_only_for_the_work() {
        let worker = std::thread::spawn(|| {
            give_up().unwrap();
            let have = || thread::capabilities(None).unwrap();
            let before = have();
            let during = with_raised(have);
            assert_eq!(during.effective, before.permitted);
            assert_eq!(have(), before);
            let panicked = std::panic::catch_unwind(|| with_raised(|| panic!("on purpose")));
            assert!(panicked.is_err());
            assert_eq!(have(), before);
        });
        worker.join().unwrap();
    }
}
