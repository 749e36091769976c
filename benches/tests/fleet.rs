//! `make fleet-demo`: three real agents, a real server, and a new agent that begins with what they know.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../../tests/privileged.rs"]
mod privileged;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use thalweg_process::owned::PREFIX;

fn thalweg() -> PathBuf {
    let bench = Path::new(env!("CARGO_BIN_EXE_thalweg-bench"));
    let thalweg = bench.with_file_name("thalweg");
    let exists = thalweg.exists();
    assert!(
        exists,
        "no {}: cargo build -p thalweg-cli",
        thalweg.display()
    );
    thalweg
}

fn demo() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg-bench"));
    command
        .arg("--binary")
        .arg(thalweg())
        .arg("fleet-demo")
        .arg("--json");
    command.env_remove("RUST_BACKTRACE").stdin(Stdio::null());
    command
}

/// Whether it can run here; if not, it is skipped.
fn can_run() -> bool {
    let missing = thalweg_lab::host::missing_requirements();
    missing.is_empty() || privileged::skip(&missing.join("; "))
}

/// Namespaces of a process.
fn left_by(pid: u32) -> Vec<String> {
    let Ok(names) = std::fs::read_dir("/run/netns") else {
        return Vec::new();
    };
    let own = format!("{PREFIX}{pid}-");
    let names = names.filter_map(|it| it.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&own)).collect()
}

#[test]
#[ignore = "slow: a minute and a half"]
fn a_new_agent_begins_with_what_three_others_know() {
    if !can_run() {
        return;
    }
    let begun = Instant::now();
    let child = demo()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for learned in report["learned"].as_array().unwrap() {
        // Well beyond half a bit, and each agent by itself.
        assert!(
            learned["difference_bits"].as_f64().unwrap() < -0.5,
            "{learned}"
        );
        assert_eq!(learned["network"], report["learned"][0]["network"]);
    }
    let [new, alone] = &report["begun"].as_array().unwrap()[..] else {
        panic!("{report}");
    };
    assert_eq!(
        (&new["first_arm"], &new["first_level"]),
        (&"bbr".into(), &"fleet-prefix".into())
    );
    assert_eq!(
        (&alone["first_arm"], &alone["first_level"]),
        (&"cubic".into(), &"host".into())
    );
    let share = |it: &Value| it["better"].as_f64().unwrap() / it["connections"].as_f64().unwrap();
    assert!(share(new) >= 0.85 && share(alone) == 0.0, "{report}");
    assert!(
        begun.elapsed() < Duration::from_secs(180),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(left_by(pid), Vec::<String>::new());
}

#[test]
#[ignore = "slow: half a minute"]
fn a_signal_leaves_nothing_behind() {
    if !can_run() {
        return;
    }
    let mut child = demo()
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let deadline = Instant::now() + Duration::from_secs(60);
    // Five places of two namespaces: it learns.
    while left_by(pid).len() < 10 {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
    kill(Pid::from_raw(pid as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(left_by(pid), Vec::<String>::new());
    let pins = std::fs::read_dir("/sys/fs/bpf").unwrap();
    let own = format!("thalweg-bench-{pid}-");
    let left = pins.filter(|it| {
        it.as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with(&own)
    });
    assert_eq!(left.count(), 0);
}
