//! Commands that earlier versions had: what to use instead.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use thalweg_terminal::Failure;

/// Any arguments of a command that is no more here.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// The message shows them as they were given.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _words: Vec<OsString>,
}

const INSTEAD_OF_LIMIT: &str = "\
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

/// Says what `thalweg limit` was replaced by.
///
/// # Errors
/// Always.
pub fn report_limit() -> Result<()> {
    Err(Failure::Usage(INSTEAD_OF_LIMIT.to_owned()).into())
}

/// Says the name of a command that moved to `thalweg-lab`.
///
/// # Errors
/// Always.
pub fn report_laboratory(name: &str) -> Result<()> {
    // As they were given: the parser takes a `--` away.
    let words = std::env::args_os().skip_while(|word| word != name).skip(1);
    let words: String = words
        .map(|word| format!(" {}", word.to_string_lossy()))
        .collect();
    let (old, new) = match name {
        "lab" => (format!("lab{words}"), words),
        _ => (format!("{name}{words}"), format!(" {name}{words}")),
    };
    let message = format!(
        "`thalweg {old}` is now `thalweg-lab{new}`, of the package thalweg-lab; nothing was done"
    );
    Err(Failure::Usage(message).into())
}
