//! A new agent takes over the kernel state and the store of an older one.

use std::fs;
use std::path::Path;
use std::process::Command;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use thalweg_bpf_types::{from_bytes, key_from_raw, raw};
use thalweg_control::system;
use thalweg_lab::host::Side;
use thalweg_learner::HOUR_NS;

use thalweg_testbed::{Bed, CONNECTIONS, compile, plain, privileged};

/// Writes numbers in sequence.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u32(mut self, values: &[u32]) -> Self {
        self.0
            .extend(values.iter().copied().flat_map(u32::to_ne_bytes));
        self
    }

    fn u64(mut self, values: &[u64]) -> Self {
        self.0
            .extend(values.iter().copied().flat_map(u64::to_ne_bytes));
        self
    }
}

/// A record of versions 7 and 8 under its key, with this many measurements, all of its second arm.
fn host(key: &[u8], scored: u32) -> Vec<u8> {
    let now = system::monotonic_ns();
    let tag = from_bytes::<raw::thalweg_host_key>(key).expect("a key");
    let tag = key_from_raw(&tag).tag();
    let known = |arm: u32| u32::from(arm == 1) * scored;
    // Harmful is the third arm; there is a trial; two arms are in use.
    let mut record = Writer::default().u32(&[6, 40]).u64(&[tag, now, now]).u32(&[
        scored,
        4 | 1 << 16,
        2,
        70_000,
    ]);
    for arm in 0..16 {
        let known = known(arm);
        record = record.u32(&[known * 10_000, known << 16, known, 0]);
    }
    record = record.u64(&[now, 50_000_000]);
    record = record.u32(&[1000, 2, 65_536, 900, 950, 0, 0, 0, 0, 0]);
    for arm in 0..16 {
        let known = known(arm);
        record = record.u64(&[u64::from(known) * 1000]);
        record = record.u32(&[0, known, known << 16, known, known]);
        record = record.u32(&[0, known, known * 100, known, 0]);
    }
    let record = record.u32(&[tag as u32, 6]).0;
    assert_eq!(record.len(), 1136);
    record
}

/// A connection of these versions on its first arm, which begins to be measured now.
fn conn(cookie: u64) -> Vec<u8> {
    let now = system::monotonic_ns();
    let conn = Writer::default().u64(&[cookie, now, 0, 0]);
    // Decided in this hour, with certainty, after a handshake of a millisecond.
    let hour = (now / HOUR_NS) as u32;
    let conn = conn.u32(&[0, 0, 0, 0, 0, 1 | hour << 16, 65_536, 1000, 0, 128]);
    let conn = conn.u64(&[now]).u32(&[0; 6]).u64(&[0; 5]).u32(&[0, 0]).0;
    assert_eq!(conn.len(), size_of::<raw::thalweg_conn>());
    conn
}

/// The first slot of a connection (`thalweg_place` of thalweg_algo.h).
fn slot(cookie: u64) -> u32 {
    let mix = |hash: u64| {
        let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 32
    };
    (cookie.wrapping_add(mix(mix(cookie >> 12))) & 0xffff) as u32
}

fn key(netns: u64, address: [u8; 4]) -> Vec<u8> {
    let mut key = Writer::default().u64(&[netns]).0;
    key.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    key.extend(address);
    Writer(key).u32(&[128, 0]).0
}

/// A key and its record.
fn known_host(key: Vec<u8>, scored: u32) -> (Vec<u8>, Vec<u8>) {
    let host = host(&key, scored);
    (key, host)
}

/// Puts into the kernel the state of an agent of version 7, attached and pinned.
fn install(bed: &Bed, hosts: &[(Vec<u8>, Vec<u8>)]) -> Object {
    install_version(bed, 7, hosts)
}

/// The state of an agent of version 7 or 8.
fn install_version(bed: &Bed, version: u32, hosts: &[(Vec<u8>, Vec<u8>)]) -> Object {
    let host_bytes = size_of::<raw::thalweg_host>() as u32;
    let conn_bytes = size_of::<raw::thalweg_conn>() as u32;
    let sizes = [("HOST", host_bytes), ("CONN", conn_bytes)];
    let sizes = sizes.map(|(of, size)| format!("-D{of}_BYTES={size}"));
    let flags = [sizes[0].as_str(), sizes[1].as_str()];
    let file = compile("earlier", bed.directory.path(), "earlier.bpf.o", &flags);
    let mut object = ObjectBuilder::default()
        .open_file(file)
        .unwrap()
        .load()
        .unwrap();
    fs::create_dir_all(&bed.pin).unwrap();
    let zero = 0u32.to_ne_bytes();
    let mut arms = Writer::default().u32(&[0b111, 0b111]).0;
    for name in ["cubic", "bbr", "reno"] {
        arms.extend(name.bytes());
        arms.resize(arms.len() + 16 - name.len(), 0);
        arms = Writer(arms).u32(&[1, 0]).u64(&[0]).0;
    }
    arms.resize(8 + 32 * 16, 0);
    for mut map in object.maps_mut() {
        map.pin(bed.pin.join(map.name())).unwrap();
    }
    let map = |name: &str| MapHandle::from_pinned_path(bed.pin.join(name)).unwrap();
    map("arms").update(&zero, &arms, MapFlags::ANY).unwrap();
    let meta = Writer::default()
        .u32(&[version, 1, host_bytes, 136])
        .u64(&[65536])
        .0;
    map("meta").update(&zero, &meta, MapFlags::ANY).unwrap();
    for (key, host) in hosts {
        map("hosts").update(key, host, MapFlags::ANY).unwrap();
    }
    let cgroup = fs::File::open(bed.pair.cgroup_path()).unwrap();
    for program in object.progs_mut() {
        use std::os::fd::AsRawFd;
        let file = program.name().to_str().unwrap().replace("learn", "link");
        let mut link = program.attach_cgroup(cgroup.as_raw_fd()).unwrap();
        link.pin(bed.pin.join(file)).unwrap();
    }
    object
}

/// The store of that agent.
fn install_store(bed: &Bed) {
    fs::create_dir_all(bed.state()).unwrap();
    let sql = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lifecycle/store-1.sql");
    let sql = fs::read_to_string(sql)
        .unwrap()
        .replace("@BOOT@", &system::boot_id().unwrap())
        .replace("@NETNS@", &system::netns_cookie().unwrap().to_string());
    let program = "import sqlite3, sys\nsqlite3.connect(sys.argv[1]).executescript(sys.argv[2])\n";
    let store = bed.state().join("thalweg.db");
    let done = Command::new("python3")
        .args(["-c", program])
        .arg(store)
        .arg(sql)
        .status();
    assert!(done.unwrap().success());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn programs_of_version_7_give_way_under_traffic_and_what_they_learned_stays() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("upgrade"), "");
    let address = bed.server_address();
    let client = Path::new("/run/netns").join(bed.pair.namespace_name(Side::Client));
    let client = system::netns_cookie_of(&client).unwrap();
    let own = system::netns_cookie().unwrap();
    let server = address.parse::<std::net::Ipv4Addr>().unwrap().octets();
    // The store has more about the last one than the kernel.
    let hosts = [
        known_host(key(client, server), 7),
        known_host(key(own, [192, 0, 2, 8]), 5),
        known_host(key(own, [192, 0, 2, 10]), 3),
        known_host(key(own, [192, 0, 2, 9]), 1),
    ];
    let object = install(&bed, &hosts);
    install_store(&bed);
    let before = bed.running_program().expect("version 7 runs");

    let _sink = bed.sink(&address);
    let long = r#"
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("up")
sys.stdin.readline()
connection.sendall(bytes(1000000))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
"#;
    let mut spanning = bed.python(Side::Client, long, &[&address, "5001"]);
    assert_eq!(spanning.line(), "up");
    let load = bed.python(
        Side::Client,
        CONNECTIONS,
        &[&address, "5001", "3000", "1000"],
    );
    thalweg_testbed::wait_for("traffic under version 7", || {
        let counters = object.maps().find(|map| map.name() == "counters").unwrap();
        let values = counters
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .unwrap()
            .unwrap();
        let established: u64 = values
            .iter()
            .map(|value| u64::from_ne_bytes(*value.first_chunk().unwrap()))
            .sum();
        (established > 100).then_some(())
    });
    drop(object);
    bed.start();
    spanning.go_on();
    spanning.finish();
    load.finish();

    let after = bed.running_program().expect("the new one runs");
    assert_ne!(before, after);
    let status = bed.json(&["status"]);
    assert_eq!(
        (&status["abi_version"], &status["took_over"]),
        (&raw::THALWEG_ABI_VERSION.into(), &true.into())
    );
    let scored = |address: &str| {
        bed.host(address).expect(address)["scored"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(scored(&address), 7, "of the kernel alone");
    assert_eq!(scored("192.0.2.8"), 5, "of the kernel alone");
    assert_eq!(
        scored("192.0.2.10"),
        3,
        "the kernel knew more than the store"
    );
    assert_eq!(
        scored("192.0.2.9"),
        9,
        "the store knew more than the kernel"
    );
    let host = bed.host("192.0.2.8").unwrap();
    let arms = host["arms"].as_array().unwrap();
    let bbr = arms.iter().find(|arm| arm["arm"] == "bbr").expect("bbr");
    assert_eq!(
        (&bbr["scored"], &bbr["count"]),
        (&5.into(), &5.into()),
        "{bbr}"
    );
    // The new one learns, and records carried over survive the next start.
    bed.connect(&address, 1, 1_000_000);
    thalweg_testbed::wait_for("the next measurement", || {
        (scored(&address) == 8).then_some(())
    });
    bed.end(nix::sys::signal::Signal::SIGKILL);
    bed.start();
    assert_eq!(bed.host(&address).unwrap()["scored"], 8);
    assert_eq!(bed.host("192.0.2.9").unwrap()["scored"], 9);
}

/// An agent succeeds one of a version.
fn succeeds(label: &str, version: u32) {
    let mut bed = Bed::new(&plain(label), "");
    let address = bed.server_address();
    let own = system::netns_cookie().unwrap();
    let keys = [key(own, [192, 0, 2, 8]), key(own, [192, 0, 2, 9])];
    let hosts: Vec<_> = keys.iter().zip([5, 9]).collect();
    let hosts: Vec<_> = hosts
        .into_iter()
        .map(|(key, scored)| (key.clone(), host(key, scored)))
        .collect();
    drop(install_version(&bed, version, &hosts));
    bed.start();
    let status = bed.json(&["status"]);
    assert_eq!(
        (&status["abi_version"], &status["took_over"]),
        (&raw::THALWEG_ABI_VERSION.into(), &true.into())
    );
    for (address, scored) in [("192.0.2.8", 5), ("192.0.2.9", 9)] {
        let host = bed.host(address).expect(address);
        assert_eq!(host["scored"], scored);
        assert_eq!(
            (&host["base_rtt_us"], &host["queue_bits"]),
            (&900.into(), &1.0.into())
        );
        assert_eq!(
            (&host["min_rtt_us"], &host["switched"]),
            (&1000.into(), &2.into())
        );
        let arms = host["arms"].as_array().unwrap();
        let bbr = arms.iter().find(|arm| arm["arm"] == "bbr").expect("bbr");
        assert_eq!(
            (&bbr["scored"], &bbr["count"], &bbr["greedy"]),
            (&scored.into(), &scored.into(), &scored.into())
        );
        assert_eq!(bbr["retransmitted"], 0.01, "{bbr}");
    }
    // The new one learns, and what was carried over survives the next start.
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    thalweg_testbed::wait_for("the next measurement", || {
        (bed.host(&address)?["scored"] == 1).then_some(())
    });
    bed.end(nix::sys::signal::Signal::SIGKILL);
    bed.start();
    assert_eq!(bed.host("192.0.2.9").unwrap()["scored"], 9);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_version_7_learned_stays_and_its_arms_keep_their_numbers() {
    if privileged() {
        succeeds("upgrade7", 7);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_version_8_learned_stays_and_its_arms_keep_their_numbers() {
    if privileged() {
        succeeds("upgrade8", 8);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_open_connection_of_version_7_goes_on_being_measured() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("upgradeopen"), "[learning]\nstretch = \"1s\"\n");
    let address = bed.server_address();
    let object = install_version(&bed, 7, &[]);
    let _sink = bed.sink(&address);
    // Prints the cookie that the kernel's programs see, then sends for each line of input.
    let program = r#"
import socket, struct, sys
connection = socket.create_connection((sys.argv[1], 5001))
print(struct.unpack("Q", connection.getsockopt(socket.SOL_SOCKET, 57, 8))[0])
for line in sys.stdin:
    connection.sendall(bytes(4000000))
    print("sent")
"#;
    let mut open = bed.python(Side::Client, program, &[&address]);
    let cookie: u64 = open.line().parse().unwrap();
    let conns = MapHandle::from_pinned_path(bed.pin.join("conns")).unwrap();
    let at = slot(cookie).to_ne_bytes();
    conns.update(&at, &conn(cookie), MapFlags::ANY).unwrap();
    drop((object, conns));
    bed.start();
    open.go_on();
    assert_eq!(open.line(), "sent");
    bed.counter_reaches("stretches", 1);
    let event = thalweg_testbed::wait_for("its event", || bed.events(1).into_iter().next());
    assert_eq!(event["connection"], cookie);
    assert_eq!(
        (&event["arm"], &event["handshake_rtt_us"]),
        (&"cubic".into(), &1000.into())
    );
    assert_eq!(event["measurement"]["end"], "stretch");
    let bytes = event["measurement"]["bytes"].as_u64();
    assert!(bytes >= Some(1 << 20), "{event}");
    assert_eq!(bed.host(&address).unwrap()["scored"], 1);
}

/// Hosts of an agent of version 7, each with its own number of measurements, so that a mix-up
/// shows.
fn known(netns: u64, count: u16) -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..count)
        .map(|number| {
            let [high, low] = number.to_be_bytes();
            known_host(key(netns, [198, 18, high, low]), u32::from(number % 20) + 1)
        })
        .collect()
}

fn assert_known(bed: &Bed, count: u16, what: &str) {
    let hosts = bed.hosts();
    for number in 0..count {
        let [high, low] = number.to_be_bytes();
        let address = format!("198.18.{high}.{low}");
        let host = hosts.iter().find(|host| host["address"] == *address);
        let scored = host.map(|host| host["scored"].as_u64());
        assert_eq!(
            scored,
            Some(Some(u64::from(number % 20) + 1)),
            "{what}: {address}"
        );
    }
    // From the store only.
    assert!(
        hosts.iter().any(|host| host["address"] == "192.0.2.9"),
        "{what}"
    );
}

/// Kills new agents while they replace version 7.
fn upgrade_killed(label: &str, points: &[&str]) {
    const COUNT: u16 = 20;
    let mut bed = Bed::new(&plain(label), "[snapshot]\ninterval = \"1s\"\n");
    let own = system::netns_cookie().unwrap();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let load = bed.load(&address, 2, 20);
    for point in points {
        drop(install(&bed, &known(own, COUNT)));
        install_store(&bed);
        bed.dies_at(point);
        bed.start();
        assert_known(&bed, COUNT, point);
        bed.sees_traffic(point);
        bed.json(&["detach"]);
        bed.reap();
        fs::remove_dir_all(bed.state()).unwrap();
    }
    load.finish();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_upgrade_that_is_killed_is_done_by_the_next_start() {
    if privileged() {
        upgrade_killed("upkill", &["start::link=1*off->return"]);
    }
}

#[test]
#[ignore = "slow: fifteen points"]
fn an_upgrade_that_is_killed_at_any_point_is_done_by_the_next_start() {
    if !privileged() {
        return;
    }
    upgrade_killed(
        "upkillall",
        &[
            "upgrade::read=return",
            "start::prepared=return",
            "restore::host=return",
            "carry::host=return",
            "carry::host=10*off->return",
            "start::restored=return",
            "start::version=return",
            "start::map=return",
            "start::pinned=return",
            "start::link=return",
            "start::link=1*off->return",
            "start::name=return",
            "start::name=4*off->return",
            "start::named=return",
            "start::attached=return",
        ],
    );
}

#[test]
#[ignore = "slow: some seconds of 1,000 connections a second"]
fn an_upgrade_under_a_thousand_connections_a_second_fails_none_and_keeps_all_hosts() {
    if !privileged() {
        return;
    }
    const COUNT: u16 = 2000;
    let mut bed = Bed::new(&plain("upload"), "");
    let own = system::netns_cookie().unwrap();
    let address = bed.server_address();
    let object = install(&bed, &known(own, COUNT));
    install_store(&bed);
    let _sink = bed.sink(&address);
    let load = bed.load(&address, 20, 50);
    let established = || -> u64 {
        let counters = object.maps().find(|map| map.name() == "counters").unwrap();
        let values = counters.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let values = values.unwrap().unwrap();
        let numbers = values.iter().map(|value| *value.first_chunk().unwrap());
        numbers.map(u64::from_ne_bytes).sum()
    };
    thalweg_testbed::wait_for("traffic under version 7", || {
        (established() > 2000).then_some(())
    });
    bed.start();
    bed.counter_reaches("established", 4000);
    let (made, rate) = load.finish();
    assert_known(&bed, COUNT, "under load");
    // Both ends are in the cgroup. No connection is missed by both programs or seen by both.
    let seen = || established() + bed.counter("established");
    thalweg_testbed::wait_for("all connections", || (seen() == 2 * made).then_some(()));
    eprintln!("{made} connections, {rate:.0} a second, none failed or unseen");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_agent_of_version_7_in_the_other_mode_is_succeeded_too() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("upgrademode"), "mode = \"classic\"\n");
    let own = system::netns_cookie().unwrap();
    drop(install(&bed, &[known_host(key(own, [192, 0, 2, 8]), 5)]));
    bed.start();
    assert!(bed.host("192.0.2.8").is_none());
    bed.end(nix::sys::signal::Signal::SIGTERM);
    bed.configure("");
    bed.start();
    assert_eq!(
        bed.host("192.0.2.8").expect("back with its mode")["scored"],
        5
    );
}
