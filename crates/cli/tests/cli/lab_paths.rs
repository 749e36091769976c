//! What the laboratory's paths do to real connections: rates, queues, round trips, changes.

use std::fs;
use std::path::Path;

use crate::support::virtual_time::in_virtual_time;
use thalweg_lab::statistic::{Query, Statistic};
use thalweg_lab::{Backend, Options, Outcome, run};

fn options(directory: &Path, text: &str, modes: &[&str]) -> Options {
    let file = directory.join("scenario.toml");
    fs::write(&file, format!("name = \"test\"\n{text}")).unwrap();
    Options {
        scenarios: vec![file],
        modes: modes.iter().map(|mode| mode.parse().unwrap()).collect(),
        out: Some(directory.join("out")),
        progress: false,
        ..Options::default()
    }
}

fn figure(outcome: &Outcome, statistic: Statistic) -> f64 {
    let modes = &outcome.scenarios[0].modes;
    Query::from(statistic).value(&modes[0], modes).unwrap()
}

/// Mbit/s of each connection of a mode to a host.
fn mbps(outcome: &Outcome, mode: usize, host: &str) -> Vec<f64> {
    outcome.scenarios[0].modes[mode]
        .connections
        .iter()
        .filter(|one| one.host == host)
        .map(|one| one.goodput_bps / 1e6)
        .collect()
}

/// Whether so many Mbit/s of data are what a link of that rate carries: of each 1514 bytes 1448 are
/// data, 1428 with IPv6; and TCP may leave a fifth while it finds the rate.
fn carries(measured: f64, rate: f64) -> bool {
    (0.8..0.99).contains(&(measured / rate))
}

const TWO_HOSTS: &str = "[[host]]\nname = \"slow\"\nrate = \"5mbit\"\nqueue = \"50kb\"\n\
                         [[host]]\nname = \"quick\"\nrate = \"20mbit\"\nqueue = \"100kb\"\nfamily = \"ipv6\"\n";

fn the_bottleneck_has_the_rate_that_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nrate = \"20mbit\"\nqueue = \"200kb\"\n\
                [traffic]\nconnections = 1\nduration = \"3s\"\n";
    let outcome = run(&options(directory.path(), text, &["baseline"])).unwrap();
    // Of each 1514 bytes on the link 1448 are data.
    let expected = 20.0 * 1448.0 / 1514.0;
    let measured = outcome.scenarios[0].modes[0].connections[0].goodput_bps / 1e6;
    assert!(
        (measured / expected - 1.0).abs() < 0.02,
        "{measured} Mbit/s, expected {expected}"
    );
}

fn round_trip_times_are_those_of_the_queue() {
    for family in ["ipv4", "ipv6"] {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            "[path]\nrate = \"20mbit\"\nqueue = \"50kb\"\nfamily = \"{family}\"\n\
             [traffic]\nconnections = 1\nduration = \"3s\"\n"
        );
        let outcome = run(&options(directory.path(), &text, &["fixed:cubic"])).unwrap();
        // 50 kB at 20 Mbit/s take 20 ms to leave, and nothing else takes time. Cubic goes
        // back to 0.7 of the full queue and then fills it again, evenly as such small
        // windows grow: 5 % of the time above 0.98 of it. Less what a packet that did not
        // fit leaves free. The middle of a bucket is at most a 32nd from what was measured.
        let p95_us = figure(&outcome, Statistic::RttP95);
        assert!((18.5e3..20.7e3).contains(&p95_us), "{family}: {p95_us} µs");
        let median_us = figure(&outcome, Statistic::RttMedian);
        assert!(
            (0.68 * 20e3..20e3).contains(&median_us),
            "{family}: {median_us} µs"
        );
        let connection = &outcome.scenarios[0].modes[0].connections[0];
        // A value of the timestamp clock a millisecond, half of them acknowledged together
        // with another: a packet takes 0.6 ms.
        let samples: u64 = connection.rtt_us.iter().map(|(_, count)| count).sum();
        assert!((1_500..=3_100).contains(&samples), "{family}: {samples}");
        let smoothed = figure(&outcome, Statistic::SrttMedian);
        assert!((median_us / smoothed - 1.0).abs() < 0.15, "{smoothed} µs");
    }
}

fn no_round_trip_is_shorter_than_the_path() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nrate = \"10mbit\"\ndelay = \"15ms\"\n[traffic]\nconnections = 1\n";
    let mut options = options(directory.path(), text, &["fixed:cubic"]);
    options.place.name = Backend::Link;
    let outcome = run(&options).unwrap();
    let connection = &outcome.scenarios[0].modes[0].connections[0];
    let least = connection.rtt_us.iter().map(|(us, _)| *us).reduce(f64::min);
    // The middle of a bucket is at most a 32nd from what was measured.
    assert!((29e3..32e3).contains(&least.unwrap()), "{least:?}");
    assert!(figure(&outcome, Statistic::RttMedian) > 29e3);
}

fn the_path_changes_before_a_connection_and_within_one() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nrate = \"10mbit\"\nqueue = \"50kb\"\n[traffic]\nconnections = 3\nduration = \"2s\"\n\
                [[change]]\nat = 2\nrate = \"40mbit\"\n\
                [[change]]\nat = 3\nwithin = \"1s\"\nrate = \"10mbit\"\n";
    let outcome = run(&options(directory.path(), text, &["baseline"])).unwrap();
    let mode = &outcome.scenarios[0].modes[0];
    let mbps: Vec<f64> = mode
        .connections
        .iter()
        .map(|one| one.goodput_bps / 1e6)
        .collect();
    println!("{mbps:?}");
    // Half of the last at 40, half at 10.
    for (measured, rate) in mbps.iter().zip([10.0, 40.0, 25.0]) {
        assert!(carries(*measured, rate), "{mbps:?}");
    }
    assert_eq!(mode.last_change, Some(2));
}

fn several_hosts_have_their_own_rates_at_the_same_time() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "[traffic]\nconnections = 2\nduration = \"2s\"\n{TWO_HOSTS}\
         [[change]]\nat = 2\nhost = \"quick\"\nwithin = \"1s\"\nrate = \"5mbit\"\n"
    );
    let outcome = run(&options(
        directory.path(),
        &text,
        &["fixed:cubic", "fixed:reno"],
    ))
    .unwrap();
    for (index, arm) in ["cubic", "reno"].into_iter().enumerate() {
        let mode = &outcome.scenarios[0].modes[index];
        assert_eq!(mode.connections.len(), 4);
        assert!(mode.connections.iter().all(|one| one.arm == arm));
        let (slow, quick) = (
            mbps(&outcome, index, "slow"),
            mbps(&outcome, index, "quick"),
        );
        println!("{slow:?}, {quick:?}");
        // Half of the last at 20, half at 5; the other host's path stays as it is.
        let rates = slow
            .iter()
            .zip([5.0, 5.0])
            .chain(quick.iter().zip([20.0, 12.5]));
        for (measured, rate) in rates {
            assert!(carries(*measured, rate), "slow {slow:?}, quick {quick:?}");
        }
        let [first, second] = &mode.remotes[..] else {
            panic!("{:?}", mode.remotes)
        };
        assert_eq!((first.last_change, second.last_change), (None, Some(1)));
        assert_eq!(second.address.to_string(), "fd00:0:1:2::2");
        let seen = first.forward.seen_packets + second.forward.seen_packets;
        assert_eq!(mode.forward.seen_packets, seen);
        assert!(first.forward.seen_packets > 100 && second.forward.seen_packets > 100);
    }
    // Raw results are kept, one a host. Both send for 2 s and began within one: at the
    // same time, however slow the machine is.
    let began = ["slow", "quick"].map(|host| {
        let name = format!("out/raw/fixed-reno-0001-{host}.json");
        let text = fs::read_to_string(directory.path().join(name)).unwrap();
        let raw: serde_json::Value = serde_json::from_str(&text).unwrap();
        raw["start"]["timestamp"]["timesecs"].as_i64().unwrap()
    });
    assert!((began[0] - began[1]).abs() <= 1, "{began:?}");
    let page = fs::read_to_string(directory.path().join("out/report.html")).unwrap();
    assert!(page.contains("Course, host quick"));
}

in_virtual_time!(
    [],
    the_bottleneck_has_the_rate_that_was_asked_for,
    round_trip_times_are_those_of_the_queue,
    no_round_trip_is_shorter_than_the_path,
    the_path_changes_before_a_connection_and_within_one,
    several_hosts_have_their_own_rates_at_the_same_time,
);
