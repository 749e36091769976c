//! The loss rule on real connections: changes of the congestion control mid-flow.

use serde_json::Value;
use thalweg_lab::host::{PairOptions, Side};
use thalweg_testbed::{Bed, plain, privileged, wait_for};

fn lossy(label: &str, percent: f64) -> PairOptions {
    let mut options = plain(label);
    options.path.loss = thalweg_lab::units::Probability::from_fraction(percent / 100.0);
    options
}

/// Sends until its congestion control changes, or its time is over. Prints the first one, waits for
/// a line of input, prints the last one.
const LONG: &str = r#"
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
name = lambda: connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
first = name()
print(first.decode())
sys.stdin.readline()
end = time.monotonic() + float(sys.argv[3])
while name() == first and time.monotonic() < end:
    connection.sendall(bytes(100000))
print(name().decode())
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_loss_rule_moves_a_connection_only_where_something_better_is_known() {
    if !privileged() {
        return;
    }
    let settings = "[arms]\nallow = [\"cubic\", \"bbr\"]\n";
    let mut bed = Bed::new(&lossy("rescue", 5.0), settings);
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let long = |seconds: &str| {
        let mut traffic = bed.python(Side::Client, LONG, &[&address, "5001", seconds]);
        assert_eq!(traffic.line(), "cubic");
        traffic
    };
    // Nothing is known of the host: the connection loses, and stays.
    let mut alone = long("2");
    // These wait until a record exists.
    let mut waiting: Vec<_> = (0..6).map(|_| long("15")).collect();
    alone.go_on();
    assert_eq!(alone.line(), "cubic");
    alone.finish();
    assert_eq!(bed.counter("switched"), 0);

    // The record says that bbr is better by four times; on a busy machine a measurement might not.
    bed.counter_reaches("scored", 1);
    let mut document = bed.json(&["export"]);
    let host = &mut document["hosts"][0];
    host["queue_q16"] = 0.into();
    let mut cubic = host["arms"]["cubic"].clone();
    for (key, number) in [("weight_q16", 4 << 16), ("segs", 4096), ("retrans", 200)] {
        cubic[key] = number.into();
    }
    host["arms"]["bbr"] = cubic.clone();
    for (key, worse) in [("value", 2 << 16), ("log_rate_q16", -2 << 16)] {
        cubic[key] = (cubic[key].as_i64().unwrap() + worse).into();
    }
    host["arms"]["cubic"] = cubic;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("known.json");
    std::fs::write(&file, document.to_string()).unwrap();
    assert_eq!(bed.json(&["import", file.to_str().unwrap()])["imported"], 1);
    assert_eq!(bed.host(&address).unwrap()["best"], "bbr");
    // Three in four are moved; the chance that none of six is moved is one in four thousand.
    waiting.iter_mut().for_each(thalweg_testbed::Traffic::go_on);
    let switch = wait_for("a move", || {
        let events = bed.events(1);
        let moved = |event: &&Value| event["reason"] == "loss" && event["arm"] == "bbr";
        events.iter().find(moved).cloned()
    });
    assert!(bed.counter("switched") > 0);
    assert_eq!(switch["system_arm"], "cubic");
    assert_eq!(switch["propensity"], 0.75);
    let stretch = wait_for("the stretch before the move", || {
        let events = bed.events(1);
        events
            .iter()
            .find(|event| event["measurement"]["end"] == "switch")
            .cloned()
    });
    assert_eq!(stretch["arm"], "cubic", "the losses are cubic's, not bbr's");
    assert!(stretch["measurement"]["segs_out"].as_u64() >= Some(128));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_arm_that_loses_more_than_the_default_is_taken_back_mid_flow() {
    if !privileged() {
        return;
    }
    let settings = "[arms]\nallow = [\"cubic\", \"reno\"]\n";
    let mut bed = Bed::new(&plain("withdrawn"), settings);
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    // The default loses nothing on this path. Its measurements earn the credit of a first trial.
    bed.connect(&address, 6, 4_000_000);
    bed.counter_reaches("scored", 6);
    let mut tried = wait_for("a trial of reno", || {
        let mut traffic = bed.python(Side::Client, LONG, &[&address, "5001", "15"]);
        (traffic.line() == "reno").then_some(traffic)
    });
    // From here on the path loses; the default's record does not show it yet.
    bed.pair
        .change_path(&lossy("withdrawn", 10.0).path)
        .expect("a path that changes");
    tried.go_on();
    assert_eq!(tried.line(), "cubic");
    tried.finish();
    let event = wait_for("the event", || {
        let events = bed.events(1);
        let taken_back = |event: &&Value| event["reason"] == "withdrawn";
        events.iter().find(taken_back).cloned()
    });
    assert_eq!(
        (&event["arm"], &event["chosen"]),
        (&"cubic".into(), &"cubic".into())
    );
    assert_eq!(bed.counter("withdrawn"), 1);
    assert_eq!(event["propensity"], 1.0);
    let explained = bed.json(&["explain", &address]);
    let text = explained[0]["summary"].as_str().unwrap();
    assert!(text.contains("others lose: reno"), "{text}");
}
