//! Waits after harm.

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn waits_go_on_after_a_restart_and_are_replaced_by_setting() {
    let directory = tempfile::tempdir().unwrap();
    let wait = |prefix: &str, seconds: u64| KeptWait {
        key: HostKey {
            level: Level::Prefix,
            ..key(1, prefix)
        },
        until_ns: NOW.monotonic_ns + seconds * SECOND_NS,
        length_ns: 600 * SECOND_NS,
        highest: Some(1),
    };
    let waits = [wait("10.0.0.0", 600), wait("2001:db8::", 60)];
    let mut store = open(directory.path());
    store.save_waits("idle", &waits, NOW).unwrap();
    store.save_waits("timers.syn", &waits[..1], NOW).unwrap();
    drop(store);
    // Another boot, five minutes later by the wall clock.
    let later = Moment {
        monotonic_ns: 20 * SECOND_NS,
        wall_ms: NOW.wall_ms + 300_000,
    };
    let mut store = open_at(directory.path(), "other", later);
    let mut found = store.waits("idle", later).unwrap();
    found.sort_by_key(|it| it.until_ns);
    let lefts = found
        .iter()
        .map(|it| (it.until_ns - later.monotonic_ns) / SECOND_NS);
    assert_eq!(lefts.collect::<Vec<_>>(), [0, 300]);
    assert_eq!(found[1].key, waits[0].key);
    assert_eq!(found[1].highest, Some(1));
    assert_eq!(found[1].length_ns, waits[0].length_ns);
    store.save_waits("idle", &[], later).unwrap();
    assert_eq!(store.waits("idle", later).unwrap(), []);
    assert_eq!(store.waits("timers.syn", later).unwrap().len(), 1);
}
