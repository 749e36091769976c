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
        if !draw.keeps_host(mix(host), hour, share) {
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

/// Transfers of 40 segments to 60 hosts in 12 networks. 16 segments take 0.4 bits less than 10, 24
/// take 0.8 bits less and retransmit a tenth, but only even networks permit them. In busy hours, one
/// in four, all take two bits more, and 10 segments are the rule: a mean by window would find 24
/// segments two bits better. `is_even`: the log says that windows were chosen evenly.
fn windows(is_even: bool) -> String {
    let mut random = Random::new(1);
    let mut text = json!({
        "format": "thalweg-decisions", "version": 1, "arms": ["cubic"],
    })
    .to_string();
    for number in 0..6000 {
        let (network, time_ms) = (random.below(12), START_MS + number * 1000);
        let is_busy = number / 300 % 4 == 3;
        let shares = match (is_busy, network % 2) {
            (true, 0) => [0.8, 0.1, 0.1],
            (true, _) => [0.9, 0.1, 0.0],
            (false, 0) => [0.1, 0.2, 0.7],
            (false, _) => [0.2, 0.8, 0.0],
        };
        let draw = random.fraction();
        let at = usize::from(draw >= shares[0]) + usize::from(draw >= shares[0] + shares[1]);
        let (segments, time_bits, retrans) = [(10, 0.0, 0), (16, -0.4, 0), (24, -0.8, 4)][at];
        let control = random.below(20) == 0;
        let (segments, time_bits, retrans) = match control {
            true => (10, 0.0, 0),
            false => (segments, time_bits, retrans),
        };
        let propensity = match (control, is_even) {
            (true, _) => 1.0,
            (_, true) => 1.0 / if network % 2 == 0 { 3.0 } else { 2.0 },
            _ => shares[at],
        };
        let noise = random.fraction() - 0.5 + if is_busy { 2.0 } else { 0.0 };
        let duration_us = (100_000.0 * f64::exp2(time_bits + noise)) as u64;
        // The third host of each network tells nothing.
        let host = random.below(6);
        let cost_bits = (host != 3).then(|| time_bits + noise + 3.0 * f64::from(retrans) / 40.0);
        let line = json!({
            "time_ms": time_ms, "netns": 1, "host": format!("192.0.{network}.{host}"),
            "system": "cubic", "arm": "cubic", "allowed": ["cubic"], "reason": "greedy",
            "control": control, "propensities": { "cubic": 1.0 },
            "handshake_rtt_us": 50_000, "rule": 4, "parameters": 7, "stands_for": 1.0,
            "window": { "segments": segments, "propensity": propensity, "cost_bits": cost_bits },
            "stretches": [{
                "time_ms": time_ms + duration_us / 1000, "arm": "cubic", "end": "fin-local",
                "bytes": 57_920, "duration_us": duration_us,
                "wall_us": duration_us, "srtt_us": 50_000, "min_rtt_us": 50_000,
                "segs_out": 40, "retrans": retrans, "receiver_us": 0, "buffer_us": 0,
                "app_limited": false,
            }],
        });
        let _ = write!(text, "\n{line}");
    }
    format!("{text}\n{{\"end\":6000}}\n")
}

#[test]
fn windows_are_compared_with_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("decisions");
    std::fs::write(&file, windows(false)).unwrap();
    let output = replay(&file, &["--json"]);
    let document: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let known = &document["initial_windows"];
    let [connections, control, without] =
        ["connections", "control", "without_cost"].map(|key| known[key].as_f64().unwrap());
    // Four deviations of the draws.
    assert!((control - 300.0).abs() < 68.0, "{known:#}");
    assert!((without - 950.0).abs() < 113.0, "{known:#}");
    assert_eq!(connections + control + without, 6000.0);
    // What ran: in even networks (-0.08 - 0.56) in calm hours and (-0.04 - 0.08) in busy ones, in
    // odd ones -0.32 and -0.04.
    let even = 0.75 * -0.64 + 0.25 * -0.12;
    let odd = 0.75 * -0.32 + 0.25 * -0.04;
    let ran = (even + odd) / 2.0;
    // Of 24 segments 0.7 and 0.1 retransmitted a tenth, which costs 0.3 bits.
    let waste = 0.3 * (0.75 * 0.7 + 0.25 * 0.1);
    for (at, segments, time, cost) in [
        (0, 10, 0.0 - ran, 0.0 - ran - waste / 2.0),
        (1, 16, -0.4 - ran, -0.4 - ran - waste / 2.0),
        (2, 24, -0.8 - even, -0.5 - even - waste),
    ] {
        let window = &known["windows"][at];
        assert_eq!(window["segments"], segments, "{known:#}");
        for (measure, truth) in [("time_bits", time), ("cost_bits", cost)] {
            for estimate in ["doubly_robust", "propensity_weighted"] {
                let found = &window[measure][estimate];
                let [mean, low, high] =
                    ["mean", "low", "high"].map(|key| found[key].as_f64().unwrap());
                // Three standard errors: there are twelve intervals of two.
                assert!(
                    (mean - truth).abs() < 1.5 * (high - mean),
                    "{segments} {measure} {estimate}, truth {truth}: {found}"
                );
                assert!(high - low < 0.3, "{segments}: {found}");
            }
        }
        let overlap = window["overlap"].as_f64().unwrap();
        assert!((overlap - 1.0).abs() < 0.15, "{window:#}");
    }
    // Odd networks never permit 24 segments: nothing is said of them.
    let counted = known["windows"][2]["connections"].as_f64().unwrap();
    assert!((counted / connections - 0.5).abs() < 0.05, "{known:#}");
    assert_eq!(
        (
            &known["windows"][3]["segments"],
            &known["windows"][3]["untold"]
        ),
        (&json!(32), &json!("no connection had it"))
    );

    let text = String::from_utf8(replay(&file, &[]).stdout).unwrap();
    for expected in [
        "Initial windows. 10 segments for all take ",
        "% more time than what ran (+",
        "Not known of 32 segments: no connection had it.",
        "(control group, always 10 segments)",
        "Left out: ",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text}");
    }

    // As if they had been chosen evenly: busy hours are held against small windows.
    std::fs::write(&file, windows(true)).unwrap();
    let document: Value = serde_json::from_slice(&replay(&file, &["--json"]).stdout).unwrap();
    let own = &document["initial_windows"]["windows"][0]["time_bits"]["doubly_robust"];
    let [mean, high] = ["mean", "high"].map(|key| own[key].as_f64().unwrap());
    assert!(mean + ran > 5.0 * (high - mean), "{own}");
}

#[test]
fn windows_are_told_of_where_congestion_controls_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("decisions");
    // Each decision is of a host that the learner does not know yet.
    let text = windows(false).replace(
        "\"propensities\":{\"cubic\":1.0}",
        "\"propensities\":{\"bbr\":1.0}",
    );
    let text = text.replace("\"arms\":[\"cubic\"]", "\"arms\":[\"cubic\",\"bbr\"]");
    let text = text.replace("\"arm\":\"cubic\"", "\"arm\":\"bbr\"");
    std::fs::write(&file, &text).unwrap();
    let arguments = ["--rule", "default"];
    let said = replay(&file, &arguments);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.starts_with("Not known what default takes: 0 connections: "),
        "{said}"
    );
    assert!(
        said.contains("Initial windows. 10 segments for all take "),
        "{said}"
    );
    let document = replay(&file, &["--rule", "default", "--json"]).stdout;
    let document: Value = serde_json::from_slice(&document).unwrap();
    assert!(
        document["untold"]
            .as_str()
            .unwrap()
            .contains("gave its choice no chance")
    );
    assert!(document["initial_windows"]["windows"][0]["time_bits"].is_object());
    // Of too few nothing is told, and that is the error it was.
    let few: Vec<&str> = text.lines().take(40).collect();
    std::fs::write(&file, format!("{}\n{{\"end\":39}}\n", few.join("\n"))).unwrap();
    let said = replay(&file, &arguments);
    assert_eq!(said.status.code(), Some(1));
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(
        said.contains("0 connections: an effective sample of 0 hosts"),
        "{said}"
    );
}
