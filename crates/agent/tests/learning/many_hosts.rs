//! A table of hosts of the largest size: nothing is lost on the way to the store, to the command
//! line, and back.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::Ipv4Addr;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_bpf_types::{bytes_of, host_to_raw, key_to_raw};
use thalweg_control::system;
use thalweg_learner::{ArmState, Host, HostKey};
use thalweg_process::http;

use thalweg_testbed::{Bed, privileged, wait_for};

/// The `n`th remote address.
fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + n)
}

/// Puts `count` records into the kernel, as if the hosts had been learned.
fn learn(bed: &Bed, count: u32) {
    let hosts = MapHandle::from_pinned_path(bed.pin.join("hosts")).unwrap();
    let netns = system::netns_cookie().unwrap();
    let now_ns = system::monotonic_ns();
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for n in 0..count {
        let key = HostKey::new(netns, address(n).into(), 32, 64).unwrap();
        let mut host = Host {
            connections: n + 1,
            scored: 1,
            min_rtt_us: 1000,
            seen_ns: now_ns - 1000 * u64::from(n),
            forgot_ns: now_ns,
            ..Host::default()
        };
        host.arms[0] = ArmState {
            value: (1 << 16) + u64::from(n % 1000),
            weight_q16: 1 << 16,
            scored: 1,
            ..ArmState::default()
        };
        keys.extend_from_slice(bytes_of(&key_to_raw(&key)));
        values.extend_from_slice(bytes_of(&host_to_raw(&key, &host)));
    }
    hosts
        .update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
        .unwrap();
}

/// Connections by address, from a list of hosts.
fn connections(list: &Value) -> BTreeMap<String, u64> {
    let hosts = list["hosts"].as_array().or_else(|| list.as_array());
    let hosts = hosts.expect("a list");
    let found: BTreeMap<String, u64> = hosts
        .iter()
        .map(|host| {
            let address = host["address"].as_str().unwrap().to_owned();
            (address, host["connections"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(found.len(), hosts.len(), "a host is listed twice");
    found
}

/// The agent's answer. A walk of a million records takes long in a debug build, on a machine that does
/// other things.
fn send(bed: &Bed, method: &str, target: &str, body: Option<(Box<dyn Read + Send>, u64)>) -> Value {
    let connection = http::Connection::open(&bed.socket()).unwrap();
    let answer = connection.send_request(method, target, body, Duration::from_secs(1800));
    let answer = answer.unwrap();
    assert_eq!(answer.status, 200, "{target}");
    serde_json::from_reader(answer).unwrap()
}

/// Checks the agent's choice of the best of this number of hosts, as made by [`learn`].
fn the_best_are_chosen(bed: &Bed, count: u32) {
    let best = |query: &str| -> Vec<String> {
        let list = send(bed, "GET", &format!("/v1/hosts?{query}"), None);
        let hosts = list["hosts"].as_array().unwrap().iter();
        hosts
            .map(|host| host["address"].as_str().unwrap().to_owned())
            .collect()
    };
    let addresses = |numbers: &mut dyn Iterator<Item = u32>| -> Vec<String> {
        numbers.map(|n| address(n).to_string()).collect()
    };
    let most = (0..count).rev();
    assert_eq!(best("limit=3"), addresses(&mut most.clone().take(3)));
    assert_eq!(best("sort=traffic"), addresses(&mut most.clone().take(100)));
    assert_eq!(best("sort=recent&limit=1000"), addresses(&mut (0..1000)));
    let mut costliest = most.filter(|n| n % 1000 == 999).take(9);
    assert_eq!(best("sort=cost&limit=9"), addresses(&mut costliest));
}

/// Checks every reader of the table with this number of hosts.
fn nothing_is_lost(count: u32) {
    let settings = format!("[hosts]\nmax = {}\n", count + count / 4);
    let mut bed = Bed::running("many", &settings);
    learn(&bed, count);
    let expected: BTreeMap<String, u64> = (0..count)
        .map(|n| (address(n).to_string(), u64::from(n) + 1))
        .collect();
    // Not `assert_eq`, which would print them all.
    let complete = |what: &str, found: BTreeMap<String, u64>| {
        assert_eq!(found.len(), expected.len(), "{what}");
        assert!(found == expected, "{what}: other hosts");
    };
    // The agent does not count them for each request.
    let counted = |bed: &Bed, count: u32| {
        wait_for(&format!("{count} hosts"), || {
            (bed.json(&["status"])["hosts"] == count).then_some(())
        });
    };
    counted(&bed, count);
    complete("listed", connections(&bed.json(&["hosts"])));
    the_best_are_chosen(&bed, count);

    assert!(bed.end(Signal::SIGTERM).success());
    assert!(bed.thalweg(&["detach"]).status.success());
    bed.start();
    counted(&bed, count);
    let file = bed.directory.path().join("hosts.json");
    let file = file.to_str().unwrap();
    assert!(bed.thalweg(&["export", file]).status.success());
    let document = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    complete("exported", connections(&document));
    for n in [0, count / 2, count - 1] {
        let explained = send(&bed, "GET", &format!("/v1/hosts/{}", address(n)), None);
        assert_eq!(explained[0]["host"]["connections"], n + 1, "{explained}");
    }
    assert_eq!(bed.json(&["reset", "--yes"])["removed"], count);
    counted(&bed, 0);
    if count > 65_536 {
        // In a debug build this takes longer than the command waits.
        let document = fs::File::open(file).unwrap();
        let length = document.metadata().unwrap().len();
        let imported = send(
            &bed,
            "POST",
            "/v1/import",
            Some((Box::new(document), length)),
        );
        assert_eq!(imported["imported"], count);
        counted(&bed, count);
        complete("imported", connections(&bed.json(&["hosts"])));
    }
}

#[test]
#[ignore = "slow: a minute"]
fn nothing_is_lost_of_65536_hosts() {
    if privileged() {
        nothing_is_lost(65_536);
    }
}

#[test]
#[ignore = "slow: a million hosts, some minutes"]
fn nothing_is_lost_of_a_million_hosts() {
    if privileged() {
        nothing_is_lost(1_000_000);
    }
}
