//! Events of a share of the host-hours: each is stored whole or not at all, also across a restart.

use std::collections::BTreeMap;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_lab::host::Side;

use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, COLLECTOR, plain, wait_for};

/// Connections to each address, one by one. Arguments: number to each, addresses.
const CLIENT: &str = r#"
import socket, sys
for address in sys.argv[2:] * int(sys.argv[1]):
    with socket.create_connection((address, 5001)) as connection:
        connection.sendall(bytes(300000))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"#;

fn connect(bed: &Bed, number: u32, addresses: &[String]) {
    let number = number.to_string();
    let mut arguments = vec![number.as_str()];
    arguments.extend(addresses.iter().map(String::as_str));
    bed.python(Side::Client, CLIENT, &arguments).finish();
}

/// Numbers of events of each address, kept and not, once there are so many in all.
fn numbers(bed: &Bed, addresses: &[String], all: usize) -> BTreeMap<String, (u32, u32)> {
    wait_for(&format!("{all} events"), || {
        let mut numbers: BTreeMap<String, (u32, u32)> = BTreeMap::new();
        let mut events = bed.events(1);
        events.retain(|event| addresses.iter().any(|address| event["remote"] == **address));
        for event in &events {
            let of_host = numbers.entry(event["remote"].as_str().unwrap().to_owned());
            let (kept, left_out) = of_host.or_default();
            match event["stands_for"].as_f64().unwrap() {
                2.0 => *kept += 1,
                0.0 => *left_out += 1,
                other => panic!("{other}: {event}"),
            }
        }
        assert!(events.len() <= all, "{numbers:?}");
        (events.len() == all).then_some(numbers)
    })
}

/// The connections of a file for replays, by host.
fn exported(bed: &Bed, file: &Path) -> BTreeMap<String, u32> {
    let name = file.to_str().unwrap();
    let output = bed.thalweg(&["export", "--decisions", name]);
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(file).unwrap();
    let mut hosts = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if let Some(host) = line["host"].as_str() {
            assert_eq!(line["stands_for"], 2.0, "{line}");
            *hosts.entry(host.to_owned()).or_default() += 1;
        }
    }
    hosts
}

fn said(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(arguments);
    let words = String::from_utf8(output.stdout).unwrap();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A machine that has just started: the hour does not change meanwhile.
fn a_host_hour_is_stored_whole_or_not_at_all() {
    let mut options = plain("sampled");
    options.further_addresses = 60;
    let mut bed = Bed::new(
        &options,
        "[learning]\nwarm_up = 0\n[networks]\nenabled = false\n[events]\nshare = 0.5\n",
    );
    let addresses = bed.pair.server_addresses();
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut server = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(server.line(), "listening");
    bed.start();
    connect(&bed, 3, &addresses);
    // Of the first to each host there is only its end.
    let first = numbers(&bed, &addresses, 5 * 61);
    let is_whole = |number: &(u32, u32)| [(5, 0), (0, 5)].contains(number);
    assert!(first.values().all(is_whole), "{first:?}");
    let kept: Vec<&String> = first
        .iter()
        .filter_map(|(host, number)| (*number == (5, 0)).then_some(host))
        .collect();
    // Half of 61, within four deviations.
    assert!((15..47).contains(&kept.len()), "{first:?}");
    let file = bed.directory.path().join("decisions");
    let expected = |count: u32| -> BTreeMap<String, u32> {
        kept.iter().map(|host| ((*host).clone(), count)).collect()
    };
    assert_eq!(exported(&bed, &file), expected(3));

    let other = addresses.iter().find(|host| !kept.contains(host)).unwrap();
    let text = said(&bed, &["explain", other]);
    assert!(text.contains("Latest events, newest first"), "{text}");
    assert!(
        text.contains("events of 50.0 % of the host-hours"),
        "{text}"
    );
    let status = bed.json(&["status"]);
    assert_eq!(status["events_share"], 0.5);
    assert!(status["events_left_out"].as_u64() >= Some(5 * (61 - kept.len() as u64)));
    let text = said(&bed, &["status"]);
    assert!(text.contains("50.0 % of the host-hours are kept"), "{text}");
    let text = said(&bed, &["metrics"]);
    assert!(text.contains("thalweg_store_events_share 0.5"), "{text}");

    // A new agent draws the same, and keeps its share until the hour is over.
    assert!(bed.end(Signal::SIGTERM).success());
    bed.configure("[learning]\nwarm_up = 0\n[networks]\nenabled = false\n[events]\nshare = 1.0\n");
    bed.start();
    connect(&bed, 1, &addresses);
    // What the first one left out is remembered no more.
    let all = 5 * kept.len() + 2 * 61;
    let second = numbers(&bed, &addresses, all);
    for (host, number) in &second {
        let expected = if kept.contains(&host) { (7, 0) } else { (0, 2) };
        assert_eq!(*number, expected, "{host}");
    }
    assert_eq!(exported(&bed, &file), expected(4));
}

in_virtual_time!(
    #[ignore = "slow: half a minute of a processor"]
    [],
    a_host_hour_is_stored_whole_or_not_at_all,
);
