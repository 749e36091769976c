//! The same path on the kernel's own links, on a path that the laboratory forwards, and in
//! user-mode Linux: goodput must agree.

use std::process::Command;

use crate::support::{THALWEG, privileged, skip};
use serde_json::Value;

/// Runs the scenario on a backend; its result.
fn run(backend: &str, scenario: &str, mode: &str) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    let output = Command::new(THALWEG)
        .args([
            "--json",
            "lab",
            "run",
            "--backend",
            backend,
            "--mode",
            mode,
            "--out",
        ])
        .arg(directory.path().join("out"))
        .arg(&file)
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{backend}: {words}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn median_mbits(result: &Value) -> f64 {
    result["scenarios"][0]["modes"][0]["summary"]["median_bps"]
        .as_f64()
        .unwrap()
        / 1e6
}

const BOTTLENECK: &str = r#"
name = "agree"
[path]
rate = "20mbit"
queue = "100kb"
[traffic]
connections = 3
duration = "2s"
"#;

#[test]
fn a_bottleneck_gives_the_same_goodput_on_every_backend() {
    if !privileged() {
        return;
    }
    let mut backends = vec!["host", "link"];
    if std::path::Path::new("/usr/bin/linux.uml").exists() {
        backends.push("uml");
    } else if !skip("no user-mode-linux") {
        return;
    }
    // What TCP makes of 20 Mbit/s: 1448 of 1514 bytes (1500 on the forwarded path, which has no
    // Ethernet), less the time in which it finds the rate. A busy machine takes from that, most
    // from user-mode Linux, of which one process is all of both hosts.
    for backend in backends {
        let result = run(backend, BOTTLENECK, "fixed:cubic");
        assert_eq!(result["environment"]["backend"]["name"], backend);
        let goodput = median_mbits(&result);
        let least = if backend == "uml" { 2.0 } else { 8.0 };
        assert!(
            (least..=19.4).contains(&goodput),
            "{backend}: {goodput} Mbit/s"
        );
    }
}

#[test]
fn a_kernel_without_netem_still_has_delay_by_a_forwarded_path() {
    if !privileged() {
        return;
    }
    let scenario = BOTTLENECK.replace("queue = ", "delay = \"20ms\"\nqueue = ");
    let result = run("link", &scenario, "fixed:cubic");
    let mode = &result["scenarios"][0]["modes"][0];
    let rtt_us = mode["connections"][0]["mean_rtt_us"].as_f64().unwrap();
    // Twice 20 ms, and at most a full queue of 100 kB at 20 Mbit/s: 40 ms.
    assert!((40_000.0..=81_000.0).contains(&rtt_us), "{rtt_us} us");
}

#[test]
fn timers_that_this_machine_does_not_have_are_refused_with_the_backends_that_do() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.toml");
    std::fs::write(&file, format!("{BOTTLENECK}[system]\ntimers = \"tick\"\n")).unwrap();
    for backend in ["host", "link"] {
        let output = Command::new(THALWEG)
            .args(["lab", "run", "--backend", backend])
            .arg(&file)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let words = String::from_utf8_lossy(&output.stderr);
        for word in [
            "agree: `timers = \"tick\"` in [system]",
            "--backend uml and --backend virtual can have it",
        ] {
            assert!(words.contains(word), "{words}");
        }
    }
}

const HOSTS: &str = r#"
name = "hosts"
[path]
queue = "50kb"
rate = "10mbit"
[traffic]
connections = 2
duration = "2s"
[[host]]
name = "slow"
[[host]]
name = "quick"
rate = "30mbit"
[[expect]]
mode = "fixed:cubic"
host = "quick"
statistic = "median"
at_least = "1mbit"
[[expect]]
mode = "fixed:cubic"
statistic = "of-best-per-host"
at_least = 1
at_most = 1
"#;

#[test]
fn several_hosts_have_their_own_paths_on_every_backend() {
    if !privileged() {
        return;
    }
    let mut backends = vec!["host", "link"];
    if std::path::Path::new("/usr/bin/linux.uml").exists() {
        backends.push("uml");
    } else if !skip("no user-mode-linux") {
        return;
    }
    for backend in backends {
        let result = run(backend, HOSTS, "fixed:cubic");
        let scenario = &result["scenarios"][0];
        assert_eq!(
            scenario["passed"], true,
            "{backend}: {}",
            scenario["checks"]
        );
        assert_eq!(scenario["best_fixed_by_host"]["slow"], "fixed:cubic");
        let hosts = &scenario["modes"][0]["summary"]["hosts"];
        let mbits = ["slow", "quick"].map(|host| hosts[host]["median_bps"].as_f64().unwrap() / 1e6);
        // As above less the headers; a busy machine makes them slower, but not alike.
        assert!(
            (1.0..=9.7).contains(&mbits[0]) && (mbits[0] * 1.2..=29.1).contains(&mbits[1]),
            "{backend}: {mbits:?} Mbit/s"
        );
    }
}
