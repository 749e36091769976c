//! `thalweg replay` over decisions written here, whose truth is known.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use thalweg_gain::Sampling;
use thalweg_units::random::{Random, mix};

const START_MS: u64 = 1_790_000_000_000;

/// Connections to 60 hosts, half of them on each arm. bbr takes half the time. Of the hours from
/// the third on, in which it takes the same, the log has a share of the hosts.
fn decisions(share: f64) -> String {
    let mut random = Random::new(9);
    let draw = Sampling { salt: 9 };
    let mut count = 0;
    let mut text = json!({
        "format": "thalweg-decisions", "version": 1, "arms": ["cubic", "bbr"],
    })
    .to_string();
    for number in 0..2400 {
        let arm = ["cubic", "bbr"][random.below(2) as usize];
        let bytes = (1 << 20) + random.below(1 << 20);
        let noise = 0.9 + 0.2 * random.fraction();
        let (host, hour) = (number % 60, number / 360);
        let share = if hour < 3 { 1.0 } else { share };
        let rate = match arm {
            "bbr" if share == 1.0 => 2e6,
            _ => 1e6,
        };
        let duration_us = (bytes as f64 / rate * noise * 1e6) as u64;
        let time_ms = START_MS + number * 10_000;
        if !draw.keeps(mix(host), hour, share) {
            continue;
        }
        count += 1;
        let line = json!({
            "time_ms": time_ms, "netns": 1, "host": format!("192.0.2.{host}"),
            "system": "cubic", "arm": arm, "allowed": ["cubic", "bbr"], "reason": "explore",
            "control": false, "propensities": { "cubic": 0.5, "bbr": 0.5 },
            "handshake_rtt_us": 20_000, "rule": 2, "parameters": 7, "stands_for": 1.0 / share,
            "stretches": [{
                "time_ms": time_ms + duration_us / 1000, "arm": arm, "end": "fin-local",
                "bytes": bytes, "duration_us": duration_us,
                "wall_us": duration_us, "srtt_us": 20_000, "min_rtt_us": 20_000,
                "segs_out": bytes / 1448, "retrans": 0, "receiver_us": 0, "buffer_us": 0,
                "app_limited": false,
            }],
        });
        let _ = write!(text, "\n{line}");
    }
    format!("{text}\n{{\"end\":{count}}}\n")
}

fn replay(file: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thalweg"))
        .arg("replay")
        .arg(file)
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn rules_are_compared_with_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("decisions");
    std::fs::write(&file, decisions(1.0)).unwrap();
    // The log's mean is half-way between the arms, in bits. The learner begins with the slower one
    // and pays its trials from a budget: it gains something, and less than half a bit.
    for (arguments, truth, tolerance) in [
        (&["--rule", "default"][..], 0.5, 0.08),
        (&["--rule", "random"], 0.0, 0.08),
        (&[], -0.3, 0.2),
        (&["--set", "warm_up=1000"], 0.5, 0.08),
    ] {
        let output = replay(&file, &[arguments, &["--json"]].concat());
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        for measure in ["time_log2_us_per_byte", "cost_bits"] {
            let mean = &document[measure]["doubly_robust"]["mean"];
            let mean = mean.as_f64().unwrap();
            assert!(
                (mean - truth).abs() < tolerance,
                "{arguments:?}: {document:#}"
            );
        }
        // The first one is only learned from.
        assert_eq!(document["connections"], 2399);
    }
    let text = String::from_utf8(replay(&file, &["--rule", "default"]).stdout).unwrap();
    let first = text.lines().next().unwrap();
    assert!(
        first.starts_with("default takes 4") && first.contains("% more time"),
        "{text}"
    );
    let text = String::from_utf8(replay(&file, &["--rule", "random"]).stdout).unwrap();
    assert!(text.contains("+0.00"), "{text}");
}

#[test]
fn a_log_of_a_share_of_the_host_hours_tells_of_all() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("decisions");
    std::fs::write(&file, decisions(0.25)).unwrap();
    let output = replay(&file, &["--rule", "default", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Of 2,400 connections 1,080 differ by half a bit; of the others a quarter are there.
    let truth = 0.5 * 1080.0 / 2400.0;
    for measure in ["time_log2_us_per_byte", "cost_bits"] {
        let mean = document[measure]["doubly_robust"]["mean"].as_f64().unwrap();
        assert!((mean - truth).abs() < 0.07, "{document:#}");
    }
    let logged = document["connections"].as_f64().unwrap();
    let all = document["stand_for"].as_f64().unwrap();
    // Four deviations of the draw of 220 host-hours, each of six connections.
    assert!((logged - 1409.0).abs() < 154.0, "{document:#}");
    assert!((all - 2399.0).abs() < 617.0, "{document:#}");
    assert_eq!(document["decisions"].as_f64(), Some(logged));
    let text = String::from_utf8(replay(&file, &["--rule", "default"]).stdout).unwrap();
    let expected = format!("They stand for {all:.0} connections:");
    assert!(text.contains(&expected), "{text}");
    // A rule that learns has no more of a past than the log.
    let text = String::from_utf8(replay(&file, &[]).stdout).unwrap();
    let expected = format!("connections a host of {:.1}:", logged / 60.0);
    assert!(text.contains(&expected), "{text}");
}
