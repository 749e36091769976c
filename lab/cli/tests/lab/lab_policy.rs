//! `thalweg-lab run --mode policy:NAME`: a policy in force in the laboratory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{laboratory, manifest_path, privileged, skip_unpackaged, wait_for};

/// The packets of policies/clamp.toml.
const CLAMP: u64 = 100;
/// Each of these runs takes much less.
const LIMIT: Duration = Duration::from_secs(120);

/// 5 large flows, 0.8 MB with the clamp, at a queue of 1.5 MB. Reno, because it always starts by
/// overrunning the queue; Linux's cubic notices the queue and may not.
fn scenario(duration: &str) -> String {
    format!(
        r#"
name = "clamped"
[path]
rate = "200mbit"
queue = "1500kb"
family = "ipv6"
[traffic]
kind = "incast"
senders = 1
rpcs = 4
connections = 1
duration = "{duration}"
[[policy]]
name = "clamp"
file = "clamp.toml"
[system]
default_cc = "reno"
"#
    )
}

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new(duration: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let policy = manifest_path("policies/clamp.toml");
        fs::copy(policy, directory.path().join("clamp.toml")).unwrap();
        fs::write(directory.path().join("s.toml"), scenario(duration)).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&self, backend: &str, modes: &[&str]) -> Child {
        let mut command = Command::new(laboratory());
        command.args(["run", "--backend", backend]);
        for mode in modes {
            command.args(["--mode", mode]);
        }
        command
            .arg("--out")
            .arg(self.path("out"))
            .arg(self.path("s.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// A mode in `results.json`.
    fn mode(&self, name: &str) -> Value {
        let text = fs::read_to_string(self.path("out/results.json")).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let modes = document["scenarios"][0]["modes"].as_array().unwrap();
        modes
            .iter()
            .find(|mode| mode["mode"] == name)
            .unwrap()
            .clone()
    }

    /// Flows that matched, and settings that failed, by `policy show` at the end.
    fn matched_and_failed(&self) -> (u64, u64) {
        let text = fs::read_to_string(self.path("out/policy-clamp.json")).unwrap();
        let shown: Value = serde_json::from_str(&text).unwrap();
        let rules = shown["rules"].as_array().unwrap();
        let sum = |key: &str| rules.iter().map(|rule| rule[key].as_u64().unwrap()).sum();
        (sum("matched"), sum("failed"))
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}

/// Names in a directory that have a run's mark.
fn of_run(directory: &Path, child: u32) -> Vec<String> {
    let mark = format!("thalweg-lab-{child}-");
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains(&mark))
        .collect()
}

/// The congestion windows, in packets, of the connections in a namespace (`INET_DIAG`).
fn windows(namespace: &str) -> Vec<u64> {
    let output = Command::new("ip")
        .args(["netns", "exec", namespace, "ss", "-Htin"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace()
        .filter_map(|word| word.strip_prefix("cwnd:")?.parse().ok())
        .collect()
}

fn retransmission_share(mode: &Value) -> f64 {
    let sum = |key: &str| -> f64 {
        let connections = mode["connections"].as_array().unwrap();
        connections
            .iter()
            .map(|one| one[key].as_f64().unwrap())
            .sum()
    };
    sum("retransmits") / sum("sent_segments")
}

fn the_clamp_is_in_force_and_fewer_segments_are_sent_again() {
    let place = Place::new("2s");
    let mut child = place.start("host", &["baseline", "policy:clamp"]);
    let (mut free, mut clamped) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "no end");
        for name in of_run(Path::new("/run/netns"), child.id()) {
            if name.ends_with("policy-clamp-client") {
                clamped.extend(windows(&name));
            } else if name.ends_with("baseline-client") {
                free.extend(windows(&name));
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");

    let most = |seen: &[u64]| seen.iter().copied().max();
    assert!(clamped.len() > 10, "{clamped:?}");
    assert!(most(&clamped) <= Some(CLAMP), "{:?}", most(&clamped));
    // Both windows could be larger: without the clamp they are.
    assert!(most(&free) > Some(CLAMP), "{:?}", most(&free));

    // 4 + 2 + 1 connections, both ends; listeners have no peer.
    assert_eq!(place.matched_and_failed(), (14, 0));

    let (baseline, clamp) = (place.mode("baseline"), place.mode("policy:clamp"));
    let before = retransmission_share(&baseline);
    let after = retransmission_share(&clamp);
    // Slow start overruns the queue once, in two seconds; all clamped windows fit into it.
    assert!(before > 5e-3 && after < 1e-3, "{before} {after}");
    // The bottleneck is still full: 1428 of 1514 bytes are data, 188.6 Mbit/s, except while
    // connections open.
    let total = |mode: &Value| mode["summary"]["statistics"]["total"].as_f64().unwrap() / 1e6;
    println!(
        "{} windows, {:?} and {:?} at most",
        clamped.len(),
        most(&clamped),
        most(&free)
    );
    println!("{before} and {after} again, {} Mbit/s", total(&clamp));
    assert!(
        (180.0..189.2).contains(&total(&clamp)),
        "{} Mbit/s",
        total(&clamp)
    );
    for mode in [&baseline, &clamp] {
        for connection in mode["connections"].as_array().unwrap() {
            assert_eq!(connection["error"], Value::Null);
            assert_eq!(connection["arm"], "reno");
        }
    }
}

#[test]
fn user_mode_linux_finds_the_policy_beside_the_scenario() {
    if !Path::new("/usr/bin/linux.uml").exists() {
        skip_unpackaged("no user-mode-linux");
        return;
    }
    let place = Place::new("1s");
    let mut child = place.start("uml", &["policy:clamp"]);
    let status = wait_until(&mut child);
    assert!(status.success(), "{status}");
    assert_eq!(place.matched_and_failed(), (14, 0));
}

fn wait_until(child: &mut Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            kill(pid(child), Signal::SIGKILL).unwrap();
            panic!("no end: {:?}", child.wait());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The cgroups, by id, to which programs are attached by links.
fn attached() -> Vec<u64> {
    LinkInfoIter::default()
        .filter_map(|link| match link.info {
            LinkTypeInfo::Cgroup(cgroup) => Some(cgroup.cgroup_id),
            _ => None,
        })
        .collect()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_signal_takes_the_policy_away() {
    if !privileged() {
        return;
    }
    let place = Place::new("60s");
    let mut child = place.start("host", &["policy:clamp"]);
    let raw = place.path("out/raw/policy-clamp-0000.json");
    wait_for("the policy's flows", || raw.exists().then_some(()));
    let mount = thalweg_lab::host::cgroup_mount().unwrap();
    let cgroups = of_run(&mount, child.id());
    let ids: Vec<u64> = cgroups
        .iter()
        .map(|name| mount.join(name).metadata().unwrap().ino())
        .collect();
    assert_eq!(ids.len(), 1, "{cgroups:?}");
    assert!(attached().contains(&ids[0]), "nothing is in force");

    kill(pid(&child), Signal::SIGINT).unwrap();
    assert!(!wait_until(&mut child).success());
    for directory in [Path::new("/run/netns"), Path::new("/run"), &mount] {
        assert_eq!(of_run(directory, child.id()), Vec::<String>::new());
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&format!("thalweg-lab-{}-", child.id())));
    // The kernel frees links with a delay.
    wait_for("the link's end", || {
        (!attached().contains(&ids[0])).then_some(())
    });
}

in_virtual_time!(
    #[ignore = "slow: a minute of a processor"]
    ["policies/clamp.toml"],
    the_clamp_is_in_force_and_fewer_segments_are_sent_again,
);
