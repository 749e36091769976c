//! `thalweg-lab sim` from end to end.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const SCENARIO: &str = r#"name = "small"
description = "Four flows to one host."
duration = "2ms"
warmup = "1ms"

[topology]
kind = "star"
hosts = 5

[link]
rate = "100gbit"
delay = "1us"

[network]
base_rtt = "12us"

[hosts]
start_spread = "10us"

[workload]
kind = "many-to-one"
flows = 4
"#;

struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        Self { directory }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let file = self.directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    }

    fn thalweg(&self, arguments: &[&str]) -> Output {
        Command::new(thalweg_testbed::laboratory())
            .args(arguments)
            .current_dir(self.directory.path())
            .output()
            .unwrap()
    }
}

fn stdout(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    text
}

fn stderr(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_document_for_programs() {
    let place = Place::new();
    place.file("small.toml", SCENARIO);
    // Four flows at a tenth of the line rate each: 40 %, all equal, hardly any queue.
    let output = place.thalweg(&[
        "sim",
        "run",
        "small.toml",
        "--cc",
        "fixed:fraction=0.1",
        "--seeds",
        "3",
        "--json",
    ]);
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["passed"], true);
    let one = &document["scenarios"][0];
    assert_eq!(one["scenario"]["name"], "small");
    let fixed = &one["controllers"][0];
    assert_eq!(fixed["controller"], "fixed:fraction=0.1");
    assert_eq!(fixed["runs"].as_array().unwrap().len(), 3);
    let mean = |key: &str| fixed["summary"][key]["mean"].as_f64().unwrap();
    // A packet more or less in 1 ms of 4883 is 0.02 %.
    assert!((mean("utilisation") - 40.0).abs() < 0.1, "{fixed}");
    assert!(mean("fairness") > 99.0);
    assert_eq!(mean("dropped"), 0.0);
    assert_eq!(fixed["summary"]["utilisation"]["runs"], 3);
}

#[test]
fn threads_do_not_change_a_byte() {
    let place = Place::new();
    place.file("small.toml", SCENARIO);
    let run = |jobs: &str| {
        let output = place.thalweg(&["sim", "run", "small.toml", "--json", "--jobs", jobs]);
        stdout(&output)
    };
    let one = run("1");
    assert!(one.contains("\"proportional\"") && one.contains("\"hpcc\""));
    assert_eq!(one, run("2"));
}

#[test]
fn a_table_and_a_report() {
    let place = Place::new();
    place.file("small.toml", SCENARIO);
    let arguments = [
        "sim",
        "run",
        "small.toml",
        "--seeds",
        "2",
        "--cc",
        "swift",
        "--out",
        "out",
    ];
    let text = stdout(&place.thalweg(&arguments));
    assert!(text.contains("small: Four flows to one host.\n"), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("swift ")),
        "{text}"
    );
    let out = place.directory.path().join("out");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for part in [
        "Rates of the flows with swift",
        "id=\"queue-title\"",
        "id=\"latency-title\"",
        "flow 3",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<script") && page.trim_end().ends_with("</html>"));
    let results = std::fs::read_to_string(out.join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&results).unwrap();
    assert_eq!(
        results["scenarios"][0]["controllers"][0]["controller"],
        "swift"
    );
    // No partial file is left.
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 2);
}

#[test]
fn faults_have_their_place() {
    let place = Place::new();
    place.file(
        "bad.toml",
        &SCENARIO.replace("hosts = 5", "hosts = 5\nhost = 6"),
    );
    let message = stderr(&place.thalweg(&["sim", "run", "bad.toml"]));
    assert!(message.contains("bad.toml:9:1: "), "{message}");
    assert!(message.contains("host"), "{message}");
    let message = stderr(&place.thalweg(&["sim", "run", "absent.toml"]));
    assert!(message.contains("absent.toml"), "{message}");
    place.file("small.toml", SCENARIO);
    let output = place.thalweg(&["sim", "run", "small.toml", "--cc", "vegas"]);
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    for name in [
        "vegas",
        "dcqcn",
        "hpcc",
        "swift",
        "timely",
        "dctcp",
        "proportional",
    ] {
        assert!(message.contains(name), "{message}");
    }
}

/// A target within the base RTT leaves the link idle: the command says so, and runs.
#[test]
fn a_target_that_cannot_work_is_warned_of() {
    let place = Place::new();
    place.file("small.toml", &SCENARIO.replace("\"12us\"", "\"50us\""));
    let warnings = |cc: &str| {
        let arguments = ["sim", "run", "small.toml", "--seeds", "1", "--cc", cc];
        let output = place.thalweg(&arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let given = warnings("swift:base_target_us=25");
    let begin = "warning: small: swift:base_target_us=25.0: `base_target_us` is 25; with 2 links";
    assert!(given.starts_with(begin), "{given}");
    assert_eq!(given.lines().count(), 1, "{given}");
    assert_eq!(warnings("swift"), "");
    assert_eq!(warnings("swift:base_target_us=58"), "");
}

#[test]
fn a_missed_expectation_fails_the_run() {
    let place = Place::new();
    let expect = |least: &str, cc: &str| {
        format!(
            "{SCENARIO}\n[[expect]]\ncc = \"{cc}\"\nstatistic = \"utilisation\"\nat_least = {least}\n"
        )
    };
    let arguments = [
        "sim",
        "run",
        "small.toml",
        "--seeds",
        "1",
        "--cc",
        "fixed:fraction=0.1",
    ];
    place.file("small.toml", &expect("39", "fixed:fraction=0.1"));
    assert!(stdout(&place.thalweg(&arguments)).contains("\nmet: fixed:fraction=0.1: utilisation"));
    place.file("small.toml", &expect("41", "fixed:fraction=0.1"));
    let output = place.thalweg(&arguments);
    assert_eq!(output.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\nMISSED: "));
    // Of another scenario nothing is expected.
    let output = place.thalweg(&[&arguments[..], &["--set", "duration=2ms"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    assert!(
        said.contains("small: its expectations are not checked"),
        "{said}"
    );
    place.file("small.toml", &expect("41", "swift"));
    assert!(stdout(&place.thalweg(&arguments)).contains("\nnot checked: swift"));
    // Statistics that the workload lacks cannot be expected.
    place.file(
        "small.toml",
        &expect("1", "swift").replace("utilisation", "recovery"),
    );
    let message = stderr(&place.thalweg(&arguments));
    assert!(
        message.contains("small.toml:26:13: ") && message.contains("recovery"),
        "{message}"
    );
}

/// Flows come at random. Seed 4 has no flow in 60 µs at 5 %, and one without an end in 100 µs at 10 %.
#[test]
fn bound_is_missed_by_a_starved_seed_and_not_by_an_idle_one() {
    let place = Place::new();
    let (network, _) = SCENARIO.split_once("[workload]").unwrap();
    let run = |duration: &str, load: &str| {
        let network = network.replace("2ms", duration).replace("1ms", "0s");
        let workload = format!("kind = \"poisson\"\nsizes = \"hadoop\"\nload = \"{load}\"\n");
        let expect = "cc = \"swift\"\nstatistic = \"slowdown-p50\"\nat_most = 100\n";
        let text = format!("{network}[workload]\n{workload}\n[[expect]]\n{expect}");
        place.file("small.toml", &text);
        place.thalweg(&["sim", "run", "small.toml", "--cc", "swift", "--out", "out"])
    };
    let measured = "(4 of 5 seeds)";
    let idle = stdout(&run("60us", "5%"));
    let verdict = idle.lines().find(|line| line.starts_with("met: swift"));
    assert!(
        verdict.is_some_and(|line| line.ends_with(measured)),
        "{idle}"
    );
    let page = std::fs::read_to_string(place.directory.path().join("out/report.html")).unwrap();
    let (_, checks) = page.split_once("Expected outcome").unwrap();
    assert!(checks.contains(measured), "{checks}");
    let starved = run("100us", "10%");
    let said = String::from_utf8_lossy(&starved.stdout);
    let verdict = said.lines().find(|line| line.starts_with("MISSED: swift"));
    assert!(
        verdict.is_some_and(|line| line.ends_with(measured)),
        "{said}"
    );
    assert_eq!(starved.status.code(), Some(5));
}

/// Four flows at the line rate fill the link, alike, and lose packets.
#[test]
fn bounds_that_a_controller_that_does_nothing_meets_fail_the_run() {
    let place = Place::new();
    let run = |more: &str| {
        let bound = "[[expect]]\ncc = \"swift\"\nstatistic = ";
        let text = SCENARIO.replacen("duration", &format!("{more}duration"), 1);
        let all = format!("{text}\n{bound}\"utilisation\"\nat_least = 90\n");
        place.file("small.toml", &all);
        let arguments = ["sim", "run", "small.toml", "--seeds", "1", "--cc", "fixed"];
        let text = place.thalweg(&arguments);
        let json = place.thalweg(&[&arguments[..], &["--json"]].concat());
        assert_eq!(text.status.code(), json.status.code());
        let document: Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(document["passed"], json.status.success());
        let checks = document["scenarios"][0]["null_checks"].clone();
        (String::from_utf8(text.stdout).unwrap(), checks)
    };
    let (text, checks) = run("");
    let failed = "\nFAILED: fixed, which does nothing, meets every bound of swift.\n";
    assert!(text.contains(failed), "{text}");
    assert_eq!(checks[0]["verdict"], "met", "{checks}");
    assert!(checks[0]["measured"]["mean"].as_f64().unwrap() > 99.0);
    let (text, _) = run("only_bounds_harm = true\n");
    assert!(
        !text.contains("FAILED") && text.contains("misses 0 of 1 bounds"),
        "{text}"
    );
}

/// SIGINT during a long simulation: completed runs are reported, and the command fails with a
/// message.
#[test]
fn an_interrupted_run_ends_cleanly() {
    let place = Place::new();
    place.file("small.toml", SCENARIO);
    // More than an hour of computing, after a run of 1 ms.
    let long = SCENARIO
        .replace("\"small\"", "\"long\"")
        .replace("\"2ms\"", "\"100s\"");
    place.file("long.toml", &long);
    let child = Command::new(thalweg_testbed::laboratory())
        .args([
            "sim",
            "run",
            "small.toml",
            "long.toml",
            "--cc",
            "swift",
            "--seeds",
            "1",
        ])
        .args(["--jobs", "1", "--out", "out"])
        .current_dir(place.directory.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    // SIGINT has a handler once it is in the mask of caught signals.
    let status = format!("/proc/{pid}/status");
    let caught = || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // Signal 2 is bit 1.
        mask.unwrap_or(0) & 0b10 != 0
    };
    while !caught() {
        std::thread::yield_now();
    }
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("interrupted: ") && message.contains(" of 2 runs"),
        "{message}"
    );
    for name in ["small", "long"] {
        let file = place
            .directory
            .path()
            .join("out")
            .join(name)
            .join("results.json");
        let results: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!(results["interrupted"], true);
        assert_eq!(results["passed"], false);
    }
}
