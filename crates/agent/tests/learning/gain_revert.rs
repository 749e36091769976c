//! An arm that makes transfers slower is taken away by the agent that gave it, and comes back on
//! request. The whole way: real connections, the control group's draw by the kernel, hours.

use std::path::Path;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_bpf_types::{bytes_of, from_bytes, host_to_raw, key_to_raw, raw};
use thalweg_control::system;
use thalweg_lab::host::{PairOptions, Side};
use thalweg_learner::{ArmState, Control, Host, HostKey};

use thalweg_testbed::cc::success;
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, manifest_path, plain, privileged, wait_for, wait_within};

/// The arm: the learned controller takes a third more time than cubic for [`BYTES`].
const ARM: &str = "thalweg_rl";
/// Too few to be scored: the learner does not notice.
const BYTES: &str = "60000";
/// Addresses of the server, each a host.
const HOSTS: u8 = 201;
/// Least clusters of each group in the second hour, and so in the first.
const CLUSTERS: usize = 52;
const HOUR: Duration = Duration::from_secs(3600);
/// The agent looks once a minute.
const LOOK: Duration = Duration::from_secs(150);

/// Accepts connections at all addresses, one after the other, and closes each that it has read.
const SERVER: &str = r#"
import socket
listener = socket.create_server(("", 5001), backlog=64)
print("listening", flush=True)
while True:
    connection = listener.accept()[0]
    while connection.recv(1 << 20):
        pass
    connection.close()
"#;
/// Sends to each address in turn: bytes, and addresses.
const CLIENT: &str = r#"
import socket, sys
for address in sys.argv[2:]:
    with socket.create_connection((address, 5001)) as connection:
        connection.sendall(bytes(int(sys.argv[1])))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"#;

fn path() -> PairOptions {
    let mut options = plain("revert");
    options.path.rate = Some("20mbit".parse().unwrap());
    options.path.queue = Some("300kb".parse().unwrap());
    options.path.delay = "20ms".parse().unwrap();
    options.further_addresses = HOSTS - 1;
    options
}

/// The hosts as the client's kernel knows them.
fn keys(bed: &Bed) -> Vec<HostKey> {
    let client = Path::new("/run/netns").join(bed.pair.namespace_name(Side::Client));
    let netns = system::netns_cookie_of(&client).unwrap();
    let addresses = bed.pair.server_addresses().into_iter();
    let key = |address| HostKey::new(netns, address, 32, 64).unwrap();
    addresses.map(key).collect()
}

/// A salt that gives both groups enough of the hosts that were treated the hour before.
fn salt(keys: &[HostKey]) -> u64 {
    let hour = u64::try_from(HOUR.as_nanos()).unwrap();
    let now_ns = system::monotonic_ns();
    let fits = |salt: &u64| {
        let control = Control {
            share_q16: 1 << 15,
            permanent_q16: 0,
            salt: *salt,
        };
        let treated = keys
            .iter()
            .filter(|key| !control.contains_cluster(key.tag(), now_ns));
        let next: Vec<bool> = treated
            .map(|key| control.contains_cluster(key.tag(), now_ns + hour))
            .collect();
        let held = next.iter().filter(|held| **held).count();
        held.min(next.len() - held) >= CLUSTERS
    };
    (0..).find(fits).unwrap()
}

/// Has the learner know, of every host, that an arm costs much less than cubic.
fn settle(bed: &Bed, keys: &[HostKey], better: &str) {
    let open = |name: &str| MapHandle::from_pinned_path(bed.pin.join(name)).unwrap();
    let zero = 0u32.to_ne_bytes();
    let table = open("arms").lookup(&zero, MapFlags::ANY).unwrap().unwrap();
    let table: raw::thalweg_arms = from_bytes(&table).unwrap();
    let place = |name: &str| {
        let named = |arm: &raw::thalweg_arm| {
            let bytes = arm.name.iter().map(|byte| *byte as u8);
            bytes.take_while(|byte| *byte != 0).eq(name.bytes())
        };
        table.arms.iter().position(named).unwrap()
    };
    let now_ns = system::monotonic_ns();
    let mut host = Host {
        connections: 16,
        scored: 16,
        min_rtt_us: 40_000,
        base_rtt_us: 40_000,
        seen_ns: now_ns,
        forgot_ns: now_ns,
        ..Host::default()
    };
    for (name, bits) in [("cubic", 44), (better, 40)] {
        host.arms[place(name)] = ArmState {
            value: bits << 16,
            weight_q16: 8 << 16,
            scored: 8,
            ..ArmState::default()
        };
    }
    let hosts = open("hosts");
    for key in keys {
        let (key_raw, value) = (key_to_raw(key), host_to_raw(key, &host));
        hosts
            .update(bytes_of(&key_raw), bytes_of(&value), MapFlags::ANY)
            .unwrap();
    }
}

/// A transfer to each host; returns the number of those that had the arm.
fn transfer(bed: &Bed) -> usize {
    let addresses = bed.pair.server_addresses();
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let known = decisions(bed).len();
    let mut arguments = vec![BYTES];
    arguments.extend(addresses.iter().map(String::as_str));
    bed.python(Side::Client, CLIENT, &arguments).finish();
    let all = wait_for("all decisions", || {
        let all = decisions(bed);
        (all.len() >= known + addresses.len()).then_some(all)
    });
    let new = all[known..].iter();
    new.filter(|event| event["arm"] == ARM).count()
}

/// Decisions of the client, oldest first.
fn decisions(bed: &Bed) -> Vec<Value> {
    let events = bed.json(&["events", "--limit", "10000"]);
    let mut events: Vec<Value> = events.as_array().unwrap().clone();
    events.retain(|event| event["kind"] == "decision" && event["remote_port"] == 5001);
    events.sort_by_key(|event| event["id"].as_i64());
    events
}

/// What is taken back, once something of this arm is.
fn reverted(bed: &Bed, arm: &Value) -> Value {
    wait_within(LOOK, "a revert", || {
        let gain = bed.json(&["gain", "--by", "arm"]);
        let reverts = gain["reverts"].as_array().unwrap().clone();
        reverts.into_iter().find(|revert| revert["arm"] == *arm)
    })
}

fn an_arm_that_is_worse_is_taken_away_for_a_day() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&path(), "");
    let keys = keys(&bed);
    bed.configure(&format!(
        "[arms]\nallow = [\"cubic\", {ARM:?}]\n[control]\nshare = 0.5\npermanent = 0\nsalt = {}\n",
        salt(&keys)
    ));
    let model = manifest_path("models/adpg-plus.safetensors");
    success(
        &bed,
        &["cc", "load", model.to_str().unwrap(), "--name", ARM],
    );
    bed.start();
    settle(&bed, &keys, ARM);
    let mut server = bed.python(Side::Server, SERVER, &[]);
    assert_eq!(server.line(), "listening");
    let before = transfer(&bed);
    assert!(before >= 2 * CLUSTERS, "{before} hosts are treated");
    transfer(&bed);

    // No host has had the arm in an earlier hour: none is to blame yet.
    let why = reverted(&bed, &Value::Null)["why"].clone();
    let why = why.as_str().unwrap();
    assert!(why.contains("more time"), "{why}");
    let problems = bed.json(&["status"])["problems"].to_string();
    assert!(
        problems.contains("nothing is explored for 24 hours"),
        "{problems}"
    );
    let used = transfer(&bed);
    assert!(used >= CLUSTERS, "what is known is used: {used}");

    // The next hour.
    let next_ns = u128::from(system::monotonic_ns()) % HOUR.as_nanos();
    let left_ns = u64::try_from(HOUR.as_nanos() - next_ns).unwrap();
    std::thread::sleep(Duration::from_nanos(left_ns));
    transfer(&bed);
    transfer(&bed);
    let revert = reverted(&bed, &ARM.into());
    let left_s = revert["left_s"].as_u64().unwrap();
    assert!((86_000..=86_400).contains(&left_s), "{revert}");
    let why = revert["why"].as_str().unwrap();
    assert!(
        why.starts_with("Transfers") && why.contains("more time"),
        "{why}"
    );

    // Told everywhere, and by nothing else any more.
    let problems = bed.json(&["status"])["problems"].to_string();
    let told = format!("no connection gets {ARM} for 24 hours");
    assert!(
        problems.contains(&told) && problems.contains(why),
        "{problems}"
    );
    assert!(!problems.contains("nothing is explored"), "{problems}");
    assert!(bed.logged().contains(&told), "{}", bed.logged());
    let metrics = success(&bed, &["metrics"]);
    assert!(metrics.contains("\nthalweg_gain_reverted 1\n"), "{metrics}");
    let text = success(&bed, &["gain"]);
    assert!(
        text.contains(&format!("No connection gets {ARM} for another 2")),
        "{text}"
    );

    // New connections no longer get it, after a restart neither.
    assert_eq!(transfer(&bed), 0);
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    assert_eq!(transfer(&bed), 0);
    assert_eq!(reverted(&bed, &ARM.into())["why"], why);

    assert_eq!(bed.json(&["gain", "--resume"])["resumed"], 1);
    assert_eq!(bed.json(&["gain"])["reverts"], serde_json::json!([]));
    let metrics = success(&bed, &["metrics"]);
    assert!(metrics.contains("\nthalweg_gain_reverted 0\n"), "{metrics}");
    let again = transfer(&bed);
    assert!(again >= CLUSTERS, "{again}");
    let told = format!("connections get {ARM} again, on request");
    assert!(bed.logged().contains(&told), "{}", bed.logged());
}

/// Writes that an arm is taken back until the end of time.
const TAKE_BACK: &str = r#"
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as store:
    store.execute("INSERT INTO gain_reverts VALUES ('', 'reno', 0, 1 << 60, 'of a test')")
"#;
const DEFAULT_RENO: &str = r#"
open("/proc/sys/net/ipv4/tcp_congestion_control", "w").write("reno")
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_arm_taken_back_stays_the_default_of_its_namespace() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(
        &plain("revertown"),
        "[arms]\nallow = [\"cubic\", \"reno\"]\n",
    );
    bed.start();
    bed.end(Signal::SIGTERM);
    let store = bed.state().join("thalweg.db");
    bed.python(Side::Client, TAKE_BACK, &[store.to_str().unwrap()])
        .finish();
    bed.python(Side::Client, DEFAULT_RENO, &[]).finish();
    bed.start();
    reverted(&bed, &Value::from("reno"));
    let address = bed.server_address();
    let mut server = bed.python(Side::Server, SERVER, &[]);
    assert_eq!(server.line(), "listening");
    // The namespace is known after its first connection.
    let connect = || {
        bed.python(Side::Client, CLIENT, &["1000", &address])
            .finish()
    };
    connect();
    wait_for("the namespace", || {
        connect();
        (bed.counter("established") > 0).then_some(())
    });
    settle(&bed, &keys(&bed), "reno");
    let known = decisions(&bed).len();
    (0..10).for_each(|_| drop(connect()));
    let new = wait_for("decisions", || {
        let all = decisions(&bed);
        (all.len() >= known + 10).then(|| all[known..].to_vec())
    });
    // Of ten, at most a few try another.
    assert!(new.iter().any(|event| event["arm"] == "reno"), "{new:?}");
}

in_virtual_time!(
    #[ignore = "slow: some two minutes"]
    within 3 * HOUR,
    ["models/adpg-plus.safetensors"],
    an_arm_that_is_worse_is_taken_away_for_a_day,
);
