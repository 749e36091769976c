//! Effects of the laboratory's paths on real connections: rates, queues, round-trip times, changes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use thalweg_lab::outcome::{Connection, ModeOutcome};
use thalweg_lab::query::Query;
use thalweg_lab::statistic::Statistic;
use thalweg_lab::{Backend, Mode, Options, Outcome, run_scenarios, table};
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{laboratory, thalweg};

fn options(directory: &Path, text: &str, modes: &[&str]) -> Options {
    let file = directory.join("scenario.toml");
    fs::write(&file, format!("name = \"test\"\n{text}")).unwrap();
    Options {
        scenarios: vec![file],
        modes: modes.iter().map(|mode| mode.parse().unwrap()).collect(),
        out: Some(directory.join("out")),
        progress: false,
        agent_binary: thalweg().into(),
        program: laboratory().into(),
        ..Options::default()
    }
}

fn figure(outcome: &Outcome, statistic: Statistic) -> f64 {
    let modes = &outcome.scenarios[0].modes;
    Query::from(statistic).mode_value(&modes[0], modes).unwrap()
}

/// A statistic of a mode, and of one class of its flows.
fn value(outcome: &Outcome, mode: &str, statistic: Statistic, class: Option<&str>) -> f64 {
    let mode: Mode = mode.parse().unwrap();
    let query = Query {
        class,
        ..statistic.into()
    };
    let modes = &outcome.scenarios[0].modes;
    let measured = outcome.scenarios[0].mode_outcome(&mode).unwrap();
    query.mode_value(measured, modes).unwrap()
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

/// Whether Mbit/s of data match a link's rate. 1448 of 1514 bytes are data, 1428 with IPv6, and TCP
/// may leave a fifth unused while it finds the rate.
fn carries(measured: f64, rate: f64) -> bool {
    (0.8..0.99).contains(&(measured / rate))
}

const TWO_HOSTS: &str = "[[host]]\nname = \"slow\"\nrate = \"5mbit\"\nqueue = \"50kb\"\n\
                         [[host]]\nname = \"quick\"\nrate = \"20mbit\"\nqueue = \"100kb\"\nfamily = \"ipv6\"\n";

pub fn the_bottleneck_has_the_rate_that_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nrate = \"20mbit\"\nqueue = \"200kb\"\n\
                [traffic]\nconnections = 1\nduration = \"3s\"\n";
    let outcome = run_scenarios(&options(directory.path(), text, &["baseline"])).unwrap();
    // 1448 of 1514 bytes on the link are data.
    let expected = 20.0 * 1448.0 / 1514.0;
    let measured = outcome.scenarios[0].modes[0].connections[0].goodput_bps / 1e6;
    assert!(
        (measured / expected - 1.0).abs() < 0.02,
        "{measured} Mbit/s, expected {expected}"
    );
}

pub fn round_trip_times_are_those_of_the_queue() {
    for family in ["ipv4", "ipv6"] {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            "[path]\nrate = \"20mbit\"\nqueue = \"50kb\"\nfamily = \"{family}\"\n\
             [traffic]\nconnections = 1\nduration = \"3s\"\n"
        );
        let outcome = run_scenarios(&options(directory.path(), &text, &["fixed:cubic"])).unwrap();
        // 50 kB at 20 Mbit/s take 20 ms to leave, and there is no other delay. Cubic goes back to
        // 0.7 of the full queue and fills it again, linearly with such small windows: 5 % of the
        // time above 0.98 of it. A packet that did not fit leaves a little space. The middle of a
        // bucket is at most a 32nd from the measurement.
        let p95_us = figure(&outcome, Statistic::RttP95);
        assert!((18.5e3..20.7e3).contains(&p95_us), "{family}: {p95_us} µs");
        let median_us = figure(&outcome, Statistic::RttMedian);
        assert!(
            (0.68 * 20e3..20e3).contains(&median_us),
            "{family}: {median_us} µs"
        );
        let connection = &outcome.scenarios[0].modes[0].connections[0];
        // The timestamp clock advances each millisecond, and half of its values share an ACK with
        // another: a packet takes 0.6 ms.
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
    options.origin.place.name = Backend::Link;
    let outcome = run_scenarios(&options).unwrap();
    let connection = &outcome.scenarios[0].modes[0].connections[0];
    let least = connection.rtt_us.iter().map(|(us, _)| *us).reduce(f64::min);
    // The middle of a bucket is at most a 32nd from the measurement.
    assert!((29e3..32e3).contains(&least.unwrap()), "{least:?}");
    assert!(figure(&outcome, Statistic::RttMedian) > 29e3);
}

pub fn the_path_changes_before_a_connection_and_within_one() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nrate = \"10mbit\"\nqueue = \"50kb\"\n[traffic]\nconnections = 3\nduration = \"2s\"\n\
                [[change]]\nat = 2\nrate = \"40mbit\"\n\
                [[change]]\nat = 3\nwithin = \"1s\"\nrate = \"10mbit\"\n";
    let outcome = run_scenarios(&options(directory.path(), text, &["baseline"])).unwrap();
    let mode = &outcome.scenarios[0].modes[0];
    let mbps: Vec<f64> = mode
        .connections
        .iter()
        .map(|one| one.goodput_bps / 1e6)
        .collect();
    println!("{mbps:?}");
    // The last connection is half at 40, half at 10.
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
    let outcome = run_scenarios(&options(
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
        // The last connection is half at 20, half at 5; the other host's path is unchanged.
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
    // Raw results are kept, one per host. Both send for 2 s and started within one: they overlap,
    // however slow the machine is.
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

fn short_flows_take_at_least_as_long_as_the_bottleneck_does() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nrate = \"10mbit\"\nfamily = \"ipv6\"\n[traffic]\nkind = \"short\"\n\
                connections = 2\nflows = 4\nbytes = \"100kb\"\n";
    let outcome = run_scenarios(&options(
        directory.path(),
        text,
        &["baseline", "fixed:reno"],
    ))
    .unwrap();
    for mode in &outcome.scenarios[0].modes {
        assert_eq!(mode.connections.len(), 8);
        for flow in &mode.connections {
            assert_eq!(flow.error, None);
            // 106 kB with headers at 10 Mbit/s: 85 ms, or 82 ms without a bucket of 3 kB.
            let took_us = flow.fct_us.unwrap();
            println!("{took_us} µs");
            assert!((82e3..86e3).contains(&took_us), "{took_us}");
            assert!(flow.sent_segments.unwrap() > 1 && flow.min_rtt_us.is_some());
        }
    }
    assert_eq!(
        outcome.scenarios[0].modes[1].arm_counts(),
        [("reno".to_owned(), 8)]
    );
    // Raw results are kept, one per round.
    let raw = fs::read_dir(directory.path().join("out/raw")).unwrap();
    let names: Vec<_> = raw.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

fn each_address_of_a_server_has_flows_of_its_own_sizes() {
    for family in ["ipv4", "ipv6"] {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            "[path]\nrate = \"50mbit\"\ndelay = \"1ms\"\nfamily = \"{family}\"\n[traffic]\nkind = \"short\"\n\
             connections = 2\nflows = 6\nhosts = 3\nsizes = {{ median = \"20kb\", mean = \"30kb\" }}\n"
        );
        let modes = ["fixed:reno", "random"];
        let outcome = run_scenarios(&options(directory.path(), &text, &modes)).unwrap();
        let [reno, random] = &outcome.scenarios[0].modes[..] else {
            panic!("two modes")
        };
        let sizes = |mode: &ModeOutcome| -> Vec<u64> {
            let flows = mode.connections.iter();
            flows.map(|flow| flow.flow_bytes.unwrap()).collect()
        };
        // Alike in all modes, and different within one.
        assert_eq!(sizes(reno), sizes(random));
        let different: BTreeSet<u64> = sizes(reno).into_iter().collect();
        assert_eq!(different.len(), 12, "{different:?}");
        for flow in reno.connections.iter().chain(&random.connections) {
            assert_eq!(flow.error, None);
            // Round-trip times were found under the flow's own address.
            assert!(!flow.rtt_us.is_empty(), "{flow:?}");
        }
        let arms: BTreeSet<&str> = random.connections.iter().map(|one| &*one.arm).collect();
        assert!(arms.len() > 1, "{arms:?}");
        let raw = fs::read_to_string(directory.path().join("out/raw/random-0001.json")).unwrap();
        let raw: serde_json::Value = serde_json::from_str(&raw).unwrap();
        let servers: Vec<&str> = (raw.as_array().unwrap().iter())
            .map(|flow| flow["server"].as_str().unwrap())
            .collect();
        assert_eq!(servers[..3], servers[3..]);
        assert_eq!(BTreeSet::from_iter(servers).len(), 3);
    }
}

fn responses_come_at_their_interval_over_one_connection_each() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nrate = \"20mbit\"\n[traffic]\nkind = \"responses\"\nconnections = 2\n\
                duration = \"9s\"\nflows = [1, 3]\nbytes = \"500kb\"\nevery = \"2s\"\n";
    let outcome = run_scenarios(&options(directory.path(), text, &["baseline"])).unwrap();
    let flows = &outcome.scenarios[0].modes[0].connections;
    // At 0, 2, 4, 6 and 8 s.
    let of = |round| flows.iter().filter(move |flow| flow.round == round);
    assert_eq!((of(0).count(), of(1).count()), (5, 15));
    for flow in flows {
        assert_eq!(flow.error, None);
        // 524 kB with headers: 210 ms alone, 629 ms beside two others.
        let most_us = if flow.round == 0 { 212e3 } else { 635e3 };
        let took_us = flow.fct_us.unwrap();
        assert!((205e3..most_us).contains(&took_us), "{took_us} µs");
    }
}

fn a_client_vanishes_within_a_round_and_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let dark = "loss = \"100%\"\nreverse_loss = \"100%\"\n";
    let light = "loss = \"0%\"\nreverse_loss = \"0%\"\n";
    let text = format!(
        "[path]\nrate = \"20mbit\"\n[traffic]\nkind = \"short\"\nconnections = 2\nflows = 1\n\
         bytes = \"1mb\"\n[[change]]\nat = 1\nwithin = \"100ms\"\n{dark}[[change]]\nat = 2\n{light}"
    );
    let outcome = run_scenarios(&options(directory.path(), &text, &["baseline"])).unwrap();
    let [gone, back] = &outcome.scenarios[0].modes[0].connections[..] else {
        panic!("two flows")
    };
    let error = gone.error.as_deref().unwrap();
    assert!(error.contains("no progress for 20 s"), "{error}");
    assert_eq!((gone.fct_us, back.error.as_deref()), (None, None));
}

fn competitors_share_what_there_is_and_run_what_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nrate = \"20mbit\"\nqueue = \"100kb\"\n[traffic]\nkind = \"competing\"\n\
                connections = 1\nduration = \"9s\"\nagainst = { cc = \"cubic\", flows = 2 }\n";
    let outcome = run_scenarios(&options(
        directory.path(),
        text,
        &["fixed:cubic", "fixed:reno"],
    ))
    .unwrap();
    for (mode, arm) in outcome.scenarios[0].modes.iter().zip(["cubic", "reno"]) {
        let arms: Vec<&str> = mode
            .connections
            .iter()
            .map(|flow| flow.arm.as_str())
            .collect();
        assert_eq!(arms, ["cubic", "cubic", arm]);
        // All three together fill the bottleneck and no more: 19.1 Mbit/s of data, plus the bucket.
        let sum: f64 = mode.connections.iter().map(|flow| flow.goodput_bps).sum();
        assert!((18.7e6..19.2e6).contains(&sum), "{sum}");
        let name = mode.mode.to_string();
        let share = value(&outcome, &name, Statistic::Share, None);
        // A third, except for chance: whose packets the full queue takes.
        assert!((0.1..0.6).contains(&share), "{share}");
        let index = value(&outcome, &name, Statistic::Jain, None);
        println!("sum {sum}, share {share}, index {index}");
        assert!((0.75..=1.0).contains(&index), "{index}");
    }
    assert_eq!(value(&outcome, "fixed:cubic", Statistic::Harm, None), 0.0);
}

fn incast_has_all_classes_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nrate = \"50mbit\"\nqueue = \"200kb\"\n[traffic]\nkind = \"incast\"\n\
                connections = 1\nduration = \"2s\"\n";
    let outcome = run_scenarios(&options(directory.path(), text, &["baseline"])).unwrap();
    let mode = &outcome.scenarios[0].modes[0];
    assert_eq!(mode.class_names(), ["rpc-10kb", "rpc-1mb", "stream"]);
    let median = |class| value(&outcome, "baseline", Statistic::FctMedian, Some(class));
    println!("{} {}", median("rpc-1mb"), median("rpc-10kb"));
    // A call of 1 MB takes 167 ms alone; one of 10 kB waits for the queue.
    assert!(median("rpc-1mb") > 165e3);
    assert!(median("rpc-10kb") < median("rpc-1mb"));
    assert_eq!(value(&outcome, "baseline", Statistic::Failures, None), 0.0);
    let text = table::scenario_text(&outcome.scenarios[0]);
    assert!(
        text.contains("median flow-completion time, rpc-10kb"),
        "{text}"
    );
}

fn the_loss_of_the_live_link_changes() {
    let directory = tempfile::tempdir().unwrap();
    // The queue is larger than the receiver's window: nothing else is lost.
    let text = "[path]\nrate = \"50mbit\"\nqueue = \"20mb\"\n[traffic]\nconnections = 2\n\
                [[change]]\nat = 2\nloss = \"5%\"\nreverse_loss = \"2%\"\n";
    let outcome = run_scenarios(&options(directory.path(), text, &["baseline"])).unwrap();
    let mode = &outcome.scenarios[0].modes[0];
    let shares: Vec<f64> = mode
        .connections
        .iter()
        .filter_map(Connection::retransmission_share)
        .collect();
    println!("{shares:?}");
    // 5 %, and chance in some hundred segments.
    assert!(
        shares[0] == 0.0 && (0.025..0.1).contains(&shares[1]),
        "{shares:?}"
    );
    assert!(mode.forward.dropped_packets > 0 && mode.reverse.dropped_packets > 0);
}

fn random_early_detection_marks_before_the_queue_is_full() {
    // Figures of a path: Mbit/s, the 95th percentile of its round-trip times in milliseconds, the
    // share of retransmitted segments.
    let figures = |keys: &str| {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            "[path]\nrate = \"20mbit\"\nqueue = \"200kb\"\noffload = false\n{keys}\n\
             [traffic]\nconnections = 1\nduration = \"3s\"\n\
             [system.sysctl]\n\"net.ipv4.tcp_ecn\" = 1\n"
        );
        let outcome = run_scenarios(&options(directory.path(), &text, &["fixed:reno"])).unwrap();
        let measured = [
            Statistic::Median,
            Statistic::RttP95,
            Statistic::RetransmissionShare,
        ];
        let [bps, rtt_us, again] = measured.map(|statistic| figure(&outcome, statistic));
        (bps / 1e6, rtt_us / 1e3, again)
    };
    let (full, managed) = (figures(""), figures("aqm = \"red\"\necn = true"));
    println!("{full:?} {managed:?}");
    // 200 kB at 20 Mbit/s take 80 ms to leave, counted to a 32nd. RED's average stays below a
    // quarter of that; slow start overshoots it for less than a twentieth of the time.
    assert!((77.5..82.5).contains(&full.1) && full.2 > 0.0, "{full:?}");
    assert!(managed.1 < 20.0 && managed.2 == 0.0, "{managed:?}");
    for (mbps, ..) in [full, managed] {
        assert!((18.7..19.2).contains(&mbps), "{mbps} Mbit/s");
    }
}

in_virtual_time!(
    #[ignore = "slow: more cases in virtual time"]
    [],
    incast_has_all_classes_at_once,
    several_hosts_have_their_own_rates_at_the_same_time,
    a_client_vanishes_within_a_round_and_comes_back,
    no_round_trip_is_shorter_than_the_path,
    short_flows_take_at_least_as_long_as_the_bottleneck_does,
    each_address_of_a_server_has_flows_of_its_own_sizes,
    responses_come_at_their_interval_over_one_connection_each,
    competitors_share_what_there_is_and_run_what_was_asked_for,
    the_loss_of_the_live_link_changes,
    random_early_detection_marks_before_the_queue_is_full,
);
