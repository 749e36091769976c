//! Wall clocks that jump.

use super::*;

const YEAR_MS: i64 = 365 * 86_400_000;

/// The same moment of the monotonic clock, with the wall clock changed by this much.
fn set(moment: Moment, by_ms: i64) -> Moment {
    Moment {
        wall_ms: moment.wall_ms + by_ms,
        ..moment
    }
}

fn age_ms(store: &Store, moment: Moment) -> u64 {
    load_at(store, Mode::Thalweg, moment).unwrap().hosts[0].seen_age_ms
}

/// A store with one host, seen at [`NOW`].
fn filled(directory: &Path) -> Store {
    let mut store = open(directory);
    let host = HostRow {
        seen_age_ms: 0,
        ..row(key(1, "192.0.2.7"), &[])
    };
    let one = Snapshot {
        hosts: vec![host],
        ..snapshot(Mode::Thalweg)
    };
    store.save_snapshot(&one, NOW).unwrap();
    store
}

#[test]
fn within_a_boot_the_wall_clock_means_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = filled(directory.path());
    let minute = moment(3_660_000);
    for by_ms in [-50 * YEAR_MS, -1, 0, 1, 50 * YEAR_MS] {
        assert_eq!(
            age_ms(&store, set(minute, by_ms)),
            60_000,
            "set by {by_ms} ms"
        );
        store.note_clock(set(minute, by_ms)).unwrap();
        drop(store);
        store = open_at(directory.path(), BOOT, set(minute, by_ms));
        assert_eq!(
            age_ms(&store, set(minute, by_ms)),
            60_000,
            "set by {by_ms} ms"
        );
    }
}

#[test]
fn from_boot_to_boot_the_wall_clock_counts_but_never_back() {
    // A minute after the next boot.
    let boot = Moment {
        monotonic_ns: 60_000_000_000,
        ..moment(3_600_000)
    };
    for (by_ms, age) in [(-50 * YEAR_MS, 0), (-1, 0), (0, 0), (7_200_000, 7_200_000)] {
        let directory = tempfile::tempdir().unwrap();
        drop(filled(directory.path()));
        let store = open_at(directory.path(), "next", set(boot, by_ms));
        assert_eq!(age_ms(&store, set(boot, by_ms)), age, "set by {by_ms} ms");
        // From then on time advances again.
        let later = Moment {
            monotonic_ns: 120_000_000_000,
            ..boot
        };
        assert_eq!(age_ms(&store, later), age + 60_000, "set by {by_ms} ms");
    }
}

/// The time that a wrong clock showed while the machine ran does not count as elapsed time.
#[test]
fn a_clock_that_was_set_before_the_machine_was_shut_down_is_known() {
    for by_ms in [-50 * YEAR_MS, 50 * YEAR_MS] {
        let directory = tempfile::tempdir().unwrap();
        let mut store = filled(directory.path());
        // Set a minute later, and recorded.
        let minute = set(moment(3_660_000), by_ms);
        store.note_clock(minute).unwrap();
        drop(store);
        // Ten minutes later, with the same wrong clock, another boot.
        let boot = Moment {
            monotonic_ns: 5_000_000_000,
            wall_ms: minute.wall_ms + 600_000,
        };
        let store = open_at(directory.path(), "next", boot);
        assert_eq!(age_ms(&store, boot), 660_000, "set by {by_ms} ms");
    }
}
