//! Round trips, crashes, retention.

use std::path::Path;
use std::time::Duration;

use thalweg_learner::{ArmState, Host, HostKey, Level, Mode, Params};

use super::*;
use crate::view::{Event, Measurement, Window};

mod clock;
mod damage;
mod sampling;
mod waits;

pub(crate) const BOOT: &str = "0f0e";
/// An hour after that boot.
pub(crate) const NOW: Moment = moment(3_600_000);

/// This long after the boot.
pub(crate) const fn moment(ms: u64) -> Moment {
    Moment {
        monotonic_ns: ms * 1_000_000,
        wall_ms: 1_760_000_000_000 + ms as i64,
    }
}

pub(crate) fn open(directory: &Path) -> Store {
    open_at(directory, BOOT, NOW)
}

pub(crate) fn open_at(directory: &Path, boot_id: &str, moment: Moment) -> Store {
    let opened = Store::open(directory, boot_id, moment).unwrap();
    assert_eq!(opened.set_aside, None);
    opened.store
}

fn load(store: &Store, mode: Mode) -> Option<Snapshot> {
    load_at(store, mode, NOW)
}

fn load_at(store: &Store, mode: Mode, moment: Moment) -> Option<Snapshot> {
    let mut snapshot = store.header(mode).unwrap()?;
    let faults = store
        .each_host(mode, moment, |row| {
            snapshot.hosts.push(row);
            Ok(())
        })
        .unwrap();
    assert_eq!(faults, Vec::<String>::new());
    Some(snapshot)
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
        ..ArmState::default()
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
        usual_q16: 0,
        usual_log_rate_q16: 0,
        step: 0,
        step_scored: 0,
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
        boot_id: BOOT.to_owned(),
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
        propensities: (!measured).then(|| [("bbr".to_owned(), 0.0625)].into()),
        allowed: (!measured).then(|| vec!["bbr".to_owned(), "cubic".to_owned()]),
        handshake_rtt_us: 6,
        rule: 2,
        parameters: u32::MAX,
        control: true,
        passive: true,
        ecn: false,
        dry_run: true,
        stands_for: 8.0,
        level: "prefix".to_owned(),
        switched: false,
        error: Some("Operation not permitted".to_owned()),
        window: measured.then(|| Window {
            segments: 10,
            chosen: 32,
            propensity: 0.25,
            cost_bits: Some(-0.5),
        }),
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
            wall_us: 7,
            receiver_us: 8,
            buffer_us: 9,
            app_limited: true,
        }),
    }
}

#[test]
fn snapshots_round_trip_and_replace_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    assert_eq!(load(&store, Mode::Thalweg), None);

    let first = snapshot(Mode::Thalweg);
    store.save_snapshot(&first, NOW).unwrap();
    let classic = Snapshot {
        boot_id: "c".to_owned(),
        ..snapshot(Mode::Classic)
    };
    store.save_snapshot(&classic, NOW).unwrap();
    drop(store);

    let mut store = open(directory.path());
    assert_eq!(load(&store, Mode::Thalweg).as_ref(), Some(&first));
    let second = Snapshot {
        saved_at_ms: 5,
        hosts: first.hosts[1..2].to_vec(),
        ..first
    };
    store.save_snapshot(&second, NOW).unwrap();
    assert_eq!(load(&store, Mode::Thalweg), Some(second));
    assert_eq!(load(&store, Mode::Classic), Some(classic));
    // Arms are removed with their hosts.
    let arms: i64 = store
        .connection
        .query_row("SELECT count(*) FROM host_arms", [], |row| row.get(0))
        .unwrap();
    assert_eq!(arms, 1 + 3);
}

/// A record of the kernel, last seen at that time.
fn record(connections: u32, seen_ms: u64) -> Host {
    let mut host = Host {
        connections,
        scored: 1,
        seen_ns: seen_ms * 1_000_000 - 7,
        forgot_ns: seen_ms * 1_000_000 - 5,
        ..Host::default()
    };
    for (slot, arm) in host.arms.iter_mut().take(4).enumerate() {
        *arm = self::arm(slot as u32);
    }
    host
}

const NAMES: [&str; 4] = ["bbr", "cubic", "htcp", "reno"];

/// Saves the changed records of the kernel, as the agent does; returns their number.
fn save(store: &mut Store, saved: &mut Saved, kernel: &[(HostKey, Host)], now: Moment) -> usize {
    saved.begin();
    let rows: Vec<HostRow> = kernel
        .iter()
        .filter(|(key, host)| !store.has(saved, key, host))
        .map(|(key, host)| {
            HostRow::new(*key, host, now.monotonic_ns, |slot| {
                NAMES.get(slot).copied()
            })
        })
        .collect();
    for some in rows.chunks(256) {
        store.save_hosts(Mode::Thalweg, saved, some, now).unwrap();
    }
    let gone: Vec<HostKey> = saved
        .missing()
        .into_iter()
        .filter_map(|id| store.host_of(id).unwrap())
        .collect();
    store.remove_hosts(Mode::Thalweg, saved, &gone).unwrap();
    rows.len()
}

#[test]
fn only_what_has_changed_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let log_bytes = || {
        let log = directory.path().join("thalweg.db-wal");
        std::fs::metadata(log).unwrap().len()
    };
    let mut saved = store.saved(Mode::Thalweg).unwrap();
    let mut kernel: Vec<(HostKey, Host)> = (0..65_536u32)
        .map(|n| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string();
            (key(1, &address), record(1, 3_000_000 + u64::from(n)))
        })
        .collect();
    assert_eq!(save(&mut store, &mut saved, &kernel, NOW), 65_536);
    assert_eq!(save(&mut store, &mut saved, &kernel, NOW), 0);

    // One in a hundred, all over the table. The log restarts, so its size equals the written bytes.
    let later = moment(3_700_000);
    for (_, host) in kernel.iter_mut().skip(13).step_by(100) {
        *host = record(2, 3_650_000);
    }
    store
        .connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    assert_eq!(log_bytes(), 0);
    assert_eq!(save(&mut store, &mut saved, &kernel, later), 656);
    let written = log_bytes();
    println!("a snapshot of 656 changed hosts of 65,536 wrote {written} bytes");
    assert!((1..=2_000_000).contains(&written), "{written} bytes");

    // Evicted records are removed, and a restarted agent knows the rest.
    kernel.truncate(60_000);
    assert_eq!(save(&mut store, &mut saved, &kernel, later), 0);
    drop(store);
    let mut store = open_at(directory.path(), BOOT, later);
    let mut saved = store.saved(Mode::Thalweg).unwrap();
    assert_eq!(save(&mut store, &mut saved, &kernel, later), 0);
    let mut hosts = 0;
    store
        .each_host(Mode::Thalweg, later, |row| {
            let (_, host) = kernel.iter().find(|(key, _)| *key == row.key).unwrap();
            let names = |slot: usize| NAMES.get(slot).copied();
            assert_eq!(row, HostRow::new(row.key, host, later.monotonic_ns, names));
            hosts += 1;
            // A few are enough, because each is searched.
            if hosts < 500 {
                Ok(())
            } else {
                anyhow::bail!("enough")
            }
        })
        .unwrap_err();
    assert_eq!(store.arm_names(Mode::Thalweg).unwrap(), NAMES);
}

#[test]
fn what_is_removed_on_request_does_not_come_back_from_a_walk_that_saw_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut other = store.again().unwrap();
    let mut saved = store.saved(Mode::Thalweg).unwrap();
    let rows = snapshot(Mode::Thalweg).hosts;
    store
        .save_hosts(Mode::Thalweg, &mut saved, &rows[..1], NOW)
        .unwrap();
    assert!(other.reset_host(Mode::Thalweg, &rows[0].key).unwrap());
    assert!(!store.is_current(&saved));
    let error = store
        .save_hosts(Mode::Thalweg, &mut saved, &rows, NOW)
        .unwrap_err();
    assert!(matches!(error, StoreError::Removed { .. }), "{error}");
    let saved = store.saved(Mode::Thalweg).unwrap();
    assert!(store.is_current(&saved) && saved.missing().is_empty());
}

#[test]
fn after_a_reboot_only_the_own_namespace_is_known_by_its_new_cookie() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let whole = Snapshot {
        own_netns: 1,
        ..snapshot(Mode::Thalweg)
    };
    store.save_snapshot(&whole, NOW).unwrap();
    store.adopt(&whole).unwrap();
    assert_eq!(load(&store, Mode::Thalweg).unwrap().hosts, whole.hosts);
    let now = Snapshot {
        boot_id: "next".to_owned(),
        own_netns: 2,
        ..whole.clone()
    };
    store.adopt(&now).unwrap();
    let hosts = load(&store, Mode::Thalweg).unwrap().hosts;
    let keys: Vec<HostKey> = hosts.iter().map(|row| row.key).collect();
    assert_eq!(keys, [key(2, "192.0.2.7"), key(2, "2001:db8::1")]);
}

#[test]
fn records_are_reset_one_by_one_and_all_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    store.save_snapshot(&snapshot(Mode::Thalweg), NOW).unwrap();
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
    assert_eq!(load(&store, Mode::Thalweg).unwrap().hosts.len(), 2);
    assert_eq!(store.clear_hosts(Mode::Thalweg).unwrap(), 2);
    assert_eq!(load(&store, Mode::Thalweg).unwrap().hosts, []);
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
    // The handicap is taken anew: the least, as the arm does not deviate.
    let restored = ArmState {
        caution_q16: 3276,
        ..arm(0)
    };
    assert_eq!(same.arms[2], restored);
    assert!(same.forgot_ns.abs_diff(90 * minute_ns) <= 1);

    // After a reboot the clock restarts. 55 minutes down and 1 up make two half-lives of the 67
    // minutes, and 7 minutes of the third.
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
    assert_eq!(store.append_events(&[], NOW).unwrap(), None);
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
    assert_eq!(store.append_events(&events, NOW).unwrap(), Some(10));

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
    // Whatever the wall clock says: it was set back a day after half of them.
    for n in 0..100i64 {
        let time_ms = if n < 50 { 86_400_000 } else { 0 } + n * 1000;
        let now = moment(3_600_000 + n.unsigned_abs() * 1000);
        store
            .append_events(&[event(time_ms, "192.0.2.7", false)], now)
            .unwrap();
    }
    let then = moment(3_700_000);
    let day = Duration::from_secs(86_400);
    assert_eq!(store.prune(then, day, 1000).unwrap(), 0);
    assert_eq!(
        store.prune(then, Duration::from_secs(90), 1000).unwrap(),
        10
    );
    assert_eq!(store.events(0, 1, None).unwrap()[0].id, 11);
    assert_eq!(store.prune(then, day, 40).unwrap(), 50);
    assert_eq!(store.events(0, 100, None).unwrap().len(), 40);
    // Numbers are never reused, even when every event has been removed.
    let much_later = moment(86_400_000);
    store.prune(much_later, Duration::from_secs(1), 1).unwrap();
    let one = [event(0, "192.0.2.7", false)];
    assert_eq!(store.append_events(&one, much_later).unwrap(), Some(101));
}

#[test]
fn pruning_is_bounded_a_call() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let events = vec![event(0, "192.0.2.7", false); 50_000];
    store.append_events(&events, NOW).unwrap();
    let day = Duration::from_secs(86_400);
    let mut left = Vec::new();
    while let removed @ 1.. = store.prune(NOW, day, 5000).unwrap() {
        left.push(removed);
    }
    assert_eq!(left, [20_000, 20_000, 5000]);
}

#[test]
fn a_crash_leaves_the_last_commit() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    store.save_snapshot(&snapshot(Mode::Thalweg), NOW).unwrap();
    store
        .append_events(&[event(1, "192.0.2.7", true)], NOW)
        .unwrap();

    // Half a snapshot and an event, never committed.
    let transaction = store.transaction().unwrap();
    let other = HostRow {
        connections: 7,
        ..row(key(1, "192.0.2.7"), &[])
    };
    super::snapshot::save_host(&transaction, Mode::Thalweg, &other, 0).unwrap();
    super::events::append(&transaction, &[event(2, "192.0.2.7", true)], 0).unwrap();
    // The files as a machine that loses power now would have them.
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
        assert_eq!(load(&store, Mode::Thalweg), Some(snapshot(Mode::Thalweg)));
        assert_eq!(store.events(0, 9, None).unwrap().len(), 1);
    }

    // A write-ahead log that ends within a transaction.
    store
        .append_events(&vec![event(3, "192.0.2.7", true); 1000], NOW)
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
    assert_eq!(load(&store, Mode::Thalweg), Some(snapshot(Mode::Thalweg)));
}
