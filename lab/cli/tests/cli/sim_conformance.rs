//! The simulator's DCTCP against Linux's: the same eight connections through the same marking
//! bottleneck of 1 Gbit/s (`dctcp-1g.toml` among the scenarios of both).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use thalweg_testbed::{laboratory, skip_unpackaged};

/// Payload of a frame of 1514 bytes: less 14 of Ethernet, 20 of IP, 32 of TCP with time stamps.
const PAYLOAD: f64 = 1448.0 / 1514.0;

/// Whether a kernel with simulated time is available; no machine is too busy for it.
fn available() -> bool {
    let needed = ["/usr/bin/linux.uml", "/usr/src/linux-source-6.1.tar.xz"];
    let Some(absent) = needed.iter().find(|file| !Path::new(file).exists()) else {
        return true;
    };
    let why = format!("no {absent} (scripts/setup.sh --kernel)");
    skip_unpackaged(&why)
}

fn scenario(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../scenarios")
        .join(name)
}

/// Runs the command and reads its document.
fn json(arguments: &[&str], file: &str) -> Value {
    let output = Command::new(laboratory())
        .args(arguments)
        .arg(scenario(file))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
#[ignore = "builds a kernel: some ten minutes"]
fn dctcp_fares_as_on_linux() {
    if !available() {
        return;
    }
    let built = Command::new(laboratory())
        .args(["build-kernel"])
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let out = tempfile::tempdir().unwrap();
    let out = out.path().to_str().unwrap();
    let linux = json(
        &[
            "--json",
            "run",
            "--backend",
            "virtual",
            "--mode",
            "fixed:dctcp",
            "--out",
            out,
        ],
        "lab/dctcp-1g.toml",
    );
    let simulated = json(
        &["--json", "sim", "run", "--cc", "dctcp"],
        "sim/dctcp-1g.toml",
    );

    let summary = &linux["scenarios"][0]["modes"][0]["summary"];
    let number = |value: &Value| value.as_f64().unwrap();
    let newcomers = number(&summary["statistics"]["total"]);
    let incumbents = number(&summary["classes"]["incumbent"]["total"]);
    let goodput_linux = newcomers + incumbents;
    let ours = &simulated["scenarios"][0]["controllers"][0];
    let utilisation = number(&ours["summary"]["utilisation"]["mean"]) / 100.0;
    let goodput_sim = utilisation * 1e9 * PAYLOAD;
    // Connections of the laboratory start within its measured time, in slow start.
    let ratio = goodput_sim / goodput_linux;
    assert!(
        (0.97..1.05).contains(&ratio),
        "{goodput_sim} and {goodput_linux} bit/s"
    );

    // Linux's queue is marked by a moving average, ours by its length. Both are near the upper
    // threshold, above which every packet is marked.
    let queue_linux = number(&summary["statistics"]["queue-delay-median"]);
    let queue_sim = number(&ours["runs"][0]["queue_latency"]["p50_us"]);
    let ratio = queue_sim / queue_linux;
    assert!(
        (0.8..1.25).contains(&ratio),
        "{queue_sim} and {queue_linux} µs"
    );

    // Nothing is lost, and all connections get about the same.
    assert!(
        number(&summary["statistics"]["retransmission-share"]) < 1e-3,
        "{summary}"
    );
    assert_eq!(number(&ours["summary"]["dropped"]["mean"]), 0.0);
    assert!(number(&summary["statistics"]["jain"]) > 0.95);
    assert!(number(&ours["runs"][0]["jain"]) > 0.95);
}
