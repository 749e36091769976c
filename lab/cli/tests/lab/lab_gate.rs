//! The gate: what a bad learner would do misses a bound that scenarios set for `thalweg`.
//!
//! A bad learner stands in for the agent: one that does nothing, one that leaves all to chance, one
//! that always takes bbr. They run in virtual time, so the digits are the same on every machine.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_lab::outcome::ScenarioOutcome;
use thalweg_lab::scenario::{Expectation, Reference, Scenario};
use thalweg_lab::statistic::Statistic;
use thalweg_lab::{Mode, Options, run_scenarios};
use thalweg_report::Verdict;
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{laboratory, manifest_path, stock, thalweg};

/// Writes a scenario that sets for a mode what it sets for the learner.
fn judging(scenario: &str, mode: &str, place: &Path) -> PathBuf {
    let text = fs::read_to_string(manifest_path(scenario)).unwrap();
    let learner = "mode = \"thalweg\"";
    assert!(text.contains(learner), "{scenario} has no bound for it");
    let file = place.join("scenario.toml");
    let text = text.replace(learner, &format!("mode = \"{mode}\""));
    let models = manifest_path("models").display().to_string();
    fs::write(&file, text.replace("../../models", &models)).unwrap();
    file
}

/// Runs the first rounds of a scenario with a mode in the place of the learner.
fn instead_of_the_learner(scenario: &str, mode: &str, rounds: u32) -> ScenarioOutcome {
    let place = tempfile::tempdir().unwrap();
    let file = judging(scenario, mode, place.path());
    let modes = ["fixed:cubic", mode].map(|it| it.parse().unwrap()).into();
    let options = Options {
        scenarios: vec![file],
        modes,
        connections: Some(rounds),
        out: Some(place.path().join("out")),
        progress: false,
        agent_binary: thalweg().into(),
        program: laboratory().into(),
        ..Options::default()
    };
    run_scenarios(&options).unwrap().scenarios.remove(0)
}

/// Checks that a statistic misses its bound.
fn misses(outcome: &ScenarioOutcome, statistic: &str) {
    for check in &outcome.checks {
        println!("{}: {:?} ({:?})", check.text, check.verdict, check.value);
    }
    let mut of_it = outcome.checks.iter();
    let missed = of_it.any(|check| {
        check.expectation.statistic.key() == statistic && check.verdict == Verdict::Missed
    });
    assert!(missed, "{}: {statistic} is met", outcome.scenario.name);
}

fn one_that_does_nothing_misses_what_random_loss_allows() {
    let outcome = instead_of_the_learner("scenarios/lab/server-cdn.toml", "baseline", 3);
    misses(&outcome, "fct-p99-last-half");
}

fn one_that_leaves_all_to_chance_harms_the_neighbour() {
    let outcome = instead_of_the_learner("scenarios/lab/server-uplink.toml", "random", 2);
    misses(&outcome, "harm");
}

fn one_that_always_takes_bbr_harms_the_neighbour() {
    let outcome = instead_of_the_learner("scenarios/lab/server-uplink.toml", "fixed:bbr", 2);
    misses(&outcome, "harm");
}

in_virtual_time!(
    #[ignore = "slow: a minute of a processor"]
    [
        "scenarios/lab/server-cdn.toml",
        "scenarios/lab/server-uplink.toml",
    ],
    one_that_does_nothing_misses_what_random_loss_allows,
    one_that_leaves_all_to_chance_harms_the_neighbour,
    one_that_always_takes_bbr_harms_the_neighbour,
);

/// The exit code of a whole run beside the default: 5 if a bound was missed.
fn whole(files: &[PathBuf], modes: &[&str]) -> Option<i32> {
    let place = tempfile::tempdir().unwrap();
    let output = Command::new(laboratory())
        .args(["run"])
        .args(files)
        .args(["--backend", "qemu", "--mode", "fixed:cubic"])
        .args(modes.iter().flat_map(|mode| ["--mode", mode]))
        .arg("--out")
        .arg(place.path().join("out"))
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    output.status.code()
}

#[test]
#[ignore = "slow: some ten minutes"]
fn bad_learners_miss_bounds_of_whole_scenarios() {
    if stock::kernel().is_none() {
        return;
    }
    for (mode, scenario) in [
        ("baseline", "cdn"),
        ("baseline", "flip"),
        ("random", "uplink"),
        ("fixed:bbr", "uplink"),
        ("fixed:bbr", "day"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let scenario = format!("scenarios/lab/server-{scenario}.toml");
        let file = judging(&scenario, mode, place.path());
        assert_eq!(whole(&[file], &[mode]), Some(5), "{mode}: {scenario}");
    }
}

/// Scenarios of the laboratory by the beginning of their names.
fn scenarios(begin: &str) -> Vec<PathBuf> {
    let folder = fs::read_dir(manifest_path("scenarios/lab")).unwrap();
    let mut files: Vec<PathBuf> = folder
        .map(|entry| entry.unwrap().path())
        .filter(|file| {
            let name = file.file_name().unwrap().to_string_lossy();
            name.starts_with(begin)
        })
        .collect();
    files.sort();
    files
}

/// Scenarios of which the learner misses a bound, as docs/measurements/learner.md says.
const MISSED: [&str; 2] = ["server-cdn.toml", "server-visits.toml"];

/// Scenarios of which it misses a bound with some seeds, as that page says. Another build of the agent is
/// another seed.
const SCATTERED: [&str; 2] = ["server-uplink.toml", "server-video.toml"];

/// Scenarios that claim that a learner gains something.
fn claims() -> Vec<PathBuf> {
    let files = scenarios("").into_iter();
    files
        .filter(|file| {
            let scenario = Scenario::load(file).unwrap();
            let learns = scenario.expect.iter().any(|one| one.mode.learns());
            learns && !scenario.only_bounds_harm
        })
        .collect()
}

/// Whether a learner that keeps the default may miss this.
fn may_miss(claim: &Expectation, default: &str) -> bool {
    let own = match &claim.relative_to {
        Some(Reference::Mode(Mode::Baseline)) => true,
        Some(Reference::Mode(Mode::Fixed(name))) => name == default,
        _ => false,
    };
    let beyond = claim.at_least.is_some_and(|least| least > 1.0)
        || claim.at_most.is_some_and(|most| most < 1.0);
    let of_any = matches!(
        claim.statistic,
        // One that gains nothing, and says so, tells the truth.
        Statistic::Failures | Statistic::GainMisses
    );
    claim.mode.learns() && !of_any && (!own || beyond)
}

#[test]
fn scenarios_claim_a_gain_or_say_that_they_bound_harm() {
    let files = claims();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let scenario = Scenario::load(&file).unwrap();
        let default = &scenario.system.default_cc;
        let mut claims = scenario.expect.iter();
        assert!(
            claims.any(|claim| may_miss(claim, default)),
            "{}: a learner that does nothing meets every bound; only_bounds_harm = true says so",
            file.display()
        );
    }
}

/// Whether a learner that does nothing meets all bounds of a scenario.
fn met_by_null(file: &Path) -> bool {
    let place = tempfile::tempdir().unwrap();
    let changes = Scenario::load(file).unwrap().changes;
    // What depends on a change is known after it.
    let rounds = 12 + changes.last().map_or(0, |change| change.at);
    let output = Command::new(laboratory())
        .args(["--json", "run", "--backend", "qemu"])
        .arg(file)
        // The best of the fixed ones is among these.
        .args(["--mode", "baseline", "--mode", "fixed:cubic"])
        .args(["--mode", "fixed:bbr", "--mode", "null"])
        .args(["--connections", &rounds.to_string(), "--out"])
        .arg(place.path().join("out"))
        .output()
        .unwrap();
    let document: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
        });
    let scenario = &document["scenarios"][0];
    let checks = scenario["null_checks"].as_array().unwrap();
    // At once: all of them take hours.
    let line = format!("{}, {} s: {checks:?}", file.display(), scenario["wall_s"]);
    let _ = writeln!(std::io::stderr(), "{line}");
    assert!(!checks.is_empty(), "{line}");
    !checks.iter().any(|check| check["verdict"] == "missed")
}

#[test]
#[ignore = "slow: hours"]
fn null_misses_a_bound_of_each_scenario_that_claims_a_gain() {
    if stock::kernel().is_none() {
        return;
    }
    let met: Vec<PathBuf> = claims()
        .into_iter()
        .filter(|file| met_by_null(file))
        .collect();
    assert!(met.is_empty(), "a learner that does nothing passes {met:?}");
}

#[test]
#[ignore = "slow: some twenty minutes"]
fn the_learner_meets_the_bounds_of_servers_traffic_but_those_it_is_known_to_miss() {
    if stock::kernel().is_none() {
        return;
    }
    let files = scenarios("server-");
    assert!(files.len() >= 10, "{files:?}");
    let is_one = |names: &[&str], file: &Path| names.iter().any(|name| file.ends_with(name));
    let (missed, others): (Vec<PathBuf>, Vec<_>) =
        files.into_iter().partition(|file| is_one(&MISSED, file));
    let (scattered, met): (Vec<PathBuf>, _) = others
        .into_iter()
        .partition(|file| is_one(&SCATTERED, file));
    assert_eq!(whole(&met, &["thalweg"]), Some(0));
    assert!(matches!(whole(&scattered, &["thalweg"]), Some(0 | 5)));
    for file in missed {
        let code = whole(std::slice::from_ref(&file), &["thalweg"]);
        assert_eq!(code, Some(5), "{}: no longer missed", file.display());
    }
}

#[test]
#[ignore = "slow: some twenty minutes"]
fn the_agent_finds_the_gain_that_is_measured_directly() {
    if stock::kernel().is_none() {
        return;
    }
    let files = scenarios("gain-");
    assert!(files.len() >= 5, "{files:?}");
    assert_eq!(whole(&files, &["thalweg", "gain"]), Some(0));
}
