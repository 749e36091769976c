//! Buffers that are too small are named as what limits a network, and what lifting the limit
//! gives is as predicted.

use serde_json::{Value, json};
use thalweg_lab::host::Side;

use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, COLLECTOR, CONNECTIONS, Traffic, plain, wait_for};

const BYTES: u32 = 1_200_000;

/// An agent on a path of 20 ms each way and 20 Mbit/s.
fn bed(label: &str, settings: &str) -> Bed {
    let mut options = plain(label);
    options.path.delay = serde_json::from_value(json!("20ms")).unwrap();
    options.path.rate = serde_json::from_value(json!("20mbit")).unwrap();
    options.path.queue = serde_json::from_value(json!("100kb")).unwrap();
    let mut bed = Bed::new(&options, settings);
    bed.start();
    bed
}

/// A reader whose receive buffer has this many bytes, of which half are the kernel's overhead. So
/// SO_RCVBUF is half of it: the kernel doubles it.
fn reader(bed: &Bed, buffer: u64) -> Traffic {
    let mut reader = bed.python(Side::Server, COLLECTOR, &[&(buffer / 2).to_string()]);
    assert_eq!(reader.line(), "listening");
    reader
}

/// Makes this many transfers; returns the network's account once they are in it.
fn transfers(bed: &Bed, number: u64) -> Value {
    let before = connections(bed);
    let address = bed.server_address();
    let (count, bytes) = (number.to_string(), BYTES.to_string());
    let arguments = [address.as_str(), "5001", &count, &bytes];
    bed.python(Side::Client, CONNECTIONS, &arguments).finish();
    wait_for("the transfers' account", || {
        (connections(bed) >= before + number).then(|| account(bed).unwrap())
    })
}

/// The account of the server's prefix. Advice also measures the server's ends, which send nothing.
fn account(bed: &Bed) -> Option<Value> {
    let found = bed.json(&["networks", "--limits", "--level", "prefix"]);
    found["limits"].as_array().unwrap().first().cloned()
}

fn connections(bed: &Bed) -> u64 {
    account(bed).map_or(0, |it| it["limits"]["connections"].as_u64().unwrap())
}

/// Mean rate of the latest transfers, bytes per second of the time with data outstanding.
fn rate(bed: &Bed, number: usize) -> f64 {
    let events = bed.events(1);
    let ends = events.iter().filter(|event| event["kind"] == "close");
    let ends: Vec<&Value> = ends.collect();
    let latest = &ends[ends.len() - number..];
    let sum = |name: &str| -> f64 {
        let of = |event: &&Value| event["measurement"][name].as_f64().unwrap();
        latest.iter().map(of).sum()
    };
    1e6 * sum("bytes") / sum("duration_us")
}

/// The one finding of an account.
fn finding(account: &Value) -> &Value {
    let findings = account["limits"]["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{account}");
    &findings[0]
}

fn a_receive_buffer_is_named_and_what_it_costs_is_what_it_gives() {
    let bed = bed("buffers", "[arms]\nallow = [\"cubic\"]\n");
    let held = {
        let _reader = reader(&bed, 64_000);
        transfers(&bed, 3)
    };
    let first = rate(&bed, 3);
    let found = finding(&held);
    assert_eq!(found["limit"], "receiver", "{held}");
    assert_eq!(found["setting"], "net.ipv4.tcp_rmem");
    // Nothing has shown what the path carries: twice the rate is aimed at, not promised.
    assert_eq!(found["predicted_bytes_per_s"], Value::Null, "{held}");
    let words = found["words"].as_str().unwrap();
    assert!(
        words.contains("What the path would carry is not known"),
        "{words}"
    );
    let second = {
        let _reader = reader(&bed, found["needed_bytes"].as_u64().unwrap());
        transfers(&bed, 3);
        rate(&bed, 3)
    };
    println!("{first} B/s, with what twice as much needs {second}");
    assert!(
        (1.6..2.4).contains(&(second / first)),
        "{first} to {second}"
    );

    // Some connections have a larger buffer, and show what the path carries.
    let free = {
        let _reader = reader(&bed, 400_000);
        transfers(&bed, 4);
        rate(&bed, 4)
    };
    let held = {
        let _reader = reader(&bed, 64_000);
        transfers(&bed, 6)
    };
    let found = finding(&held);
    let predicted = found["predicted_bytes_per_s"].as_f64().unwrap();
    assert!(
        (0.8..1.2).contains(&(predicted / free)),
        "{predicted} {free}"
    );
    let told = bed.thalweg(&["advise"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(
        told.contains("10.0.0.0/24: The receiver's window holds transfers up"),
        "{told}"
    );
    println!("{told}");
    let third = {
        let _reader = reader(&bed, found["needed_bytes"].as_u64().unwrap());
        transfers(&bed, 3);
        rate(&bed, 3)
    };
    println!("predicted {predicted} B/s, reached {third}");
    assert!(
        (0.8..1.2).contains(&(third / predicted)),
        "{predicted}: {third}"
    );
}

fn limits_are_known_in_every_mode() {
    for (label, settings) in [
        ("dry", "dry_run = true\n"),
        ("classic", "mode = \"classic\"\n"),
        ("alone", "[networks]\nenabled = false\n"),
        ("advice", "[advise]\nonly = true\n"),
    ] {
        let bed = bed(label, settings);
        let _reader = reader(&bed, 40_000);
        // Classic chooses from the fifth connection on, and measures no others.
        if label == "classic" {
            let address = bed.server_address();
            let arguments = [&*address, "5001", "4", "1000"];
            bed.python(Side::Client, CONNECTIONS, &arguments).finish();
        }
        let held = transfers(&bed, 2);
        assert_eq!(finding(&held)["limit"], "receiver", "{label}: {held}");
    }
}

in_virtual_time!(
    #[ignore = "slow: a minute of a processor"]
    [],
    a_receive_buffer_is_named_and_what_it_costs_is_what_it_gives,
    limits_are_known_in_every_mode,
);
