//! The control group, and what stops the learner: arms taken away, and an agent that is silent.

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_bpf_types::{bytes_of, from_bytes, raw};
use thalweg_lab::host::Side;

use thalweg_testbed::{Bed, CONNECTIONS, plain, privileged};

const ARMS: &str = "[arms]\nallow = [\"cubic\", \"reno\"]\n";

/// A bed whose server, as its client sees it, belongs to the control group or not, for good.
fn drawn(label: &str, held: bool) -> (Bed, String) {
    let mut bed = Bed::new(&plain(label), "");
    let address = bed.server_address();
    bed.configure(&format!("{ARMS}[control]\n{}", bed.control_half(held)));
    bed.start();
    (bed, address)
}

/// Whether an arm was permitted. The machine's own default always is.
fn allows(event: &Value, arm: &str) -> bool {
    event["allowed"]
        .as_array()
        .unwrap()
        .iter()
        .any(|name| name == arm)
}

/// The events of the client's connections.
fn of_client(bed: &Bed, address: &str) -> Vec<Value> {
    let mut events = bed.events(1);
    events.retain(|event| event["remote"] == address);
    events
}

fn connect(bed: &Bed, address: &str, number: &str) {
    let arguments = [address, "5001", number, "300000"];
    bed.python(Side::Client, CONNECTIONS, &arguments).finish();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_host_of_the_control_group_keeps_the_default_and_is_measured() {
    if !privileged() {
        return;
    }
    let (bed, address) = drawn("control", true);
    let _sink = bed.sink(&address);
    connect(&bed, &address, "20");
    bed.counter_reaches("closed", 40);
    bed.measured_reaches(20);
    let events = thalweg_testbed::wait_for("all events", || {
        let events = of_client(&bed, &address);
        (events.len() == 40).then_some(events)
    });
    for event in &events {
        assert_eq!(event["control"], true, "{event}");
        assert_eq!(
            (&event["reason"], &event["arm"]),
            (&"control".into(), &"cubic".into())
        );
        assert_eq!(event["propensity"], 1.0);
        if event["kind"] == "decision" {
            assert_eq!(event["propensities"], serde_json::json!({"cubic": 1.0}));
            assert!(allows(event, "cubic") && allows(event, "reno"), "{event}");
        }
        assert!(event["handshake_rtt_us"].as_u64().unwrap() > 0, "{event}");
        assert_eq!(event["rule"], 5);
        assert_ne!(event["parameters"], 0);
    }
    let closes = || events.iter().filter(|event| event["kind"] == "close");
    assert_eq!(closes().count(), 20);
    for close in closes() {
        let measured = &close["measurement"];
        let (wall, busy) = (&measured["wall_us"], &measured["duration_us"]);
        assert!(
            wall.as_u64() >= busy.as_u64() && busy.as_u64() > Some(0),
            "{close}"
        );
    }
    assert!(bed.counter("control") >= 20);
    let said = String::from_utf8(bed.thalweg(&["status"]).stdout).unwrap();
    assert!(said.contains("in the control group"), "{said}");
    let scored = bed.host(&address).unwrap()["scored"].as_u64();
    assert_eq!(scored, Some(bed.counter("scored")));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_host_beside_the_control_group_is_learned_about() {
    if !privileged() {
        return;
    }
    let (bed, address) = drawn("treated", false);
    let _sink = bed.sink(&address);
    connect(&bed, &address, "40");
    bed.counter_reaches("closed", 80);
    let tried = |event: &Value| event["reason"] == "untried" || event["reason"] == "explore";
    thalweg_testbed::wait_for("a trial", || {
        let events = of_client(&bed, &address);
        assert!(events.iter().all(|event| event["control"] == false));
        events.iter().any(tried).then_some(())
    });
}

/// Changes the pinned arm table while no agent writes it, makes connections to a known host, and
/// returns the reasons of the decisions.
fn decided_under(label: &str, change: impl FnOnce(&mut raw::thalweg_arms)) -> Vec<Value> {
    let mut bed = Bed::new(&plain(label), ARMS);
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    connect(&bed, &address, "1");
    bed.counter_reaches("scored", 1);
    bed.end(Signal::SIGKILL);
    let map = MapHandle::from_pinned_path(bed.pin.join("arms")).unwrap();
    let zero = 0u32.to_ne_bytes();
    let table = map.lookup(&zero, MapFlags::ANY).unwrap().unwrap();
    let mut table: raw::thalweg_arms = from_bytes(&table).unwrap();
    change(&mut table);
    map.update(&zero, bytes_of(&table), MapFlags::ANY).unwrap();
    connect(&bed, &address, "40");
    bed.start();
    bed.counter_reaches("closed", 82);
    thalweg_testbed::wait_for("all decisions", || {
        let mut events = of_client(&bed, &address);
        events.retain(|event| event["kind"] == "decision");
        (events.len() == 40).then_some(events)
    })
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_arm_that_was_taken_away_is_not_chosen() {
    if !privileged() {
        return;
    }
    let decisions = decided_under("reverted", |table| {
        let reno = table.arms.iter().position(|arm| {
            arm.name[..4]
                .iter()
                .zip(b"reno")
                .all(|(a, b)| *a as u8 == *b)
        });
        table.reverted = 1 << reno.expect("reno is an arm");
    });
    for event in decisions {
        assert_ne!(event["arm"], "reno", "{event}");
        assert!(
            allows(&event, "cubic") && !allows(&event, "reno"),
            "{event}"
        );
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn nothing_is_tried_by_order_or_while_the_agent_is_silent() {
    if !privileged() {
        return;
    }
    let greedy = |decisions: Vec<Value>| {
        for event in decisions {
            assert_eq!(event["reason"], "greedy", "{event}");
            assert_eq!(event["propensities"], serde_json::json!({"cubic": 1.0}));
            assert!(allows(&event, "cubic") && allows(&event, "reno"), "{event}");
        }
    };
    greedy(decided_under("ordered", |table| {
        table.reverted = raw::THALWEG_NO_TRIALS;
    }));
    // The limit and this time together are 0: however long the machine runs, that is past.
    greedy(decided_under("silent", |table| {
        table.heartbeat_ns = 0u64.wrapping_sub(600 * 1_000_000_000);
    }));
    let decisions = decided_under("alive", |_| ());
    assert!(decisions.iter().any(|event| event["reason"] != "greedy"));
}

/// Clusters of both groups, by the time that transfers take.
fn clusters(gain: &Value) -> Option<(u64, u64)> {
    let row = &gain["groups"][0]["rows"][0];
    Some((row["control"].as_u64()?, row["treated"].as_u64()?))
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn connections_are_gathered_in_clusters_that_a_restart_keeps() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("gain"), "");
    let address = bed.server_address();
    bed.configure(&format!("{ARMS}[control]\nshare = 0\npermanent = 0\n"));
    bed.start();
    let told = bed.json(&["gain"]);
    let summary = told["summary"].as_str().unwrap();
    assert!(
        summary.starts_with("There is no control group"),
        "{summary}"
    );
    assert!(bed.end(Signal::SIGTERM).success());
    bed.configure(&format!("{ARMS}[control]\nshare = 0.5\npermanent = 0\n"));
    bed.start();
    let _sink = bed.sink(&address);
    connect(&bed, &address, "20");
    bed.measured_reaches(20);
    let found = thalweg_testbed::wait_for("a cluster", || {
        // A host is one cluster an hour, and an hour may just have ended.
        clusters(&bed.json(&["gain", "--by", "prefix"]))
            .filter(|it| (1..=2).contains(&(it.0 + it.1)))
    });
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    assert_eq!(clusters(&bed.json(&["gain"])), Some(found));
    let told = bed.json(&["gain"]);
    assert!(
        told["summary"]
            .as_str()
            .unwrap()
            .starts_with("Not known yet"),
        "{told}"
    );
    assert_eq!(bed.json(&["gain", "--resume"])["resumed"], 0);
}
