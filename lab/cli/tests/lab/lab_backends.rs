//! The same path on the kernel's own links, on a path that the laboratory forwards, and in
//! user-mode Linux: goodput must agree.

use std::process::Command;

use serde_json::Value;
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{laboratory, privileged, skip};

/// Runs the scenario on a backend; its result.
fn run(backend: &str, scenario: &str, mode: &str) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    let output = Command::new(laboratory())
        .args([
            "--json",
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

/// Whether user-mode Linux is available. One process is both hosts there, in real time.
fn user_mode() -> bool {
    std::path::Path::new("/usr/bin/linux.uml").exists() || skip("no user-mode-linux")
}

/// Whether Mbit/s of data match TCP's share of a link's rate: 1448 of 1514 bytes, or of 1500 on the
/// forwarded path, which has no Ethernet. TCP loses time while it finds the rate, and the bucket
/// adds a little.
fn carries(backend: &str, mbits: f64, rate: f64) -> bool {
    let packet = if backend == "link" { 1500.0 } else { 1514.0 };
    (0.98..1.002).contains(&(mbits / (rate * 1448.0 / packet)))
}

pub fn a_bottleneck_gives_the_same_goodput_on_every_backend() {
    for backend in ["host", "link"] {
        let result = run(backend, BOTTLENECK, "fixed:cubic");
        assert_eq!(result["environment"]["backend"]["name"], backend);
        let goodput = median_mbits(&result);
        println!("{backend}: {goodput} Mbit/s");
        assert!(carries(backend, goodput, 20.0), "{backend}: {goodput}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_bottleneck_gives_no_more_in_user_mode_linux() {
    if !privileged() || !user_mode() {
        return;
    }
    let result = run("uml", BOTTLENECK, "fixed:cubic");
    assert_eq!(result["environment"]["backend"]["name"], "uml");
    let goodput = median_mbits(&result);
    // A busy machine reduces it, and nothing increases it.
    assert!((2.0..=19.4).contains(&goodput), "{goodput} Mbit/s");
}

fn a_kernel_without_netem_still_has_delay_by_a_forwarded_path() {
    let scenario = BOTTLENECK.replace("queue = ", "delay = \"20ms\"\nqueue = ");
    let result = run("link", &scenario, "fixed:cubic");
    let mode = &result["scenarios"][0]["modes"][0];
    let rtt_us = mode["connections"][0]["mean_rtt_us"].as_f64().unwrap();
    println!("{rtt_us} us");
    // Twice 20 ms, plus at most a full queue of 100 kB at 20 Mbit/s: 40 ms.
    assert!((40_000.0..=81_000.0).contains(&rtt_us), "{rtt_us} us");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn timers_that_this_machine_does_not_have_are_refused_with_the_backends_that_do() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.toml");
    std::fs::write(&file, format!("{BOTTLENECK}[system]\ntimers = \"tick\"\n")).unwrap();
    for backend in ["host", "link"] {
        let output = Command::new(laboratory())
            .args(["run", "--backend", backend])
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

/// The median goodput to each host, in Mbit/s.
fn to_each_host(backend: &str) -> [f64; 2] {
    let result = run(backend, HOSTS, "fixed:cubic");
    let scenario = &result["scenarios"][0];
    assert_eq!(
        scenario["passed"], true,
        "{backend}: {}",
        scenario["checks"]
    );
    assert_eq!(scenario["best_fixed_by_host"]["slow"], "fixed:cubic");
    let hosts = &scenario["modes"][0]["summary"]["hosts"];
    ["slow", "quick"].map(|host| hosts[host]["median_bps"].as_f64().unwrap() / 1e6)
}

fn several_hosts_have_their_own_paths_on_every_backend() {
    for backend in ["host", "link"] {
        let [slow, quick] = to_each_host(backend);
        println!("{backend}: {slow} {quick} Mbit/s");
        assert!(carries(backend, slow, 10.0), "{backend}: {slow}");
        assert!(carries(backend, quick, 30.0), "{backend}: {quick}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn several_hosts_have_their_own_paths_in_user_mode_linux() {
    if !privileged() || !user_mode() {
        return;
    }
    let [slow, quick] = to_each_host("uml");
    // A busy machine makes them slower, but not equal.
    assert!(
        (1.0..=9.7).contains(&slow) && (slow * 1.2..=29.1).contains(&quick),
        "{slow} {quick} Mbit/s"
    );
}

in_virtual_time!(
    #[ignore = "slow: more cases in virtual time"]
    [],
    a_kernel_without_netem_still_has_delay_by_a_forwarded_path,
    several_hosts_have_their_own_paths_on_every_backend,
);
