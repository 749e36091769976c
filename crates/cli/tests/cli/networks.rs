//! What is known of a network decides about its new hosts, on real connections.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_lab::host::Side;

use crate::support::virtual_time::in_virtual_time;
use crate::support::{Bed, COLLECTOR, CONNECTIONS, Traffic, plain, wait_for};

/// Enough for full weight.
const BYTES: &str = "1100000";

/// An agent on a path of 5 ms each way that loses 3 % of the packets, and a prefix of hosts behind it.
fn bed(label: &str, settings: &str) -> (Bed, Traffic) {
    let mut options = plain(label);
    options.path.delay = serde_json::from_value(json!("5ms")).unwrap();
    options.further_addresses = 111;
    options.path.loss = thalweg_lab::units::Probability::from_fraction(0.03);
    // No comparison: each connection is the learner's.
    let settings = format!(
        "[arms]\nallow = [\"cubic\", \"bbr\"]\n[control]\nshare = 0.0\npermanent = 0.0\n{settings}"
    );
    let mut bed = Bed::new(&options, &settings);
    bed.start();
    let mut reader = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(reader.line(), "listening");
    (bed, reader)
}

/// The address of a host: the server has all of them.
fn address(bed: &Bed, host: u32) -> String {
    let first: std::net::Ipv4Addr = bed.server_address().parse().unwrap();
    std::net::Ipv4Addr::from(u32::from(first) + host).to_string()
}

/// One connection to each of these hosts.
fn visit(bed: &Bed, hosts: std::ops::Range<u32>) {
    for host in hosts {
        let before = bed.counter("scored");
        let address = address(bed, host);
        let arguments = [address.as_str(), "5001", "1", BYTES];
        bed.python(Side::Client, CONNECTIONS, &arguments).finish();
        bed.counter_reaches("scored", before + 1);
    }
}

fn networks(bed: &Bed) -> Vec<Value> {
    let found = bed.json(&["networks"]);
    found["networks"].as_array().unwrap().clone()
}

fn network(bed: &Bed, level: &str) -> Value {
    let found = networks(bed);
    let found = found.into_iter().find(|network| network["level"] == level);
    found.unwrap_or_else(|| panic!("no {level}"))
}

fn a_new_host_of_a_known_network_gets_the_better_arm_at_once() {
    let (mut bed, _reader) = bed("networks", "");
    visit(&bed, 0..40);
    for level in ["prefix", "service", "namespace"] {
        let known = network(&bed, level);
        assert_eq!(
            (&known["decides"], &known["best"]),
            (&json!(true), &json!("bbr")),
            "{known}"
        );
        let bbr = &known["arms"].as_array().unwrap()[1];
        // At 3 % and 10 ms cubic carries a fraction.
        assert!(bbr["difference_bits"].as_f64().unwrap() < -1.0, "{known}");
    }
    let prefix = network(&bed, "prefix");
    assert_eq!(prefix["hosts"], 40);
    assert_eq!(
        network(&bed, "service")["name"],
        "port 5001, opened, 8 to 16 ms"
    );

    // What the programs know outlives the agent.
    bed.end(Signal::SIGTERM);
    bed.start();
    assert_eq!(network(&bed, "prefix")["scored"], prefix["scored"]);
    visit(&bed, 100..112);
    let new: Vec<String> = (100..112).map(|host| address(&bed, host)).collect();
    let firsts = wait_for("the events of twelve decisions", || {
        let mut events = bed.events(12);
        events.retain(|event| {
            let host = event["host"].as_str().unwrap();
            event["kind"] == "decision" && new.iter().any(|new| new == host)
        });
        Some(events).filter(|events| events.len() >= 12)
    });
    let (mut decided, mut better) = (0, 0);
    for first in firsts {
        assert_eq!(first["level"], "prefix", "{first}");
        decided += 1;
        better += u32::from(first["arm"] == "bbr");
    }
    assert_eq!(decided, 12);
    // Now and then another arm is checked.
    assert!(better >= 10, "{better} of {decided}");
    assert!(bed.counter("by_group") >= 12);

    // A record that is new starts from it: the default is checked now and then, not first.
    let host = bed.host(&new[11]).expect("a record");
    assert_eq!(host["best"], "bbr", "{host}");
    let arms = host["arms"].as_array().unwrap();
    assert!(
        arms.iter().all(|arm| arm["evidence"].as_f64() > Some(1.0)),
        "{host}"
    );

    let forgotten = bed.json(&["reset", "--yes"]);
    assert!(forgotten["removed"].as_u64() >= Some(52), "{forgotten}");
    assert_eq!(networks(&bed), Vec::<Value>::new());
}

fn networks_that_are_not_enabled_know_nothing() {
    let (bed, _reader) = bed("alone", "[networks]\nenabled = false\n");
    visit(&bed, 0..17);
    assert_eq!(networks(&bed), Vec::<Value>::new());
    assert_eq!(bed.counter("by_group"), 0);
    assert_eq!(bed.hosts().len(), 17);
}

in_virtual_time!(
    [],
    a_new_host_of_a_known_network_gets_the_better_arm_at_once,
    networks_that_are_not_enabled_know_nothing,
);
