//! An agent in a fleet, with a real nats-server on loopback.

use std::net::Ipv4Addr;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_fleet::wire::Network;
use thalweg_fleet::{Fleet, Incoming};

use crate::fleet_server::{Server, bed, network_of, others_decide, reader, settings};
use thalweg_testbed::{Bed, plain, privileged, wait_for};

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
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
    bed.measured_reaches(1);

    // The fleet away changes nothing.
    server.process = None;
    bed.connect(&bed.server_address(), 2, 1_100_000);
    bed.measured_reaches(3);
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
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_gain_tells_what_came_from_the_fleet() {
    if !privileged() {
        return;
    }
    let Some(server) = Server::new() else {
        return;
    };
    let control = "[control]\nshare = 0.5\npermanent = 0.0\n";
    let mut options = plain("fleet-gain");
    options.further_addresses = 31;
    let mut bed = Bed::new(&options, &settings(&server.url(), control));
    server.all_tell(24, &network_of(&bed));
    bed.start();
    let _reader = reader(&bed);
    let without = String::from_utf8(bed.thalweg(&["gain", "--by", "source"]).stdout);
    assert!(without.unwrap().contains("there are no sources"));
    others_decide(&bed);

    let first: Ipv4Addr = bed.server_address().parse().expect("IPv4");
    for host in 0..32 {
        // Too short to be scored: all that is known remains what others told.
        let address = Ipv4Addr::from(u32::from(first) + host);
        bed.connect(&address.to_string(), 2, 20_000);
    }
    let sides = |gain: &Value, name: &str| {
        let groups = gain["groups"].as_array().expect("groups").iter();
        let mut named = groups.filter(|it| it["by"] == "source" && it["name"] == name);
        let row = named.next().map_or(&Value::Null, |it| &it["rows"][0]);
        let side = |side: &str| row[side].as_u64().unwrap_or(0);
        (side("control"), side("treated"))
    };
    let (control, treated) = wait_for("all of them", || {
        let gain = bed.json(&["gain", "--by", "source"]);
        assert_eq!(sides(&gain, "own"), (0, 0), "{gain}");
        let fleet = sides(&gain, "fleet");
        (fleet.0 + fleet.1 >= 31).then_some(fleet)
    });
    assert!(control > 3 && treated > 3, "{control} and {treated}");
    // Nothing decided about the control group.
    let events = bed.events(64);
    assert!(events.iter().any(|it| it["level"] == "fleet-prefix"));
    for event in events.iter().filter(|it| it["reason"] == "control") {
        assert_eq!(event["level"], "host", "{event}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
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
        let incoming = listener.take_messages(Duration::from_millis(100));
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
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_agent_without_fleet_has_none() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("fleet-none", "");
    assert_eq!(bed.json(&["fleet", "status"]), Value::Null);
    let said = String::from_utf8(bed.thalweg(&["fleet", "status"]).stdout).expect("text");
    assert_eq!(said, "this agent is in no fleet ([fleet] servers = [])\n");
}
