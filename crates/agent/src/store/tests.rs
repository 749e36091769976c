//! Round trips, crashes, retention.

use std::path::Path;
use std::time::Duration;

use thalweg_core::{ArmState, Host, HostKey, Mode, Params};

use super::*;
use crate::view::{Event, Measurement};

mod damage;

fn open(directory: &Path) -> Store {
    let opened = Store::open(directory).unwrap();
    assert_eq!(opened.set_aside, None);
    opened.store
}

fn key(netns: u64, address: &str) -> HostKey {
    HostKey::new(netns, address.parse().unwrap(), 32, 64).unwrap()
}

fn arm(seed: u32) -> ArmState {
    ArmState {
        value: u64::from(seed) * 65_536,
        max_rate: u64::MAX - u64::from(seed),
        weight_q16: 70_000 + seed,
        deviation_q16: seed,
        log_rate_q16: 20 << 16,
        srtt_us: 30_000 + seed,
        min_rtt_us: 25_000 + seed,
        chosen: 40 + seed,
        greedy: 20 + seed,
        scored: 30 + seed,
        segs: 8000 + seed,
        retrans: 10 + seed,
    }
}

fn row(key: HostKey, arms: &[(&str, ArmState)]) -> HostRow {
    HostRow {
        key,
        connections: 100,
        scored: 60,
        switched: 3,
        min_rtt_us: 25_000,
        max_rate: 1 << 63,
        queue_q16: 1 << 15,
        base_rtt_us: 24_000,
        seen_age_ms: 1500,
        forgot_age_ms: Some(900_000),
        arms: arms
            .iter()
            .map(|(name, arm)| ((*name).to_owned(), *arm))
            .collect(),
    }
}

fn snapshot(mode: Mode) -> Snapshot {
    Snapshot {
        mode,
        boot_id: "0f0e".to_owned(),
        own_netns: u64::MAX,
        saved_at_ms: 1_760_000_000_000,
        hosts: vec![
            row(key(1, "192.0.2.7"), &[("bbr", arm(1)), ("cubic", arm(2))]),
            row(key(1, "2001:db8::1"), &[("reno", arm(3))]),
            HostRow {
                forgot_age_ms: None,
                ..row(key(2, "192.0.2.7"), &[])
            },
        ],
    }
}

fn event(time_ms: i64, host: &str, measured: bool) -> Event {
    Event {
        id: 0,
        time_ms,
        kind: if measured { "close" } else { "decision" }.to_owned(),
        connection: u64::MAX - 5,
        netns: 4_026_531_840,
        host: host.to_owned(),
        remote: host.to_owned(),
        remote_port: 443,
        local_port: 65_535,
        arm: Some("bbr".to_owned()),
        chosen: Some("cubic".to_owned()),
        system_arm: None,
        reason: "explore".to_owned(),
        propensity: 0.0625,
        passive: true,
        ecn: false,
        dry_run: true,
        switched: false,
        error: Some("Operation not permitted".to_owned()),
        measurement: measured.then(|| Measurement {
            end: "fin-local".to_owned(),
            outcome: "scored".to_owned(),
            bytes: 1 << 40,
            duration_us: 1_000_000,
            rate_bytes_per_s: u64::MAX,
            srtt_us: 1,
            min_rtt_us: 2,
            segs_out: u32::MAX,
            retrans: 4,
            cost: 5,
            weight: 0.5,
        }),
    }
}

#[test]
fn snapshots_round_trip_and_replace_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    assert_eq!(store.load_snapshot(Mode::Thalweg).unwrap(), None);

    let first = snapshot(Mode::Thalweg);
    store.save_snapshot(&first).unwrap();
    let classic = Snapshot {
        boot_id: "c".to_owned(),
        ..snapshot(Mode::Classic)
    };
    store.save_snapshot(&classic).unwrap();
    drop(store);

    let mut store = open(directory.path());
    assert_eq!(
        store.load_snapshot(Mode::Thalweg).unwrap().as_ref(),
        Some(&first)
    );
    let second = Snapshot {
        saved_at_ms: 5,
        hosts: first.hosts[1..2].to_vec(),
        ..first
    };
    store.save_snapshot(&second).unwrap();
    assert_eq!(store.load_snapshot(Mode::Thalweg).unwrap(), Some(second));
    assert_eq!(store.load_snapshot(Mode::Classic).unwrap(), Some(classic));
    // Arms go with their hosts.
    let arms: i64 = store
        .connection
        .query_row("SELECT count(*) FROM host_arms", [], |row| row.get(0))
        .unwrap();
    assert_eq!(arms, 1 + 3);
}

#[test]
fn a_walk_saves_what_a_snapshot_does_and_a_broken_one_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let whole = snapshot(Mode::Thalweg);
    let header = Snapshot {
        hosts: Vec::new(),
        ..whole.clone()
    };
    store
        .save_walk(&header, |save| whole.hosts.iter().try_for_each(save))
        .unwrap();
    assert_eq!(
        store.load_snapshot(Mode::Thalweg).unwrap(),
        Some(whole.clone())
    );
    let broken = store.save_walk(&header, |save| {
        save(&whole.hosts[0])?;
        anyhow::bail!("the kernel went away")
    });
    assert!(broken.is_err());
    assert_eq!(store.load_snapshot(Mode::Thalweg).unwrap(), Some(whole));
}

#[test]
fn records_are_reset_one_by_one_and_all_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    store.save_snapshot(&snapshot(Mode::Thalweg)).unwrap();
    assert!(
        store
            .reset_host(Mode::Thalweg, &key(1, "192.0.2.7"))
            .unwrap()
    );
    assert!(
        !store
            .reset_host(Mode::Thalweg, &key(1, "192.0.2.7"))
            .unwrap()
    );
    assert!(
        !store
            .reset_host(Mode::Classic, &key(2, "192.0.2.7"))
            .unwrap()
    );
    assert_eq!(
        store
            .load_snapshot(Mode::Thalweg)
            .unwrap()
            .unwrap()
            .hosts
            .len(),
        2
    );
    assert_eq!(store.clear_hosts(Mode::Thalweg).unwrap(), 2);
    assert_eq!(
        store.load_snapshot(Mode::Thalweg).unwrap().unwrap().hosts,
        []
    );
}

#[test]
fn a_record_survives_a_reboot_with_its_age() {
    let minute_ns = 60_000_000_000u64;
    let mut host = Host {
        connections: 9,
        seen_ns: 100 * minute_ns,
        forgot_ns: 90 * minute_ns,
        ..Host::default()
    };
    host.arms[4] = arm(0);
    host.arms[9] = arm(1);
    let names = |slot: usize| {
        [None, None, None, None, Some("bbr")]
            .get(slot)
            .copied()
            .flatten()
    };
    let row = HostRow::new(key(1, "192.0.2.7"), &host, 101 * minute_ns, names);
    assert_eq!(row.seen_age_ms, 60_000);
    assert_eq!(row.forgot_age_ms, Some(11 * 60_000));
    assert_eq!(row.arms, [("bbr".to_owned(), arm(0))]);

    // Same boot, one minute later: the same record in another slot.
    let params = Params {
        half_life_ns: 30 * minute_ns,
        ..Params::default()
    };
    let slot = |name: &str| (name == "bbr").then_some(2);
    let same = row.restore(102 * minute_ns, 60_000, &params, None, slot);
    assert_eq!(same.seen_ns, 100 * minute_ns);
    assert_eq!(same.arms[2], arm(0));
    assert!(same.forgot_ns.abs_diff(90 * minute_ns) <= 1);

    // After a reboot the clock starts anew: 55 minutes down and 1 up make two half-lives of
    // the 67 minutes, and 7 minutes of the third.
    let rebooted = row.restore(minute_ns, 56 * 60_000, &params, None, slot);
    assert_eq!(rebooted.arms[2].weight_q16, arm(0).weight_q16 >> 2);
    assert_eq!(rebooted.arms[2].value, arm(0).value);
    assert_eq!(rebooted.seen_ns, 0);
    assert_eq!(rebooted.forgot_ns, 1);
    // A slot that does not exist is left out, not a panic.
    let gone = row.restore(minute_ns, 0, &params, None, |_| Some(99));
    assert_eq!(gone.arms, Host::default().arms);
}

#[test]
fn an_arm_that_does_harm_is_known_as_such_after_a_restart() {
    let harmful = ArmState {
        retrans: 1000,
        ..arm(1)
    };
    let row = row(key(1, "192.0.2.7"), &[("cubic", arm(0)), ("bbr", harmful)]);
    let slot = |name: &str| ["cubic", "bbr"].iter().position(|known| *known == name);
    let host = row.restore(1 << 50, 0, &Params::default(), Some(0), slot);
    assert_eq!(host.harmful, 0b10);
    assert_eq!((host.queue_q16, host.base_rtt()), (1 << 15, Some(24_000)));
}

#[test]
fn events_round_trip() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    assert_eq!(store.append_events(&[]).unwrap(), None);
    let events: Vec<Event> = (0..10)
        .map(|n| {
            event(
                n,
                if n % 2 == 0 {
                    "192.0.2.7"
                } else {
                    "2001:db8::/64"
                },
                n % 3 == 0,
            )
        })
        .collect();
    assert_eq!(store.append_events(&events).unwrap(), Some(10));

    let all = store.events(0, 100, None).unwrap();
    let expected: Vec<Event> = events
        .iter()
        .zip(1..)
        .map(|(event, id)| Event {
            id,
            ..event.clone()
        })
        .collect();
    assert_eq!(all, expected);
    let ids = |events: Vec<Event>| events.iter().map(|event| event.id).collect::<Vec<_>>();
    assert_eq!(ids(store.events(3, 2, None).unwrap()), [4, 5]);
    assert_eq!(ids(store.events(3, 2, Some("192.0.2.7")).unwrap()), [5, 7]);
    assert_eq!(
        ids(store.recent(Some("2001:db8::/64"), 2).unwrap()),
        [10, 8]
    );
    assert_eq!(ids(store.recent(None, 3).unwrap()), [10, 9, 8]);
    assert_eq!(store.events(0, 100, Some("192.0.2.8")).unwrap(), []);
}

#[test]
fn old_events_leave_by_age_and_by_number() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let events: Vec<Event> = (0..100)
        .map(|n| event(n * 1000, "192.0.2.7", false))
        .collect();
    store.append_events(&events).unwrap();

    let day = Duration::from_secs(86_400);
    assert_eq!(store.prune(100_000, day, 1000).unwrap(), 0);
    assert_eq!(
        store.prune(100_000, Duration::from_secs(90), 1000).unwrap(),
        10
    );
    assert_eq!(store.events(0, 1, None).unwrap()[0].time_ms, 10_000);
    assert_eq!(store.prune(100_000, day, 40).unwrap(), 50);
    assert_eq!(store.events(0, 100, None).unwrap().len(), 40);
    // Numbers are never used twice, even when every event has gone.
    store.prune(10_000_000, Duration::from_secs(1), 1).unwrap();
    assert_eq!(store.append_events(&events[..1]).unwrap(), Some(101));
}

#[test]
fn pruning_is_bounded_a_call() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let events = vec![event(0, "192.0.2.7", false); 50_000];
    store.append_events(&events).unwrap();
    let day = Duration::from_secs(86_400);
    let mut left = Vec::new();
    while let removed @ 1.. = store.prune(0, day, 5000).unwrap() {
        left.push(removed);
    }
    assert_eq!(left, [20_000, 20_000, 5000]);
}

#[test]
fn a_crash_leaves_the_last_commit() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    store.save_snapshot(&snapshot(Mode::Thalweg)).unwrap();
    store.append_events(&[event(1, "192.0.2.7", true)]).unwrap();

    // Half a snapshot and an event, never committed.
    let transaction = store.connection.transaction().unwrap();
    let other = Snapshot {
        hosts: Vec::new(),
        boot_id: "x".to_owned(),
        ..snapshot(Mode::Thalweg)
    };
    super::snapshot::save(&transaction, &other).unwrap();
    super::events::append(&transaction, &[event(2, "192.0.2.7", true)]).unwrap();
    // The files as a machine that loses power now would find them.
    let crashed = tempfile::tempdir().unwrap();
    for suffix in ["", "-wal"] {
        let name = format!("{FILE_NAME}{suffix}");
        std::fs::copy(directory.path().join(&name), crashed.path().join(&name)).unwrap();
    }
    drop(transaction);
    for place in [directory.path(), crashed.path()] {
        if place == directory.path() {
            // Dropped without commit.
            assert_eq!(store.events(0, 9, None).unwrap().len(), 1);
            continue;
        }
        let store = open(place);
        assert_eq!(
            store.load_snapshot(Mode::Thalweg).unwrap(),
            Some(snapshot(Mode::Thalweg))
        );
        assert_eq!(store.events(0, 9, None).unwrap().len(), 1);
    }

    // A write-ahead log that ends in the middle of a transaction.
    store
        .append_events(&vec![event(3, "192.0.2.7", true); 1000])
        .unwrap();
    let torn = tempfile::tempdir().unwrap();
    let wal = std::fs::read(directory.path().join("thalweg.db-wal")).unwrap();
    std::fs::copy(
        directory.path().join(FILE_NAME),
        torn.path().join(FILE_NAME),
    )
    .unwrap();
    std::fs::write(torn.path().join("thalweg.db-wal"), &wal[..wal.len() - 5000]).unwrap();
    let store = open(torn.path());
    assert_eq!(store.events(0, 9, None).unwrap().len(), 1);
    assert_eq!(
        store.load_snapshot(Mode::Thalweg).unwrap(),
        Some(snapshot(Mode::Thalweg))
    );
}

/// Measures; run it with `cargo test --release -- --ignored --nocapture store_speed`.
#[test]
#[ignore = "a measurement"]
fn store_speed() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut rates = Vec::new();
    for hosts in [200, 20_000] {
        let mut spent = Duration::ZERO;
        for batch in 0..500 {
            let events: Vec<Event> = (batch * 1000..(batch + 1) * 1000)
                .map(|n| {
                    let host = n * 7919 % hosts;
                    event(
                        n,
                        &format!("192.0.{}.{}", host / 256, host % 256),
                        n % 2 == 0,
                    )
                })
                .collect();
            let start = std::time::Instant::now();
            store.append_events(&events).unwrap();
            spent += start.elapsed();
        }
        rates.push(500_000.0 / spent.as_secs_f64());
        println!(
            "events a second, {hosts} hosts: {:.0}",
            rates[rates.len() - 1]
        );
    }

    let hosts = (0..65_536u32)
        .map(|n| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string();
            let arms = [
                ("bbr", arm(n)),
                ("cubic", arm(n)),
                ("htcp", arm(n)),
                ("reno", arm(n)),
            ];
            row(key(1, &address), &arms)
        })
        .collect();
    let all = Snapshot {
        hosts,
        ..snapshot(Mode::Classic)
    };
    for _ in 0..2 {
        let start = std::time::Instant::now();
        store.save_snapshot(&all).unwrap();
        println!(
            "snapshot of 65536 hosts: {:.3} s",
            start.elapsed().as_secs_f64()
        );
    }
    let start = std::time::Instant::now();
    assert_eq!(
        store
            .load_snapshot(Mode::Classic)
            .unwrap()
            .unwrap()
            .hosts
            .len(),
        65_536
    );
    println!("its load: {:.3} s", start.elapsed().as_secs_f64());
    drop(store);
    let bytes = std::fs::metadata(directory.path().join(FILE_NAME))
        .unwrap()
        .len();
    println!("file: {:.1} MB", bytes as f64 / 1e6);
    let start = std::time::Instant::now();
    let mut store = open(directory.path());
    println!("opening it: {:.3} s", start.elapsed().as_secs_f64());
    let start = std::time::Instant::now();
    store.prune(0, Duration::from_secs(60), 900_000).unwrap();
    println!(
        "one step of pruning: {:.3} s",
        start.elapsed().as_secs_f64()
    );
    assert!(rates[0] > 50_000.0, "{rates:?}");
}
