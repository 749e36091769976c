//! An agent in a fleet, with a real nats-server on loopback.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_fleet::wire::Network;
use thalweg_fleet::{Fleet, Incoming};

use crate::fleet_server::{Server, bed, network_of, others_decide, reader};
use crate::support::{Bed, privileged, wait_for};

#[test]
fn what_others_know_decides_the_first_connection() {
    if !privileged() {
        return;
    }
    let Some(mut server) = Server::new() else {
        return;
    };
    let mut bed = bed("fleet", &server);
    server.all_tell(24, &network_of(&bed));
    bed.start();
    let _reader = reader(&bed);
    others_decide(&bed);

    // Nothing was ever sent there.
    assert!(bed.hosts().is_empty());
    bed.connect(&bed.server_address(), 1, 1_100_000);
    let first = wait_for("the first decision", || {
        let mut events = bed.events(1);
        events.retain(|it| it["kind"] == "decision");
        events.pop()
    });
    assert_eq!(first["level"], "fleet-prefix", "{first}");
    assert_eq!(first["arm"], "reno", "{first}");
    bed.counter_reaches("scored", 1);

    // The fleet away changes nothing.
    server.process = None;
    bed.connect(&bed.server_address(), 2, 1_100_000);
    bed.counter_reaches("scored", 3);
    wait_for("the loss of the server", || {
        let place = bed.json(&["fleet", "status"]);
        place["server"].is_null().then_some(())
    });
    server.start();
    wait_for("the server again", || {
        let place = bed.json(&["fleet", "status"]);
        place["server"].is_string().then_some(())
    });
}

#[test]
fn an_agent_tells_what_it_measured_itself() {
    if !privileged() {
        return;
    }
    let Some(server) = Server::new() else {
        return;
    };
    let mut bed = bed("fleet-tells", &server);
    bed.start();
    let _reader = reader(&bed);
    bed.connect(&bed.server_address(), 1, 1_100_000);
    bed.counter_reaches("scored", 1);
    // A new session looks at its networks at once, and not after a minute.
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    let listener = Fleet::start(&server.settings("listener")).expect("a client");
    let told = wait_for("what the agent tells", || {
        let incoming = listener.take(Duration::from_millis(100));
        incoming.into_iter().find_map(|it| match it {
            Incoming::Priors { priors, .. } if priors.agent.as_str() == "new" => Some(priors),
            _ => None,
        })
    });
    let networks: Vec<&Network> = told.networks.iter().map(|it| &it.network).collect();
    assert_eq!(networks, [&network_of(&bed)]);
    let [cubic] = &told.networks[0].arms[..] else {
        panic!("{told:?}");
    };
    assert_eq!((&*cubic.name, cubic.cost_q16), ("cubic", 0));
    assert!(cubic.evidence_q16 <= 1 << 16, "{cubic:?}");
}

#[test]
fn an_agent_without_fleet_has_none() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("fleet-none", "");
    assert_eq!(bed.json(&["fleet", "status"]), Value::Null);
    let said = String::from_utf8(bed.thalweg(&["fleet", "status"]).stdout).expect("text");
    assert_eq!(said, "this agent is in no fleet ([fleet] servers = [])\n");
}
