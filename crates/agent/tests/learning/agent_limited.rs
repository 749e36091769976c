//! What else than the path limits a connection: its receiver says nothing about an arm.

use serde_json::{Value, json};
use thalweg_lab::host::Side;

use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, COLLECTOR, CONNECTIONS, Traffic, plain, wait_for};

const BYTES: u32 = 500_000;

/// An agent that tries nothing, on a path of 20 ms each way.
fn bed(label: &str) -> Bed {
    let mut options = plain(label);
    options.path.delay = serde_json::from_value(json!("20ms")).unwrap();
    let mut bed = Bed::new(&options, "[arms]\nallow = [\"cubic\"]\n");
    bed.start();
    bed
}

/// Reads with a receive buffer of a few segments, or with the system's.
fn reader(bed: &Bed, buffer: &[&str]) -> Traffic {
    let mut reader = bed.python(Side::Server, COLLECTOR, buffer);
    assert_eq!(reader.line(), "listening");
    reader
}

fn transfers(bed: &Bed, number: u32) {
    let address = bed.server_address();
    let (number, bytes) = (number.to_string(), BYTES.to_string());
    let arguments = [address.as_str(), "5001", &number, &bytes];
    bed.python(Side::Client, CONNECTIONS, &arguments).finish();
}

/// The estimate of the one arm.
fn estimate(bed: &Bed) -> Value {
    let host = bed.host(&bed.server_address()).expect("a record");
    host["arms"][0]["cost_bits"].clone()
}

fn a_slow_receiver_says_nothing_about_an_arm_that_is_known() {
    let bed = bed("reads");
    {
        let _reader = reader(&bed, &[]);
        transfers(&bed, 2);
        bed.counter_reaches("scored", 2);
    }
    let before = estimate(&bed);
    assert!(before.is_number(), "{before}");
    {
        let _reader = reader(&bed, &["20000"]);
        transfers(&bed, 3);
        bed.counter_reaches("skipped_app_limited", 3);
    }
    assert_eq!(bed.counter("scored"), 2);
    assert_eq!(estimate(&bed), before);
    // A replay needs them nevertheless: it would miss the slow ones only.
    wait_for("the limited ends", || {
        let events = bed.events(1);
        let outcomes = events.iter().map(|event| &event["measurement"]["outcome"]);
        (outcomes.filter(|outcome| *outcome == "limited").count() == 3).then_some(())
    });
    let _reader = reader(&bed, &[]);
    transfers(&bed, 1);
    bed.counter_reaches("scored", 3);
}

/// The path carries as much at least, so that better news is learned at once.
fn a_first_measurement_counts_whatever_limited_it() {
    let bed = bed("first");
    {
        let _reader = reader(&bed, &["20000"]);
        transfers(&bed, 1);
        bed.counter_reaches("scored", 1);
    }
    let slow = estimate(&bed).as_f64().unwrap();
    let _reader = reader(&bed, &[]);
    transfers(&bed, 1);
    bed.counter_reaches("scored", 2);
    let fast = estimate(&bed).as_f64().unwrap();
    assert!(fast < slow - 1.0, "{fast} {slow}");
}

in_virtual_time!(
    #[ignore = "slow: a minute of a processor"]
    [],
    a_slow_receiver_says_nothing_about_an_arm_that_is_known,
    a_first_measurement_counts_whatever_limited_it,
);
