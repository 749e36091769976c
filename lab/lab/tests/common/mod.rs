//! Common parts of the privileged tests.
#![allow(dead_code)]

#[path = "../../../../tests/privileged.rs"]
mod privileged;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether the machine can run the test; if not, it is skipped.
pub fn possible() -> bool {
    let missing = thalweg_lab::host::missing_requirements();
    missing.is_empty() || privileged::skip(&missing.join("; "))
}

/// Everything on the machine whose name has this text: namespaces, cgroups, run directories, links,
/// mounts.
pub fn leftovers(text: &str) -> Vec<String> {
    let mut places = vec![PathBuf::from("/run/netns"), PathBuf::from("/run")];
    places.extend(thalweg_lab::host::cgroup_mount().ok());
    let mut found: Vec<String> = places.iter().flat_map(|place| names(place, text)).collect();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    found.extend(
        mounts
            .lines()
            .filter(|line| line.contains(text))
            .map(str::to_owned),
    );
    let links = Command::new("ip").args(["-o", "link"]).output().unwrap();
    let links = String::from_utf8(links.stdout).unwrap();
    // The links exist only in the namespaces.
    found.extend(
        links
            .lines()
            .filter(|line| line.contains("link0"))
            .map(str::to_owned),
    );
    found
}

fn names(directory: &Path, text: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .map(|entry| entry.unwrap().path().display().to_string())
        .filter(|path| path.contains(text))
        .collect()
}

/// The part of a name that tells the process.
pub fn of_process(pid: u32) -> String {
    format!("thalweg-lab-{pid}-")
}

/// The default list of congestion controls for unprivileged programs.
pub fn allowed() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap()
}
