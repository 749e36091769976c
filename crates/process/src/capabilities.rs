//! Capabilities of this process (linux/capability.h).

use std::io;

use nix::libc;

/// The bit of CAP_NET_BIND_SERVICE.
pub const NET_BIND_SERVICE: u32 = 10;
/// The bit of CAP_NET_ADMIN.
pub const NET_ADMIN: u32 = 12;
/// The bit of CAP_NET_RAW.
pub const NET_RAW: u32 = 13;
/// The bit of CAP_SYS_ADMIN.
pub const SYS_ADMIN: u32 = 21;

/// Whether a capability is in force.
pub fn is_in_force(bit: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective_mask(&status) & (1 << bit) != 0
}

/// Whether this process may make network namespaces, devices and rules.
pub fn may_administrate() -> bool {
    [NET_ADMIN, SYS_ADMIN].into_iter().all(is_in_force)
}

/// Has capabilities that this process is permitted outlive execve(2), which takes them from users other than root
/// (ambient capabilities, capabilities(7)). Async-signal-safe.
///
/// # Errors
/// One of them is not permitted.
pub fn keep_across_exec(bits: &[u32]) -> io::Result<()> {
    /// `_LINUX_CAPABILITY_VERSION_3`, and the calling thread.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    let checked = |result: i64| match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // Effective, permitted and inheritable bits, 32 of each; then the higher ones.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: the kernel reads the header and fills the two structures.
    checked(unsafe { libc::syscall(libc::SYS_capget, HEADER.as_ptr(), sets.as_mut_ptr()) })?;
    for bit in bits {
        sets[(bit / 32) as usize][2] |= 1 << (bit % 32);
    }
    // SAFETY: the kernel reads both.
    checked(unsafe { libc::syscall(libc::SYS_capset, HEADER.as_ptr(), sets.as_ptr()) })?;
    bits.iter().try_for_each(|&bit| {
        // SAFETY: prctl(2) takes integers.
        let raised = unsafe {
            libc::prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_RAISE,
                libc::c_ulong::from(bit),
                0,
                0,
            )
        };
        checked(raised.into())
    })
}

fn effective_mask(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_read_from_the_effective_set() {
        let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000201000\n";
        assert_eq!(effective_mask(status), (1 << NET_ADMIN) | (1 << SYS_ADMIN));
        assert_eq!(effective_mask(""), 0);
    }
}
