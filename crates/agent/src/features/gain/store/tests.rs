//! The gain: round trips, reboots, failures, other versions.

use thalweg_gain::{Arm, Chronographs, Connection, First, Limit, Part, Row, Scope, Side, Source};

use super::*;
use crate::store::tests::{BOOT, NOW, moment, open, open_at};
use crate::store::{FILE_NAME, schema};

const HOUR: u64 = 1;

fn connection(seconds: u64) -> Connection {
    Connection {
        bytes: 50_000,
        busy_us: seconds * 1_000_000,
        segs_out: 40,
        failed: Some(false),
        ..Connection::default()
    }
}

fn part(hour: u64, tag: u64) -> Part {
    Part {
        hour,
        tag,
        side: match tag {
            u64::MAX => Side::Control,
            _ => Side::Treated,
        },
        port: 443,
    }
}

/// Some connections of two hosts, one of them in the control group, in two hours.
fn fill(kept: &mut KeptGain) {
    for hour in [HOUR, HOUR + 1] {
        for tag in [7, u64::MAX] {
            kept.ledger.note_arm(tag, hour, "bbr");
            for seconds in [1, 2, 4] {
                let first = || First {
                    prefix: "192.0.2.0/24".to_owned(),
                    source: (hour != HOUR).then_some(Source::Fleet),
                };
                kept.ledger
                    .add_connection(part(hour, tag), &connection(seconds), first);
            }
        }
    }
}

fn save(store: &mut Store, kept: &mut KeptGain) {
    store.save_gain(&kept.take_changes(String::new())).unwrap();
}

fn revert(arm: Option<&str>) -> Revert {
    Revert {
        arm: arm.map(str::to_owned),
        since_ms: 5,
        until_ms: 86_400_005,
        why: "Transfers take 20 % more time".to_owned(),
    }
}

#[test]
fn sums_come_back_whether_their_hour_is_over_or_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut kept = store.gain("", NOW).unwrap();
    assert_eq!(kept.since_ms, store.now_ms(NOW));
    assert!(kept.ledger.current_groups().is_empty() && kept.reverts.is_empty());
    fill(&mut kept);
    kept.reverts = vec![revert(None), revert(Some("bbr"))];
    (kept.ledger.left_out, kept.ledger.overridden) = (3, 5);
    save(&mut store, &mut kept);
    // The first hour is over, the second is not.
    kept.ledger.close_hours(HOUR + 2);
    save(&mut store, &mut kept);
    drop(store);

    let later = moment(7_200_000);
    let store = open_at(directory.path(), BOOT, later);
    let again = store.gain("", later).unwrap();
    assert_eq!(again.ledger.current_groups(), kept.ledger.current_groups());
    assert_eq!(again.ledger.closed_groups(), kept.ledger.closed_groups());
    assert_eq!(again.ledger.baseline(), kept.ledger.baseline());
    assert_eq!(again.since_ms, kept.since_ms);
    assert_eq!((again.ledger.left_out, again.ledger.overridden), (3, 5));
    assert_eq!(again.reverts, kept.reverts);
    let group = &again.ledger.current_groups()[&(Scope::Arm, "bbr".to_owned())];
    assert_eq!(group.treated()[Row::Time.index()].connections, 3);
    let group = &again.ledger.current_groups()[&(Scope::Source, "fleet".to_owned())];
    assert_eq!(group.treated()[Row::Time.index()].connections, 3);
}

#[test]
fn host_hour_that_was_closed_is_booked_once_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let at = |hour: u64| moment(hour * 3_600_000);
    let mut store = open_at(directory.path(), BOOT, at(HOUR + 2));
    let mut kept = store.gain("", at(HOUR + 2)).unwrap();
    fill(&mut kept);
    kept.ledger.close_hours(HOUR + 2);
    save(&mut store, &mut kept);
    drop(store);

    let store = open_at(directory.path(), BOOT, at(HOUR + 2));
    let mut again = store.gain("", at(HOUR + 2)).unwrap();
    // Its event waited in the ring: it ended in the hour before, and began in the one that is over.
    again.ledger.reach_hour(HOUR + 1);
    let prefix = || "192.0.2.0/24".to_owned();
    let late = part(HOUR, 7);
    again.ledger.add_connection(late, &connection(1), prefix);
    let all = &again.ledger.current_groups()[&(Scope::All, String::new())];
    let time = &all.treated()[Row::Time.index()];
    // The very first one has nothing to be compared with.
    assert_eq!((time.clusters, time.connections), (2, 6));
}

#[test]
fn groups_of_another_boot_lose_their_hours_in_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut kept = store.gain("", NOW).unwrap();
    fill(&mut kept);
    // Nothing is open when the machine restarts.
    kept.ledger.close_hours(HOUR + 3);
    save(&mut store, &mut kept);
    drop(store);
    let mut store = open_at(directory.path(), "another", moment(1000));
    let mut again = store.gain("", moment(1000)).unwrap();
    save(&mut store, &mut again);
    let hours = |store: &Store| -> i64 {
        let sql = "SELECT max(hour) FROM gain_groups";
        store
            .connection
            .query_row(sql, [], |row| row.get(0))
            .unwrap()
    };
    assert_eq!(hours(&store), 0);
}

#[test]
fn sides_and_limits_come_back_whether_their_hour_is_over_or_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut kept = store.gain("advise:cubic", NOW).unwrap();
    let bbr = Arm::new("bbr").unwrap();
    let held = Chronographs {
        open_us: 9_000_000,
        receiver_us: 700_000,
        buffer_us: 30_000,
    };
    for hour in [HOUR, HOUR + 1] {
        for side in [Side::Control, Side::Drawn(bbr), Side::Itself(bbr)] {
            let part = Part {
                side,
                ..part(hour, 7)
            };
            for seconds in [1, 2] {
                let connection = held_up(held, seconds);
                kept.ledger.add_connection(part, &connection, String::new);
            }
        }
        // Beside none that kept the default: no pair, but limits.
        let alone = Part {
            side: Side::Itself(bbr),
            port: 80,
            ..part(hour, 8)
        };
        let prefix = || "203.0.113.0/24".to_owned();
        kept.ledger.add_connection(alone, &held_up(held, 1), prefix);
    }
    kept.ledger.close_hours(HOUR + 2);
    let changed = kept.take_changes("advise:cubic".to_owned());
    store.save_gain(&changed).unwrap();
    drop(store);

    let store = open(directory.path());
    assert!(
        store
            .gain("", NOW)
            .unwrap()
            .ledger
            .current_groups()
            .is_empty()
    );
    let again = store.gain("advise:cubic", NOW).unwrap();
    assert_eq!(again.ledger.current_groups(), kept.ledger.current_groups());
    assert_eq!(again.ledger.closed_groups(), kept.ledger.closed_groups());
    let groups = again.ledger.current_groups();
    let all = &groups[&(Scope::All, String::new())];
    assert_eq!((all.sides.len(), all.limits.connections), (3, 14));
    assert!(all.limits.is_binding(Limit::Receiver) && !all.limits.is_binding(Limit::Buffer));
    let alone = &groups[&(Scope::Prefix, "203.0.113.0/24".to_owned())];
    assert_eq!((alone.sides.len(), alone.limits.connections), (0, 2));
}

fn held_up(held: Chronographs, seconds: u64) -> Connection {
    Connection {
        held: Some(held),
        ..connection(seconds)
    }
}

#[test]
fn a_store_of_two_sides_is_taken_up() {
    let directory = tempfile::tempdir().unwrap();
    let old = rusqlite::Connection::open(directory.path().join(FILE_NAME)).unwrap();
    for step in &schema::MIGRATIONS[..6] {
        old.execute_batch(step).unwrap();
    }
    let content = "
        PRAGMA application_id = 0x54484c57;
        PRAGMA user_version = 6;
        INSERT INTO gain VALUES ('a', 'boot', 7, 3);
        INSERT INTO gain_groups VALUES
            ('a', 'all', '', 1, 0, 9, 2, 3, 3.0, 0.5, 5.0, 1.0, 0.25, 0.125),
            ('a', 'all', '', 0, 0, 9, 4, 5, 3.0, 0.5, 5.0, 1.0, 0.25, 0.125);
        INSERT INTO gain_parts VALUES
            ('a', 9, 1, 1, 443, NULL, '192.0.2.0/24', zeroblob(48), zeroblob(96)),
            ('a', 9, 2, 0, 443, 'bbr', '192.0.2.0/24', zeroblob(48), zeroblob(96));
    ";
    old.execute_batch(content).unwrap();
    drop(old);
    let store = open(directory.path());
    let kept = store.gain("a", NOW).unwrap();
    let all = &kept.ledger.closed_groups()[&(Scope::All, String::new())];
    let time = Row::Time.index();
    assert_eq!(
        (all.control()[time].clusters, all.treated()[time].clusters),
        (2, 4)
    );
    // Clusters without a connection, which count for nothing, and both sides' groups.
    let groups = kept.ledger.current_groups();
    assert!(groups.contains_key(&(Scope::Arm, "bbr".to_owned())));
    assert_eq!(groups[&(Scope::Port, "443".to_owned())].sides.len(), 2);
}

#[test]
fn after_a_reboot_the_hours_are_over() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut kept = store.gain("", NOW).unwrap();
    fill(&mut kept);
    save(&mut store, &mut kept);
    drop(store);

    let mut store = open_at(directory.path(), "another", moment(1000));
    let mut again = store.gain("", moment(1000)).unwrap();
    let before: Vec<_> = kept.ledger.current_groups().into_keys().collect();
    assert_eq!(
        again
            .ledger
            .closed_groups()
            .keys()
            .cloned()
            .collect::<Vec<_>>(),
        before
    );
    // Hours of this boot have the same numbers, and are other clusters.
    fill(&mut again);
    save(&mut store, &mut again);
    let third = store.gain("", moment(1000)).unwrap();
    let all = &third.ledger.current_groups()[&(Scope::All, String::new())];
    let time = Row::Time.index();
    assert_eq!(
        (all.control()[time].clusters, all.treated()[time].clusters),
        (4, 4)
    );
}

#[test]
fn what_cannot_be_saved_is_saved_later() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut kept = store.gain("", NOW).unwrap();
    fill(&mut kept);
    kept.ledger.close_hours(HOUR + 2);
    let groups = kept.ledger.current_groups();
    let refuse =
        "CREATE TRIGGER full BEFORE INSERT ON gain_parts BEGIN SELECT RAISE(ABORT, 'full'); END";
    store.connection.execute_batch(refuse).unwrap();
    let changed = kept.take_changes(String::new());
    assert!(store.save_gain(&changed).is_err());
    kept.put_back(changed);
    assert!(
        store
            .gain("", NOW)
            .unwrap()
            .ledger
            .current_groups()
            .is_empty()
    );
    store.connection.execute_batch("DROP TRIGGER full").unwrap();
    save(&mut store, &mut kept);
    assert_eq!(store.gain("", NOW).unwrap().ledger.current_groups(), groups);
}

#[test]
fn a_store_without_a_gain_begins_one() {
    let directory = tempfile::tempdir().unwrap();
    let old = rusqlite::Connection::open(directory.path().join(FILE_NAME)).unwrap();
    for step in &schema::MIGRATIONS[..3] {
        old.execute_batch(step).unwrap();
    }
    old.execute_batch("PRAGMA user_version = 3").unwrap();
    drop(old);
    let mut store = open(directory.path());
    let mut kept = store.gain("", NOW).unwrap();
    assert!(kept.ledger.current_groups().is_empty());
    fill(&mut kept);
    save(&mut store, &mut kept);
    assert!(
        !store
            .gain("", NOW)
            .unwrap()
            .ledger
            .current_groups()
            .is_empty()
    );
}

#[test]
fn sums_that_are_none_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut kept = store.gain("", NOW).unwrap();
    fill(&mut kept);
    save(&mut store, &mut kept);
    let spoil = "UPDATE gain_parts SET sums = x'00' WHERE tag = 7";
    store.connection.execute_batch(spoil).unwrap();
    let again = store.gain("", NOW).unwrap();
    let all = &again.ledger.current_groups()[&(Scope::All, String::new())];
    let time = Row::Time.index();
    assert_eq!(
        (all.control()[time].clusters, all.treated()[time].clusters),
        (2, 0)
    );
}

#[test]
fn rules_are_kept_apart_from_the_learner_and_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut kept = store.gain("", NOW).unwrap();
    fill(&mut kept);
    let groups = kept.ledger.current_groups();
    save(&mut store, &mut kept);
    for (rule, since_ms) in [("a", 10), ("b", 20)] {
        let mut kept = store.gain(rule, NOW).unwrap();
        assert!(kept.ledger.current_groups().is_empty());
        kept.since_ms = since_ms;
        kept.reverts.push(revert(None));
        let (part, host) = (part(HOUR, 3), || String::new());
        kept.ledger.add_connection(part, &connection(1), host);
        kept.ledger.add_connection(part, &connection(2), host);
        store
            .save_gain(&kept.take_changes(rule.to_owned()))
            .unwrap();
    }
    assert_eq!(store.gain("", NOW).unwrap().ledger.current_groups(), groups);
    assert!(store.gain("", NOW).unwrap().reverts.is_empty());
    // The learner's own began before, and stays.
    store.forget_rules(15).unwrap();
    assert_eq!(store.gain("", NOW).unwrap().ledger.current_groups(), groups);
    let [gone, here] = ["a", "b"].map(|rule| store.gain(rule, NOW).unwrap());
    assert!(gone.ledger.current_groups().is_empty() && gone.reverts.is_empty());
    assert_eq!(
        (here.since_ms, &here.reverts[..]),
        (20, &[revert(None)][..])
    );
    assert_eq!(here.ledger.current_groups().len(), 3);
}

#[test]
fn the_learners_gain_of_the_version_before_is_taken_up() {
    let directory = tempfile::tempdir().unwrap();
    let old = rusqlite::Connection::open(directory.path().join(FILE_NAME)).unwrap();
    for step in &schema::MIGRATIONS[..5] {
        old.execute_batch(step).unwrap();
    }
    let content = "
        PRAGMA application_id = 0x54484c57;
        PRAGMA user_version = 5;
        INSERT INTO gain VALUES (0, 'boot', 7, 3);
        INSERT INTO gain_strata VALUES (1, 5, 0.25);
        INSERT INTO gain_groups VALUES ('port', '443', 1, 0, 9, 2, 3, 3.0, 0.5, 5.0, 1.0, 0.25, 0.125);
        INSERT INTO gain_reverts VALUES ('bbr', 5, 86400005, 'Transfers take 20 % more time');
    ";
    old.execute_batch(content).unwrap();
    drop(old);
    let store = open(directory.path());
    let kept = store.gain("", NOW).unwrap();
    assert_eq!((kept.since_ms, kept.ledger.left_out), (7, 3));
    assert_eq!(kept.reverts, [revert(Some("bbr"))]);
    let group = &kept.ledger.current_groups()[&(Scope::Port, "443".to_owned())];
    let time = &group.control()[Row::Time.index()];
    assert_eq!((time.clusters, time.score3), (2, 0.125));
    assert_eq!(kept.ledger.baseline().strata().count(), 1);
}
