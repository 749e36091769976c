//! Capabilities of this process (linux/capability.h).

/// The bit of CAP_NET_ADMIN.
pub const NET_ADMIN: u32 = 12;
/// The bit of CAP_SYS_ADMIN.
pub const SYS_ADMIN: u32 = 21;

/// Whether a capability is in force.
pub fn has(bit: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective(&status) & (1 << bit) != 0
}

/// Whether this process may make network namespaces, devices and rules.
pub fn may_administrate() -> bool {
    [NET_ADMIN, SYS_ADMIN].into_iter().all(has)
}

fn effective(status: &str) -> u64 {
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
        assert_eq!(effective(status), (1 << NET_ADMIN) | (1 << SYS_ADMIN));
        assert_eq!(effective(""), 0);
    }
}
