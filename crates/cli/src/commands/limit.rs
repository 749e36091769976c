//! `thalweg limit`, which earlier versions had: what to use instead.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;

use crate::failure::Failure;

/// Any arguments of the removed command.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// Ignored.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<OsString>,
}

const INSTEAD: &str = "\
`thalweg limit` was removed. Instead:
- tc and nftables limit a cgroup, here system.slice/backup.service on eth0, to 100 Mbit/s:
    tc qdisc replace dev eth0 root handle 1: htb
    tc class replace dev eth0 parent 1: classid 1:10 htb rate 100mbit
    nft add table inet shape
    nft 'add chain inet shape out { type filter hook output priority mangle; }'
    nft 'add rule inet shape out socket cgroupv2 level 2 \"system.slice/backup.service\" meta priority set 1:10'
- Departure times (EDT) with fq bound each connection: max_pacing_rate in a policy
  (policies/pacing-cap.toml), or for all of a device:
    tc qdisc replace dev eth0 root fq maxrate 100mbit
- Cilium's bandwidth manager (bandwidthManager.enabled=true) limits pods by EDT. In a pod's metadata:
    annotations: { kubernetes.io/egress-bandwidth: \"100M\" }
A limit that an earlier version has set is in force until it is taken off:
    rm -r /sys/fs/bpf/thalweg/limits     the limits alone (below `paths.pin` where that is set)
    thalweg detach                       the learner and the limits
Open connections keep the pacing that it gave them until they close.";

/// Says what to use instead.
///
/// # Errors
/// Always.
pub fn run(_: &Options) -> Result<()> {
    Err(Failure::Usage(INSTEAD.to_owned()).into())
}
