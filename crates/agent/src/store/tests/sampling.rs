//! Events of a share of the host-hours: what is remembered of the draw, and what is counted.

use rusqlite::Connection;
use thalweg_learner::HOUR_NS;

use super::*;
use crate::sampling::{Hour, KeptSampling};

/// A time of the boot, in hours.
fn at_hour(hours: f64) -> Moment {
    moment((hours * 3_600_000.0) as u64)
}

fn hour(share: f64, seen: u64) -> Hour {
    Hour { share, seen }
}

#[test]
fn the_draw_goes_on_after_a_restart_and_begins_anew_after_a_boot() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open_at(directory.path(), BOOT, at_hour(2.5));
    let first = store.sampling(at_hour(2.5)).unwrap();
    assert_eq!(first.began_ns, HOUR_NS * 5 / 2);
    assert_eq!((first.before, first.hours.len()), (None, 0));
    let hours = [
        (2, hour(1.0, 500)),
        (3, hour(0.25, 4000)),
        (4, hour(0.125, 7)),
    ];
    store.save_sampling(&hours[..2]).unwrap();
    store.save_sampling(&hours[2..]).unwrap();
    store.save_sampling(&[(4, hour(0.125, 900))]).unwrap();
    drop(store);

    let mut store = open_at(directory.path(), BOOT, at_hour(4.2));
    let second = store.sampling(at_hour(4.2)).unwrap();
    let kept = [hours[0], hours[1], (4, hour(0.125, 900))];
    let expected = KeptSampling {
        hours: kept.into(),
        ..first.clone()
    };
    assert_eq!(second, expected);
    drop(store);

    // What was seen in the hour and a half before the last hour still tells what to expect.
    let mut store = open_at(directory.path(), "another", at_hour(0.1));
    let third = store.sampling(at_hour(0.1)).unwrap();
    assert_eq!((third.before, third.hours.len()), (Some(3000.0), 0));
    assert_ne!(third.salt, first.salt);
    assert_eq!(store.sampling(at_hour(0.2)).unwrap(), third);
}

#[test]
fn an_hour_of_which_an_earlier_version_stored_all_is_stored_whole() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open_at(directory.path(), BOOT, at_hour(7.1));
    store
        .append_events(&[event(1, "192.0.2.7", true)], at_hour(7.1))
        .unwrap();
    for (began, hours) in [(7.9, vec![(7, hour(1.0, 0))]), (8.0, vec![])] {
        let sampling = store.connection.execute_batch("DELETE FROM sampling");
        sampling.unwrap();
        let kept = store.sampling(at_hour(began)).unwrap();
        assert_eq!(kept.hours.into_iter().collect::<Vec<_>>(), hours, "{began}");
    }
}

#[test]
fn events_of_earlier_versions_are_kept_and_each_stands_for_itself() {
    for version in [6, 7] {
        takes_up(version);
    }
}

fn takes_up(version: usize) {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open(directory.path().join(FILE_NAME)).unwrap();
    for step in &schema::MIGRATIONS[..version] {
        connection.execute_batch(step).unwrap();
    }
    connection
        .execute_batch(&format!(
            "PRAGMA application_id = {};
             PRAGMA user_version = {version};
             INSERT INTO control_salt VALUES (0, 77);
             INSERT INTO gain VALUES ('', '0f0e', 5, 3);
             INSERT INTO clock VALUES (0, '0f0e', 1760000000000, 1760000000000, 1760000000000);
             INSERT INTO events (time_ms, kind, connection, netns, host, remote, remote_port,
                 local_port, reason, propensity, passive, ecn, dry_run, switched, clock_ms)
             VALUES (5, 'decision', 1, 1, '192.0.2.7', '192.0.2.7', 1, 2, 'greedy', 1.0, 0, 0, 0, 0,
                 1760000000005)",
            schema::APPLICATION_ID
        ))
        .unwrap();
    drop(connection);
    let mut store = open(directory.path());
    let events = store.events(0, 9, None).unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].time_ms, events[0].stands_for), (5, 1.0));
    assert_eq!(store.control_salt().unwrap(), 77);
    let gain = "SELECT since_ms FROM gain WHERE rule = ''";
    let since_ms: i64 = (store.connection)
        .query_row(gain, [], |row| row.get(0))
        .unwrap();
    assert_eq!(since_ms, 5);
    let kept = store.sampling(NOW).unwrap();
    assert_eq!((kept.before, kept.hours.len()), (None, 0));
    store
        .append_events(&[event(6, "192.0.2.7", true)], NOW)
        .unwrap();
    assert_eq!(store.events(1, 9, None).unwrap()[0].stands_for, 8.0);
}

#[test]
fn decisions_of_a_sample_are_counted_by_what_they_stand_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let of = |time_ms: i64, host: &str, stands_for: f64| Event {
        stands_for,
        ..event(time_ms, host, false)
    };
    let events = [
        of(1000, "192.0.2.7", 1.0),
        of(1001, "192.0.2.8", 4.0),
        of(2000, "192.0.2.7", 10.0 / 3.0),
        of(2001, "192.0.2.7", 10.0 / 3.0),
        of(2002, "192.0.2.8", 10.0 / 3.0),
        of(9000, "192.0.2.8", 1024.0),
    ];
    store.append_events(&events, NOW).unwrap();
    let intervals = Intervals {
        from_ms: 1000,
        length_ms: 1000,
        count: 2,
    };
    let bbr = |part, count| (part, Some("bbr".to_owned()), count);
    let all = store.history(intervals, None).unwrap();
    assert_eq!(all.counts, [bbr(0, 5), bbr(1, 10)]);
    assert_eq!(all.share, 0.25, "of the intervals alone");
    // Of one host a stored hour is whole.
    let one = store.history(intervals, Some("192.0.2.7")).unwrap();
    assert_eq!(one.counts, [bbr(0, 1), bbr(1, 2)]);
    assert_eq!(one.share, 0.3);
}

#[test]
fn decisions_are_counted_by_interval_and_arm() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let of = |time_ms: i64, host: &str, arm: Option<&str>| Event {
        arm: arm.map(str::to_owned),
        stands_for: 1.0,
        ..event(time_ms, host, false)
    };
    let intervals = Intervals {
        from_ms: 10_000,
        length_ms: 1000,
        count: 3,
    };
    let empty = store.history(intervals, None).unwrap();
    assert_eq!(
        (empty.counts.len(), empty.cut, empty.share),
        (0, false, 1.0)
    );
    let events = [
        of(9999, "192.0.2.7", Some("bbr")),
        of(10_000, "192.0.2.7", Some("bbr")),
        of(10_999, "192.0.2.8", Some("bbr")),
        Event {
            stands_for: 1.0,
            ..event(11_000, "192.0.2.7", true)
        },
        of(11_000, "192.0.2.7", None),
        of(12_999, "192.0.2.7", Some("reno")),
        of(13_000, "192.0.2.7", Some("reno")),
    ];
    store.append_events(&events, NOW).unwrap();
    let bbr = |count| (0, Some("bbr".to_owned()), count);
    let rest = [(1, None, 1), (2, Some("reno".to_owned()), 1)];
    for (host, first) in [(None, bbr(2)), (Some("192.0.2.7"), bbr(1))] {
        let found = store.history(intervals, host).unwrap();
        assert_eq!(found.counts, [&[first][..], &rest].concat());
        assert!(!found.cut);
    }
    // The first event since a moment is found whatever was removed before.
    store.prune(NOW, Duration::MAX, 2).unwrap();
    let found = store.history(intervals, None).unwrap();
    assert_eq!(found.counts, rest[1..]);
}
