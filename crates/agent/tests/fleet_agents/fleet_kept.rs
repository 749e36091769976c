//! What others told is kept apart from what the agent measured: over restarts, resets and reloads, in what
//! is shown and stored.

use std::fs;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_bpf_types::{bytes_of, host_to_raw, key_to_raw};
use thalweg_control::system;
use thalweg_learner::{Host, HostKey};

use crate::fleet_server::{
    Server, bed, fleet_record, network_of, others_decide, reader, records, settings,
};
use thalweg_testbed::{Bed, privileged, wait_for};

fn place(bed: &Bed) -> Value {
    bed.json(&["fleet", "status"])
}

fn text(bed: &Bed, arguments: &[&str]) -> String {
    String::from_utf8(bed.thalweg(arguments).stdout).expect("text")
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_others_told_outlives_restart_and_reset_but_not_the_fleet() {
    if !privileged() {
        return;
    }
    let Some(mut server) = Server::new() else {
        return;
    };
    let mut bed = bed("fleet-kept", &server);
    server.all_tell(24, &network_of(&bed));
    bed.start();
    let _reader = reader(&bed);
    others_decide(&bed);

    // The server never comes back; the agent starts again, and forgets what it learned itself.
    server.process = None;
    bed.connect(&bed.server_address(), 2, 1_100_000);
    bed.counter_reaches("scored", 2);
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    wait_for("records of before", || {
        let place = place(&bed);
        (place["in_force"].as_u64() > Some(0) && place["server"].is_null()).then_some(())
    });
    assert_eq!(others_decide(&bed)["agents"], 24);
    bed.json(&["reset", "--yes"]);
    assert!(bed.hosts().is_empty() && records(&bed, "prefix").is_empty());
    let told = others_decide(&bed);
    assert_eq!(
        (&told["agents"], &told["scored"]),
        (&json!(24), &json!(1)),
        "{told}"
    );

    // It is named as what it is.
    let address = bed.server_address();
    let said = text(&bed, &["explain", &address]);
    let network = told["name"].as_str().unwrap();
    let words = format!(
        "What 24 other agents told of {network} (fleet-prefix), not measured here, would decide: reno"
    );
    assert!(said.contains(&words), "{said}");
    assert!(said.contains(&format!("{network}, told by 24 ")), "{said}");
    let listed = bed.json(&["networks", "--level", "fleet-prefix"]);
    let levels = listed["networks"].as_array().unwrap().iter();
    let levels: Vec<&Value> = levels.map(|it| &it["level"]).collect();
    assert!(
        !levels.is_empty() && levels.iter().all(|it| *it == "fleet-prefix"),
        "{listed}"
    );
    let named = bed.json(&["networks", "--level", "fleet-named"]);
    assert_eq!(named["networks"], json!([]));

    // A host's first connection, decided by others; later ones by what it inherited from them.
    let scored = bed.counter("scored");
    bed.connect(&address, 1, 1_100_000);
    bed.counter_reaches("scored", scored + 1);
    let said = text(&bed, &["explain", &address]);
    assert!(
        said.contains("by what other agents told of its prefix"),
        "{said}"
    );
    assert!(
        said.contains(
            "Arms that were never scored here are known from its networks, and those from"
        ),
        "{said}"
    );
    let [own] = &records(&bed, "prefix")[..] else {
        panic!("one prefix");
    };
    let arms = own["arms"].as_array().unwrap();
    let of_others = |arm: &Value| arm["evidence"].as_f64() > arm["own_evidence"].as_f64();
    assert!(arms.iter().any(of_others), "{own}");

    // The store has nothing of others: what it has comes back to an empty kernel.
    let hosts = bed.json(&["export"]);
    assert_eq!(hosts["hosts"].as_array().unwrap().len(), 1, "{hosts}");
    assert!(bed.end(Signal::SIGTERM).success());
    assert!(bed.thalweg(&["detach"]).status.success());
    bed.start();
    assert_eq!(fleet_record(&bed), None);
    assert_eq!(records(&bed, "prefix").len(), 1);
    assert!(bed.end(Signal::SIGTERM).success());

    // Without a fleet nothing of it is left, and own records are as measured.
    bed.configure("[arms]\nallow = [\"cubic\", \"reno\"]\n");
    bed.start();
    assert_eq!(place(&bed), Value::Null);
    assert_eq!(fleet_record(&bed), None);
    for network in records(&bed, "prefix") {
        for arm in network["arms"].as_array().unwrap() {
            assert_eq!(arm["evidence"], arm["own_evidence"], "{network}");
        }
    }
    let said = text(&bed, &["explain", &address]);
    assert!(!said.contains("from other agents"), "{said}");
    let measured = bed.measured();
    bed.connect(&address, 1, 1_100_000);
    bed.measured_reaches(measured + 1);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_reload_without_fleet_and_with_prefixes_of_another_length() {
    if !privileged() {
        return;
    }
    let Some(server) = Server::new() else {
        return;
    };
    let mut bed = bed("fleet-reload", &server);
    server.all_tell(24, &network_of(&bed));
    bed.start();
    let _reader = reader(&bed);
    others_decide(&bed);

    // Of prefixes of another length this agent has no networks: said so, and none is left.
    bed.configure(&settings(&server.url(), "[networks]\nipv4_prefix = 20\n"));
    bed.json(&["reload"]);
    assert_eq!(fleet_record(&bed), None);
    wait_for("what it heard and cannot use", || {
        let place = place(&bed);
        (place["left_out"].as_u64() > Some(0) && place["agents"] == 24).then_some(())
    });
    assert_eq!(
        (fleet_record(&bed), &place(&bed)["in_force"]),
        (None, &json!(0))
    );

    bed.configure(&settings(&server.url(), ""));
    bed.json(&["reload"]);
    others_decide(&bed);
    // An agent that takes nothing has no records, and one that is in no fleet neither.
    bed.configure(&settings(&server.url(), "take = false\n"));
    bed.json(&["reload"]);
    assert_eq!(
        (fleet_record(&bed), &place(&bed)["takes"]),
        (None, &json!(false))
    );
    bed.configure(&settings(&server.url(), ""));
    bed.json(&["reload"]);
    others_decide(&bed);
    bed.configure("[arms]\nallow = [\"cubic\", \"reno\"]\n");
    bed.json(&["reload"]);
    assert_eq!((fleet_record(&bed), place(&bed)), (None, Value::Null));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn records_of_the_fleet_stay_in_a_full_table() {
    if !privileged() {
        return;
    }
    let Some(server) = Server::new() else {
        return;
    };
    let mut bed = bed("fleet-evicted", &server);
    bed.configure(&settings(&server.url(), "[hosts]\nmax = 64\n"));
    let network = network_of(&bed);
    server.all_tell(24, &network);
    bed.start();
    others_decide(&bed);
    flood(&bed, 2_000);
    assert!(fleet_record(&bed).is_some_and(|it| it["decides"] == true));
}

/// Puts records of so many hosts in the table, as long as it has room.
fn flood(bed: &Bed, count: u32) {
    let hosts = MapHandle::from_pinned_path(bed.pin.join("hosts")).unwrap();
    let netns = system::netns_cookie().unwrap();
    for n in 0..count {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 + n);
        let key = HostKey::new(netns, address.into(), 32, 64).unwrap();
        let host = Host {
            connections: 1,
            seen_ns: system::monotonic_ns(),
            ..Host::default()
        };
        let value = host_to_raw(&key, &host);
        let put = hosts.update(bytes_of(&key_to_raw(&key)), bytes_of(&value), MapFlags::ANY);
        match put {
            Err(error) if error.kind() == ErrorKind::TooBig => return,
            put => put.unwrap(),
        }
    }
    panic!("the table has room for {count} hosts");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn without_configuration_no_code_of_it_runs() {
    if !privileged() {
        return;
    }
    let Some(server) = Server::new() else {
        return;
    };
    let mut bed = Bed::running("fleet-code", "");
    let threads = |bed: &Bed| -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", bed.pid())).unwrap();
        let name = |task: std::io::Result<fs::DirEntry>| {
            fs::read_to_string(task.unwrap().path().join("comm")).unwrap()
        };
        tasks.map(|task| name(task).trim().to_owned()).collect()
    };
    let of_fleet = |bed: &Bed| {
        threads(bed)
            .iter()
            .filter(|it| it.starts_with("fleet"))
            .count()
    };
    let tcp = |bed: &Bed| {
        let inodes = sockets(bed);
        let table =
            |file: &str| fs::read_to_string(format!("/proc/{}/net/{file}", bed.pid())).unwrap();
        let lines = format!("{}{}", table("tcp"), table("tcp6"));
        let inode = |line: &str| line.split_whitespace().nth(9).map(str::to_owned);
        let found = lines.lines().filter_map(inode);
        found.filter(|inode| inodes.contains(inode)).count()
    };
    let size = |bed: &Bed| {
        let id = bed.running_program().unwrap();
        let program = ProgInfoIter::default().find(|program| program.id == id);
        program.expect("the running program").verified_insns
    };
    assert_eq!((of_fleet(&bed), tcp(&bed)), (0, 0));
    let alone = size(&bed);

    // The verifier walks through more with a fleet: without one it has removed that code.
    bed.configure(&settings(&server.url(), ""));
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    wait_for("a connection", || {
        place(&bed)["server"].is_string().then_some(())
    });
    // One to the server; the listener and the two ends of the relay between it and the client.
    assert_eq!((of_fleet(&bed), tcp(&bed)), (2, 4), "{:?}", threads(&bed));
    let together = size(&bed);
    assert!(
        together > alone,
        "{alone} instructions, {together} with a fleet"
    );

    bed.configure("");
    bed.json(&["reload"]);
    wait_for("its end", || (of_fleet(&bed) == 0).then_some(()));
    assert_eq!((tcp(&bed), size(&bed)), (0, alone));
}

/// Inodes of the agent's sockets.
fn sockets(bed: &Bed) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{}/fd", bed.pid())).unwrap();
    let inode = |file: std::io::Result<fs::DirEntry>| {
        let target = fs::read_link(file.ok()?.path()).ok()?;
        let inner = target
            .to_str()?
            .strip_prefix("socket:[")?
            .strip_suffix(']')?;
        Some(inner.to_owned())
    };
    files.filter_map(inode).collect()
}
