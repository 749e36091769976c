use super::*;
use crate::host::loss::LossCounters;
use crate::measure::Measure;
use crate::outcome::{Connection, ModeOutcome, RemoteOutcome};
use crate::query::Query;
use crate::scenario::Scenario;
use crate::statistic::Statistic;
use crate::{summary, table};

const TEXT: &str = r#"
name = "x"
[[host]]
name = "near"
[[host]]
name = "far"
family = "ipv6"
[[change]]
at = 5
host = "far"
loss = "1%"
[[expect]]
mode = "thalweg"
host = "far"
statistic = "median"
relative_to = "best-fixed"
at_least = 0.75
[[expect]]
mode = "thalweg"
statistic = "of-best-per-host"
relative_to = "best-fixed"
at_least = 1.5
"#;

/// A mode with the same goodput and arm in each round towards near and far, in Mbit/s.
fn mode(name: &str, near: (f64, &str), far: (f64, &str)) -> ModeOutcome {
    let remote = |name: &str, address: &str, dropped_packets, last_change| RemoteOutcome {
        name: name.into(),
        address: address.parse().unwrap(),
        others: Vec::new(),
        forward: LossCounters {
            seen_packets: 100,
            dropped_packets,
            ..LossCounters::default()
        },
        reverse: LossCounters::default(),
        least_rtt_us: Some(dropped_packets as f64 * 10.0),
        last_change,
    };
    let mut connections = Vec::new();
    for round in 0..10 {
        for (host, (mbps, arm), rtt_us) in [("near", near, 50), ("far", far, 900)] {
            connections.push(Connection {
                round,
                host: host.into(),
                goodput_bps: mbps * 1e6,
                arm: arm.into(),
                srtt_us: vec![rtt_us],
                ..Connection::default()
            });
        }
    }
    let remotes = vec![
        remote("near", "10.0.0.2", 2, None),
        remote("far", "fd00:0:1:2::2", 40, Some(4)),
    ];
    ModeOutcome {
        mode: name.parse().unwrap(),
        rounds: 10,
        connections,
        forward: remotes.iter().map(|remote| remote.forward).sum(),
        reverse: LossCounters::default(),
        hosts: Vec::new(),
        least_rtt_us: None,
        last_change: Some(4),
        remotes,
        gain: None,
        processor_share: None,
    }
}

/// Cubic is best near, bbr far away; the learner uses both.
fn outcome() -> ScenarioOutcome {
    let scenario = Scenario::parse(TEXT, std::path::Path::new("x")).unwrap();
    let modes = vec![
        mode("baseline", (100.0, "cubic"), (1.0, "cubic")),
        mode("fixed:cubic", (100.0, "cubic"), (1.0, "cubic")),
        mode("fixed:bbr", (20.0, "bbr"), (10.0, "bbr")),
        mode("thalweg", (90.0, "cubic"), (8.0, "bbr")),
    ];
    ScenarioOutcome {
        checks: crate::expect::evaluate_expectations(&scenario.expect, &modes),
        null_checks: Vec::new(),
        scenario,
        reference_every: 1,
        modes,
        wall_s: 1.0,
        report: "x".into(),
    }
}

fn near_to(value: f64, expected: f64) -> bool {
    (value - expected).abs() < 1e-9
}

#[test]
fn each_host_has_its_own_figures_and_its_own_best_arm() {
    let outcome = outcome();
    let views = outcome.by_host();
    let names: Vec<&str> = views
        .iter()
        .map(|view| view.scenario.name.as_str())
        .collect();
    assert_eq!(names, ["near", "far"]);
    let best: Vec<String> = views
        .iter()
        .map(|view| view.best_fixed().unwrap().mode.to_string())
        .collect();
    assert_eq!(best, ["fixed:cubic", "fixed:bbr"]);

    let far = &views[1];
    let here = far.mode_outcome(&Mode::Thalweg).unwrap();
    let value = |statistic| Query::from(statistic).mode_value(here, &far.modes);
    assert_eq!(here.connections.len(), 10);
    assert_eq!(value(Statistic::Median), Ok(8e6));
    assert_eq!(value(Statistic::Loss), Ok(0.4));
    // Above its own least round-trip time, 400 µs.
    assert_eq!(value(Statistic::QueueDelayMedian), Ok(500.0));
    assert!(near_to(value(Statistic::Regret).unwrap(), 10.0 * 0.2));
    assert_eq!(value(Statistic::Convergence), Ok(f64::INFINITY));
    // Its own path changes; the other one does not.
    assert_eq!(value(Statistic::Recovery), Ok(f64::INFINITY));
    let near = &views[0];
    let here = near.mode_outcome(&Mode::Thalweg).unwrap();
    let recovery = Query::from(Statistic::Recovery).mode_value(here, &near.modes);
    let why = recovery.unwrap_err().to_string();
    assert!(why.contains("does not change"), "{why}");
    assert!(near.scenario.changes.is_empty());
}

#[test]
fn all_hosts_together_are_set_against_each_hosts_best() {
    let outcome = outcome();
    let value = |name: &str| {
        let mode = outcome.mode_outcome(&name.parse().unwrap()).unwrap();
        Query::from(Statistic::OfBestPerHost)
            .mode_value(mode, &outcome.modes)
            .unwrap()
    };
    assert!(near_to(value("fixed:cubic"), (1.0 + 0.1) / 2.0));
    assert!(near_to(value("fixed:bbr"), (0.2 + 1.0) / 2.0));
    assert!(near_to(value("thalweg"), (0.9 + 0.8) / 2.0));
    let (setting, best) = best_setting(&outcome.modes).unwrap();
    assert_eq!(setting.mode.to_string(), "fixed:bbr");
    assert!(near_to(best, 0.6));
    // All packets: 42 of 200.
    let mode = &outcome.modes[0];
    let loss = Query::from(Statistic::Loss).mode_value(mode, &outcome.modes);
    assert_eq!(loss, Ok(0.21));
}

#[test]
fn expectations_look_at_one_host_or_at_all() {
    let outcome = outcome();
    let [far, all] = &outcome.checks[..] else {
        panic!("{:?}", outcome.checks)
    };
    assert_eq!(
        far.text,
        "thalweg: median goodput (towards far) at least 0.75 × that of best-fixed"
    );
    assert!(near_to(far.value.unwrap(), 0.8));
    assert_eq!(far.reference.as_ref().unwrap().to_string(), "fixed:bbr");
    // 0.85 / 0.6 is less than 1.5.
    assert!(near_to(all.value.unwrap(), 0.85 / 0.6));
    assert!(!outcome.has_passed());
}

#[test]
fn the_words_and_tables_name_the_host() {
    let outcome = outcome();
    let sentences = summary::scenario_sentences(&outcome);
    assert_eq!(
        sentences[0],
        "Over all 2 hosts thalweg reached 0.85 of each host's best fixed arm; \
         the best single setting (bbr) had 0.60."
    );
    assert!(sentences[1].starts_with("Host near: In its last half thalweg reached 0.90"));
    let hosts = hosts_table(&outcome).unwrap();
    assert_eq!(
        hosts.header,
        ["mode", "near (best cubic)", "far (best bbr)", "mean"]
    );
    assert_eq!(
        hosts.rows[3],
        ["thalweg", "0.90× cubic", "0.80× bbr", "0.85×"]
    );
    let text = table::scenario_text(&outcome);
    assert!(
        text.contains("near: no loss") && text.contains("far: no loss"),
        "{text}"
    );
    let rows = table::connections_table(&outcome).rows;
    assert_eq!(rows[1][1], "1 far");
}

#[test]
fn the_document_has_a_summary_for_each_host_and_none_of_their_mixture() {
    let outcome = outcome();
    let whole = crate::Outcome {
        environment: crate::outcome::Environment {
            version: String::new(),
            kernel: String::new(),
            hz: 250,
            timers: crate::ticks::Timers::HighResolution,
            cpus: 1,
            congestion_controls: Vec::new(),
            iperf3: String::new(),
            command: String::new(),
            started: String::new(),
            backend: Default::default(),
            stack: None,
        },
        scenarios: vec![outcome],
    };
    let document = crate::report::run_document(&whole).unwrap();
    let scenario = &document["scenarios"][0];
    assert_eq!(scenario["best_fixed"], "fixed:bbr");
    assert_eq!(scenario["best_fixed_by_host"]["near"], "fixed:cubic");
    let summary = &scenario["modes"][3]["summary"];
    assert_eq!(summary["hosts"]["far"]["median_bps"], 8e6);
    assert_eq!(summary["hosts"]["far"]["statistics"]["loss"], 0.4);
    assert_eq!(summary["hosts"]["near"]["arms"]["cubic"], 10);
    let together: Vec<&String> = summary["statistics"].as_object().unwrap().keys().collect();
    assert_eq!(
        together,
        ["failures", "loss", "of-best-per-host", "queue-loss"]
    );
}

#[test]
fn a_prefix_stands_for_the_hosts_in_it() {
    let outcome = outcome();
    let [near, far] = &outcome.modes[0].remotes[..] else {
        panic!("two hosts")
    };
    assert!(near.is_at("10.0.0.2") && !near.is_at("10.0.0.1") && !near.is_at("x"));
    assert!(far.is_at("fd00:0:1:2::2") && far.is_at("fd00:0:1:2::/64"));
    assert!(!far.is_at("fd00:0:2:2::/64") && !far.is_at("10.0.0.2"));
    // The measure itself does not know hosts.
    let here = outcome.modes[0].towards_host("near").unwrap();
    let delays = Measure::QueueDelay.mode_values(here.measured_connections(), &here);
    assert_eq!(delays, [(30.0, 1); 10]);
    assert!(outcome.modes[0].towards_host("nowhere").is_none());
}
