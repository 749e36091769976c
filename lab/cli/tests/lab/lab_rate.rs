//! The learned rate controller in the laboratory, beside another congestion control. The run loads
//! the model itself.

use std::fs;
use std::process::Command;

use serde_json::Value;

use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{laboratory, manifest_path, privileged, unique};

const MODEL: &str = "models/adpg-plus.safetensors";

// The queue takes 80 ms to drain, so that reno does not lose everything at once.
const LINUX: &str = r#"
name = "two"
description = "Two flows."
[[arm]]
name = "ARM"
load = "MODEL"
[path]
rate = "20mbit"
queue = "200kb"
[traffic]
kind = "streams"
flows = 2
connections = 1
duration = "3s"
warmup = "1s"
"#;

fn available() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap()
}

fn the_learned_controller_keeps_the_queue_short_beside_reno() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("two.toml");
    let arm = unique("lr");
    let model = manifest_path(MODEL).canonicalize().unwrap();
    let linux = LINUX
        .replace("ARM", &arm)
        .replace("MODEL", model.to_str().unwrap());
    fs::write(&file, linux).unwrap();
    let modes = [format!("fixed:{arm}"), "fixed:reno".to_owned()];
    let output = Command::new(laboratory())
        .args(["--json", "run", "--backend", "host"])
        .args(modes.iter().flat_map(|mode| ["--mode", mode]))
        .arg(&file)
        .arg("--out")
        .arg(directory.path().join("out"))
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (place, mode) in modes.iter().enumerate() {
        let outcome = &document["scenarios"][0]["modes"][place];
        assert_eq!(outcome["mode"], *mode);
        let statistics = &outcome["summary"]["statistics"];
        let figure = |key: &str| statistics[key].as_f64().unwrap();
        // 1448 of 1514 bytes are data.
        let used = figure("total") / (20e6 * 1448.0 / 1514.0);
        let (fair, delay_ms) = (figure("fairness"), figure("queue-delay-median") / 1e3);
        println!("{mode}: {used} {fair} {delay_ms}");
        // A bottleneck carries no more than its rate; 1 % is for the bucket of tbf and the time of
        // sampling. Two flows that can fill it leave little unused.
        assert!((0.96..1.01).contains(&used), "{mode}: {statistics}");
        // Reno halves the full queue, 80 ms and the bucket's millisecond, and fills it again. In
        // two seconds one flow may do so more often than the other. Our flows share the link, with
        // a queue of a few packets of 0.6 ms.
        let (least, waits) = match mode.as_str() {
            "fixed:reno" => (0.25, 40.0..81.0),
            _ => (0.80, 0.0..10.0),
        };
        assert!((least..=1.0).contains(&fair), "{mode}: {statistics}");
        assert!(waits.contains(&delay_ms), "{mode}: {statistics}");
    }
    // The model is unloaded with the run.
    assert!(!available().contains(&arm), "{}", available());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_model_is_not_taken_for_another_of_its_name() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("two.toml");
    let model = manifest_path(MODEL).canonicalize().unwrap();
    // Every kernel has a reno.
    let text = LINUX
        .replace("ARM", "reno")
        .replace("MODEL", model.to_str().unwrap());
    fs::write(&file, text).unwrap();
    let output = Command::new(laboratory())
        .args(["run", "--backend", "host", "--mode", "fixed:reno"])
        .arg(&file)
        .arg("--out")
        .arg(directory.path().join("out"))
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("thalweg cc unload reno"), "{words}");
}

in_virtual_time!(
    #[ignore = "slow: half a minute of a processor"]
    ["models/adpg-plus.safetensors"],
    the_learned_controller_keeps_the_queue_short_beside_reno,
);
