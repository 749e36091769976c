//! Only `fq` obeys departure times: checks that it is on the devices where packets leave.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Devices by which the cgroup's packets may leave have another queueing discipline.
#[derive(Debug, thiserror::Error)]
#[error(
    "--edt needs the queueing discipline fq where packets leave, and it is not on {devices}; set \
     it (tc qdisc replace dev NAME root fq; the kernel must have sch_fq), name the devices that \
     matter with --device, or leave out --edt: TCP is paced without it too"
)]
pub struct WithoutFq {
    devices: String,
}

#[derive(Deserialize)]
struct Qdisc {
    kind: String,
    dev: String,
    #[serde(default)]
    root: bool,
}

/// Fails unless all devices that are up, or the named ones, have fq. Checks each network namespace
/// of the cgroup's processes, or the caller's if it has none.
pub fn check(cgroup: &Path, devices: &[String]) -> Result<()> {
    let mut without = Vec::new();
    let mut named = devices.to_vec();
    for namespace in namespaces(cgroup) {
        let found = within(&namespace)?;
        named.retain(|name| !found.iter().any(|(device, _)| device == name));
        without.extend(
            found
                .into_iter()
                .filter(|(device, _)| devices.is_empty() || devices.contains(device))
                .filter(|(_, has_fq)| !has_fq)
                .map(|(device, _)| device),
        );
    }
    if let Some(name) = named.first() {
        bail!("--device: there is no device {name} that is up");
    }
    if without.is_empty() {
        return Ok(());
    }
    without.sort();
    without.dedup();
    Err(WithoutFq {
        devices: without.join(", "),
    }
    .into())
}

/// One file per network namespace of the cgroup's processes.
fn namespaces(cgroup: &Path) -> Vec<PathBuf> {
    let mut found = HashMap::new();
    for pid in super::Subtree::new(cgroup).processes() {
        let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
        if let Ok(metadata) = fs::metadata(&path) {
            found.entry(metadata.ino()).or_insert(path);
        }
    }
    if found.is_empty() {
        return vec!["/proc/self/ns/net".into()];
    }
    found.into_values().collect()
}

/// The devices of a namespace that are up, except loopback, and whether each has fq.
fn within(namespace: &Path) -> Result<Vec<(String, bool)>> {
    let file = File::open(namespace).with_context(|| format!("opening {}", namespace.display()))?;
    // A separate thread, so that this one stays in its namespace.
    let worker = std::thread::spawn(move || {
        nix::sched::setns(file.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET)
            .context("entering a network namespace of the cgroup")?;
        let links: Vec<Link> = ask("ip", &["-j", "link", "show", "up"])?;
        let qdiscs: Vec<Qdisc> = ask("tc", &["-j", "qdisc", "show"])?;
        Ok(links
            .into_iter()
            .filter(|link| {
                !link.ifname.is_empty() && !link.flags.iter().any(|flag| flag == "LOOPBACK")
            })
            .map(|link| {
                let has_fq = obeys(&link.ifname, &qdiscs);
                (link.ifname, has_fq)
            })
            .collect())
    });
    worker
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// `ip` writes an empty object for each device that its filter excludes.
#[derive(Deserialize)]
struct Link {
    #[serde(default)]
    ifname: String,
    #[serde(default)]
    flags: Vec<String>,
}

/// Whether fq is the device's root qdisc, or below each queue of a `mq` root.
fn obeys(device: &str, qdiscs: &[Qdisc]) -> bool {
    let own = || qdiscs.iter().filter(|qdisc| qdisc.dev == device);
    match own().find(|qdisc| qdisc.root) {
        Some(root) if root.kind == "mq" => {
            let mut leaves = own().filter(|qdisc| !qdisc.root).peekable();
            leaves.peek().is_some() && leaves.all(|leaf| leaf.kind == "fq")
        }
        Some(root) => root.kind == "fq",
        None => false,
    }
}

fn ask<T: serde::de::DeserializeOwned>(program: &str, arguments: &[&str]) -> Result<T> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {program} (is iproute2 installed?)"))?;
    if !output.status.success() {
        bail!(
            "{program} {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("the answer of {program}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qdiscs(text: &str) -> Vec<Qdisc> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn fq_is_found_as_root_and_below_mq() {
        let found = qdiscs(
            r#"[{"kind":"fq","handle":"8001:","dev":"a","root":true,"options":{}},
                {"kind":"mq","handle":"0:","dev":"b","root":true},
                {"kind":"fq","handle":"0:","dev":"b","parent":":1"},
                {"kind":"fq","handle":"0:","dev":"b","parent":":2"},
                {"kind":"mq","handle":"0:","dev":"c","root":true},
                {"kind":"fq","handle":"0:","dev":"c","parent":":1"},
                {"kind":"fq_codel","handle":"0:","dev":"c","parent":":2"},
                {"kind":"fq_codel","handle":"0:","dev":"d","root":true}]"#,
        );
        let has = |device| obeys(device, &found);
        assert_eq!(
            ["a", "b", "c", "d", "e"].map(has),
            [true, true, false, false, false]
        );
    }
}
