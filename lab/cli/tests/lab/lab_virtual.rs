//! `thalweg-lab run` in the kernels of `thalweg-lab build-kernel`. The tests build missing ones, in
//! some ten minutes each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use thalweg_testbed::place::{assert_same, files};
use thalweg_testbed::{guest, laboratory, skip_unpackaged};

/// Loss, queue and delay, so that runs can differ.
const PATH: &str = "loss = \"0.5%\"\nrate = \"20mbit\"\ndelay = \"10ms\"\n";

/// Ubuntu has neither the kernel nor its sources, so there it may be skipped even
/// where tests must run.
fn available() -> bool {
    let needed = ["/usr/bin/linux.uml", "/usr/src/linux-source-6.1.tar.xz"];
    let Some(absent) = needed.iter().find(|file| !Path::new(file).exists()) else {
        return true;
    };
    let why = format!("no {absent} (scripts/setup.sh --kernel)");
    skip_unpackaged(&why)
}

fn thalweg(arguments: &[&str]) -> Command {
    let mut command = Command::new(laboratory());
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn assert_success(output: &Output) {
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Builds a kernel unless it exists. One at a time, although the tests run concurrently.
fn build(hz: &str) {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock();
    let arguments = ["build-kernel", "--hz", hz];
    assert_success(&thalweg(&arguments).output().unwrap());
}

/// Runs a scenario and returns the directory with its report.
fn run(place: &Path, out: &str, scenario: &str, arguments: &[&str]) -> PathBuf {
    run_with(place, out, scenario, arguments, None)
}

/// As [`run`], with a preloaded library.
fn run_with(
    place: &Path,
    out: &str,
    scenario: &str,
    arguments: &[&str],
    library: Option<&Path>,
) -> PathBuf {
    let file = place.join("scenario.toml");
    fs::write(&file, format!("name = \"test\"\n{scenario}")).unwrap();
    let out = place.join(out);
    let mut command = thalweg(&["run"]);
    command.arg(file).args(arguments).arg("--out").arg(&out);
    // Named after the report, so that the kernel's command line differs, too.
    let temporary = out.with_extension("tmp");
    fs::create_dir_all(&temporary).unwrap();
    command.env("TMPDIR", &temporary);
    command.envs(library.map(|library| ("LD_PRELOAD", library)));
    assert_success(&command.output().unwrap());
    assert_eq!(fs::read_dir(temporary).unwrap().count(), 0);
    out
}

fn results(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("results.json")).unwrap()).unwrap()
}

#[test]
#[ignore = "builds a kernel: some ten minutes"]
fn two_runs_with_one_seed_are_the_same_to_the_byte() {
    if !available() {
        return;
    }
    build("100");
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let arguments = [
        "--backend",
        "virtual",
        "--mode",
        "baseline",
        "--mode",
        "thalweg",
    ];
    let scenario = |seed: u32| {
        format!("[path]\n{PATH}seed = {seed}\n[traffic]\nconnections = 4\nduration = \"1s\"\n")
    };
    let first = run(place, "a", &scenario(1), &arguments);
    let second = run(place, "another-directory", &scenario(1), &arguments);
    let (one, other) = (files(&first), files(&second));
    assert_same(&one, &other);
    // The results are not trivially equal.
    let modes = |out: &Path| results(out)["scenarios"][0]["modes"].clone();
    for mode in modes(&first).as_array().unwrap() {
        for connection in mode["connections"].as_array().unwrap() {
            assert!(connection["goodput_bps"].as_f64().unwrap() > 1e6);
        }
    }
    let third = run(place, "b", &scenario(2), &arguments);
    assert_ne!(
        modes(&first)[0]["connections"],
        modes(&third)[0]["connections"]
    );
    assert_ne!(
        modes(&first)[1]["connections"],
        modes(&third)[1]["connections"]
    );
}

/// Traffic of the laboratory's own client and server, and a change of the path.
#[test]
#[ignore = "builds a kernel: some ten minutes"]
fn the_same_holds_for_short_flows_and_changes() {
    if !available() {
        return;
    }
    build("100");
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let scenario = format!(
        "[path]\n{PATH}[traffic]\nkind = \"short\"\nconnections = 3\nflows = 5\nbytes = \"100kb\"\n\
         [[change]]\nat = 2\nloss = \"3%\"\n[system]\ntimers = \"tick\"\nqdisc = \"fq\"\n"
    );
    let arguments = [
        "--backend",
        "virtual",
        "--mode",
        "fixed:bbr",
        "--mode",
        "classic",
    ];
    let first = run(place, "a", &scenario, &arguments);
    let second = run(place, "b", &scenario, &arguments);
    assert!(files(&first) == files(&second));
}

/// Processors with AMX have more register state than the sources support.
#[test]
#[ignore = "builds a kernel: some ten minutes"]
fn the_same_holds_where_the_processor_has_more_state() {
    if !available() {
        return;
    }
    build("100");
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let library = guest::large_state(place);
    let scenario = format!("[path]\n{PATH}[traffic]\nconnections = 2\n");
    let arguments = ["--backend", "virtual", "--mode", "thalweg"];
    let first = run(place, "a", &scenario, &arguments);
    let second = run_with(place, "b", &scenario, &arguments, Some(&library));
    assert!(files(&first) == files(&second));
}

/// A path without a queue has a round-trip time of 1 ms, or nearly 2 with timers that wait for
/// ticks of 1 ms. In real time the machine may add to that.
#[test]
#[ignore = "builds a kernel: some ten minutes"]
fn ticks_and_timers_are_as_asked_in_both_times() {
    if !available() {
        return;
    }
    build("1000");
    let place = tempfile::tempdir().unwrap();
    for (backend, timers, least_us, most_us) in [
        ("virtual", "high-resolution", 990.0, 1010.0),
        ("virtual", "tick", 1500.0, 2010.0),
        ("uml", "high-resolution", 990.0, 1e6),
        ("uml", "tick", 990.0, 1e6),
    ] {
        let scenario = format!(
            "[path]\ndelay = \"500us\"\nrate = \"20mbit\"\n\
             [traffic]\nkind = \"short\"\nconnections = 1\n\
             [system]\nhz = 1000\ntimers = \"{timers}\"\n"
        );
        let out = format!("{backend}-{timers}");
        let arguments = ["--backend", backend, "--mode", "baseline"];
        let results = results(&run(place.path(), &out, &scenario, &arguments));
        assert_eq!(results["environment"]["hz"], 1000);
        assert_eq!(results["environment"]["timers"], timers);
        let mode = &results["scenarios"][0]["modes"][0];
        for connection in mode["connections"].as_array().unwrap() {
            let rtt = connection["min_rtt_us"].as_f64().unwrap();
            assert!((least_us..most_us).contains(&rtt), "{out}: {rtt} µs");
        }
    }
}

#[test]
#[ignore = "slow: builds a kernel where there is none, then some twenty minutes"]
fn the_learner_harms_nobody() {
    if !available() {
        return;
    }
    build("100");
    let mut files: Vec<PathBuf> = fs::read_dir(thalweg_testbed::manifest_path("scenarios/lab"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|file| {
            let name = file.file_name().unwrap().to_string_lossy();
            name.starts_with("harm-")
        })
        .collect();
    files.sort();
    assert!(files.len() >= 9, "{files:?}");
    let modes = ["--mode", "fixed:cubic", "--mode", "thalweg"];
    expectations_are_met(&files, &modes);
}

#[test]
#[ignore = "slow: builds a kernel where there is none, then some five minutes"]
fn the_learner_finds_what_is_better_under_random_loss() {
    if !available() {
        return;
    }
    build("100");
    let file = thalweg_testbed::manifest_path("scenarios/lab/loss-2-delay-17ms.toml");
    let modes = [
        "--mode",
        "fixed",
        "--mode",
        "thalweg",
        "--reference-every",
        "4",
    ];
    expectations_are_met(&[file], &modes);
}

/// A missed expectation gives exit code 5, and the table names it.
fn expectations_are_met(files: &[PathBuf], modes: &[&str]) {
    let place = tempfile::tempdir().unwrap();
    let output = thalweg(&["run"])
        .args(files)
        .args(["--backend", "virtual"])
        .args(modes)
        .arg("--out")
        .arg(place.path())
        .output()
        .unwrap();
    assert_success(&output);
}
