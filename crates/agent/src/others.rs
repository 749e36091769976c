//! Sockops programs of others, which may replace the learner's settings or clear its callbacks.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys;
use libbpf_rs::query::ProgInfoIter;
use thalweg_control::{inventory, privileges};

/// Most inspected cgroups, the agent's own first.
const CGROUPS: usize = 1000;

/// Names of Thalweg's programs, which keep each other's flags.
const OWN: [&str; 5] = [
    "buffers_sockops",
    "learn_sockops",
    "policy_sockops",
    "timers_sockops",
    "idle_sockops",
];

/// Sockops programs of others on a cgroup, its ancestors and its descendants, in words. Programs of
/// another agent are among them.
pub(crate) fn sockops_programs(cgroup: &Path, pin: &Path) -> Vec<String> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    let mut note = |cgroup: &Path, flags| {
        for id in attached(cgroup, flags) {
            if found.iter().all(|(known, _)| *known != id) {
                found.push((id, cgroup.to_owned()));
            }
        }
    };
    let mut left = vec![cgroup.to_owned()];
    for _ in 0..CGROUPS {
        let Some(directory) = left.pop() else { break };
        note(&directory, 0);
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        left.extend(
            entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
    }
    note(cgroup, libbpf_sys::BPF_F_QUERY_EFFECTIVE);
    if found.is_empty() {
        return Vec::new();
    }
    let own = inventory::running_programs(pin, false, &mut Vec::new());
    let names: Vec<(u32, String)> = privileges::with_raised(|| {
        ProgInfoIter::default()
            .map(|program| (program.id, program.name.to_string_lossy().into_owned()))
            .collect()
    });
    found
        .into_iter()
        // A program without a name is gone by now. Or names are hidden (CAP_SYS_ADMIN), and it may
        // be one of Thalweg's.
        .filter_map(|(id, cgroup)| {
            let (_, name) = names.iter().find(|(known, _)| *known == id)?;
            Some((id, name.as_str(), cgroup))
        })
        .filter(|(id, name, _)| {
            !OWN.contains(name) || own.iter().all(|program| program.id != *id)
        })
        .map(|(id, name, cgroup)| format!("{name} (number {id}) on {}", cgroup.display()))
        .collect()
}

/// Ids of the sockops programs on a cgroup; empty if the kernel refuses.
fn attached(cgroup: &Path, flags: u32) -> Vec<u32> {
    let Ok(cgroup) = File::open(cgroup) else {
        return Vec::new();
    };
    // The kernel allows 64 programs per cgroup (BPF_CGROUP_MAX_PROGS), plus those of ancestors.
    let mut ids = [0u32; 256];
    let mut count = ids.len() as u32;
    let mut attach_flags = 0u32;
    // SAFETY: the arrays and counts live for the whole call; the kernel writes `count` numbers at
    // most.
    let failed = unsafe {
        libbpf_sys::bpf_prog_query(
            cgroup.as_raw_fd(),
            libbpf_sys::BPF_CGROUP_SOCK_OPS,
            flags,
            &raw mut attach_flags,
            ids.as_mut_ptr(),
            &raw mut count,
        )
    };
    if failed != 0 {
        return Vec::new();
    }
    ids[..(count as usize).min(ids.len())].to_vec()
}
