//! Damaged files and documents.

use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::PermissionsExt as _;

use rusqlite::Connection;

use super::*;

/// Opens a store that must be found damaged; returns the reason.
fn damaged(directory: &Path, content: &[u8]) -> String {
    let opened = Store::open(directory, BOOT, NOW).unwrap();
    let aside = opened.set_aside.expect("the store is damaged");
    let name = aside.path.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("thalweg.db.corrupt-2"), "{name}");
    assert!(
        std::fs::read(&aside.path).unwrap() == content,
        "kept as it was"
    );
    // The new store works.
    let mut store = opened.store;
    store.save_snapshot(&snapshot(Mode::Thalweg), NOW).unwrap();
    assert!(aside.to_string().contains(name));
    aside.reason
}

#[test]
fn a_file_that_is_no_database_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    let content = b"this is not a database, whatever its name says".repeat(100);
    for _ in 0..3 {
        std::fs::write(directory.path().join(FILE_NAME), &content).unwrap();
        let reason = damaged(directory.path(), &content);
        assert!(reason.contains("not a database"), "{reason}");
    }
    let kept = std::fs::read_dir(directory.path())
        .unwrap()
        .filter(|entry| {
            entry
                .as_ref()
                .unwrap()
                .file_name()
                .to_str()
                .unwrap()
                .contains("corrupt")
        })
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            !name.to_str().unwrap().ends_with("-wal") && !name.to_str().unwrap().ends_with("-shm")
        })
        .count();
    assert_eq!(kept, 3, "one set aside never replaces another");
}

#[test]
fn a_damaged_database_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    let mut store = open(directory.path());
    store
        .append_events(&vec![event(3, "192.0.2.7", true); 5000], NOW)
        .unwrap();
    drop(store);
    let mut content = std::fs::read(&path).unwrap();
    assert!(content.len() > 200_000);
    for byte in &mut content[100_000..140_000] {
        *byte ^= 0x5a;
    }
    std::fs::write(&path, &content).unwrap();
    damaged(directory.path(), &content);
}

/// Overwrites a page of a store that was closed in good order, as a disk may; the times of the file
/// do not tell.
fn rot(directory: &Path, table: &str, root: bool) -> Vec<u8> {
    let path = directory.join(FILE_NAME);
    let connection = Connection::open(&path).unwrap();
    let ask = |sql: &str| {
        let number = connection.query_row(sql, [], |row| row.get::<_, u32>(0));
        number.unwrap() as usize
    };
    let size = ask("PRAGMA page_size");
    let first = ask(&format!(
        "SELECT rootpage FROM sqlite_schema WHERE name = '{table}'"
    ));
    drop(connection);
    let mut content = std::fs::read(&path).unwrap();
    let page = |number: usize| (number - 1) * size..number * size;
    // The page number of an interior root's right-most child is at 8.
    let at = page(first).start + 8;
    let child = u32::from_be_bytes(content[at..at + 4].try_into().unwrap()) as usize;
    let number = if root { first } else { child };
    content[page(number)].fill(0);
    std::fs::write(&path, &content).unwrap();
    let (lease, _) = lease::Lease::begin(&path);
    lease.trust();
    content
}

#[test]
fn store_that_rotted_after_a_good_close_is_set_aside_at_once() {
    for (table, root) in [
        ("hosts", true),
        ("hosts", false),
        ("clock", true),
        ("events", true),
        ("events", false),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut store = open(directory.path());
        let mut saved = snapshot(Mode::Thalweg);
        let row = saved.hosts[0].clone();
        saved.hosts = (0..500u64)
            .map(|netns| {
                let mut row = row.clone();
                row.key.netns = netns + 1;
                row
            })
            .collect();
        store.save_snapshot(&saved, NOW).unwrap();
        store
            .append_events(&vec![event(3, "192.0.2.7", true); 5000], NOW)
            .unwrap();
        drop(store);
        let content = rot(directory.path(), table, root);
        let reason = damaged(directory.path(), &content);
        assert!(!reason.is_empty(), "{table} {root}");
    }
}

#[test]
fn state_directory_of_others_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let check = || Store::check_own(directory.path(), &[]);
    check().unwrap();
    std::fs::write(directory.path().join("letters"), "").unwrap();
    let error = check().unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("files of others (letters)"), "{cause}");
    // What file systems have, and names that only begin like an agent's.
    for name in ["lost+found", "policy", "fleet.json.d"] {
        let place = directory.path().join(name);
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("letter"), "").unwrap();
        assert!(check().is_err(), "{name}");
    }
    std::fs::write(directory.path().join("policy.toml"), "").unwrap();
    assert!(check().is_err());
    for name in ["letter.json", "1.letter", "one.toml"] {
        let letter = directory.path().join("policy").join(name);
        std::fs::write(letter, "").unwrap();
        assert!(check().is_err(), "{name}");
    }
    // What an apply leaves behind that is killed, or has written so far.
    for name in ["in-force", "00000001.toml", "00000001.json", ".draft-x1"] {
        let file = directory.path().join("policy").join(name);
        std::fs::write(&file, "").unwrap();
        check().unwrap_or_else(|error| panic!("{name}: {error}"));
        std::fs::remove_file(&file).unwrap();
    }
    drop(open(directory.path()));
    check().unwrap();
}

/// A start that is refused has locked nobody out.
#[test]
fn file_of_another_user_leaves_all_modes_as_they_are() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [own, other] = ["a", "b"].map(|name| directory.path().join(name));
    for file in [&own, &other] {
        std::fs::write(file, "").unwrap();
        std::fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&other, Some(4711), None).unwrap();
    assert!(Store::make_private(directory.path()).is_err());
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(directory.path()), mode(&own)), (0o755, 0o644));
    std::fs::remove_file(&other).unwrap();
    Store::make_private(directory.path()).unwrap();
    assert_eq!((mode(directory.path()), mode(&own)), (0o700, 0o600));
}

#[test]
fn a_database_without_our_columns_is_set_aside() {
    for (change, reason) in [
        (
            "ALTER TABLE hosts DROP COLUMN switched",
            "its table hosts has no column switched",
        ),
        ("DROP TABLE events", "it has no table events"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        drop(open(directory.path()));
        let path = directory.path().join(FILE_NAME);
        Connection::open(&path)
            .unwrap()
            .execute_batch(change)
            .unwrap();
        let content = std::fs::read(&path).unwrap();
        assert_eq!(damaged(directory.path(), &content), reason);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE recipes (name)")
        .unwrap();
    let content = std::fs::read(&path).unwrap();
    assert_eq!(
        damaged(directory.path(), &content),
        "it is another program's database"
    );
}

#[test]
fn events_of_the_version_before_have_no_probabilities() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    let old = Connection::open(&path).unwrap();
    for step in &schema::MIGRATIONS[..3] {
        old.execute_batch(step).unwrap();
    }
    old.execute_batch(
        "PRAGMA user_version = 3;
         INSERT INTO events (time_ms, kind, connection, netns, host, remote, remote_port,
                             local_port, reason, propensity, passive, ecn, dry_run, switched,
                             end_kind, outcome, bytes, duration_us, rate_bytes_per_s, srtt_us,
                             min_rtt_us, segs_out, retrans, cost, weight)
         VALUES (1, 'close', 2, 3, '192.0.2.7', '192.0.2.7', 443, 5, 'greedy', 0.5, 0, 0, 0, 0,
                 'reset', 'scored', 6, 7, 8, 9, 10, 11, 12, 13, 1.0);",
    )
    .unwrap();
    drop(old);
    let store = open(directory.path());
    let event = &store.events(0, 9, None).unwrap()[0];
    assert_eq!((&event.propensities, &event.allowed), (&None, &None));
    assert_eq!(
        (event.rule, event.parameters, event.handshake_rtt_us),
        (0, 0, 0)
    );
    let measurement = event.measurement.as_ref().unwrap();
    assert_eq!((measurement.bytes, measurement.wall_us), (6, 0));
    assert!(!event.control && !measurement.app_limited);
}

#[test]
fn a_newer_store_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    let path = directory.path().join(FILE_NAME);
    Connection::open(&path)
        .unwrap()
        .pragma_update(None, "user_version", schema::VERSION + 1)
        .unwrap();
    let content = std::fs::read(&path).unwrap();
    let files = || std::fs::read_dir(directory.path()).unwrap().count();
    let before = files();
    let error = Store::open(directory.path(), BOOT, NOW).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::Newer { found, known, .. }
                if (found, known) == (schema::VERSION + 1, schema::VERSION)
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("install the newer version"),
        "{error}"
    );
    assert!(std::fs::read(&path).unwrap() == content, "left alone");
    assert_eq!(files(), before);
}

#[test]
fn records_that_cannot_be_are_left_out_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    store.save_snapshot(&snapshot(Mode::Thalweg), NOW).unwrap();
    for (change, fault) in [
        ("UPDATE hosts SET prefix = 33 WHERE id = 1", "0 to 32"),
        (
            "UPDATE hosts SET prefix = 32, address = 'x' WHERE id = 1",
            "\"x\" is not an IP address",
        ),
        (
            "UPDATE hosts SET prefix = 24, address = '192.0.2.7' WHERE id = 1",
            "192.0.2.7/24 is not in canonical form, which is 192.0.2.0/24",
        ),
        (
            "UPDATE hosts SET prefix = 32 WHERE id = 1;
             UPDATE host_arms SET value = -1 WHERE host = 1 AND arm = 'bbr'",
            "192.0.2.7: arms.bbr.value: 18446744073709551615 is above the possible 4294967295",
        ),
    ] {
        store.connection.execute_batch(change).unwrap();
        let mut good = 0;
        let faults = store
            .each_host(Mode::Thalweg, NOW, |_| {
                good += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!((good, faults.len()), (2, 1), "{faults:?}");
        assert!(faults[0].contains(fault), "{faults:?}");
    }
    // An unreadable host does not affect others.
    store
        .connection
        .execute_batch("UPDATE hosts SET address = 'x' WHERE id = 1")
        .unwrap();
    let mut saved = store.saved(Mode::Thalweg).unwrap();
    store.remove_unreadable(&mut saved).unwrap();
    assert_eq!(load(&store, Mode::Thalweg).unwrap().hosts.len(), 2);
}

#[test]
fn a_store_that_was_closed_in_good_order_says_so_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("thalweg.db.closed");
    let store = open(directory.path());
    let other = store.again().unwrap();
    assert!(!mark.exists());
    drop(store);
    assert!(!mark.exists(), "it is still open");
    drop(other);
    assert!(mark.exists());

    // Damage found in use makes the next start check the store whole.
    let store = open(directory.path());
    assert!(!mark.exists());
    let broken = rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT),
        None,
    );
    store.sql::<()>("test", Err(broken)).unwrap_err();
    drop(store);
    assert!(!mark.exists());

    // A crash leaves no mark either.
    std::mem::forget(open(directory.path()));
    assert!(!mark.exists());
}

#[test]
fn a_store_of_the_version_before_is_taken_up_with_its_times() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    let old = Connection::open(&path).unwrap();
    for step in &schema::MIGRATIONS[..2] {
        old.execute_batch(step).unwrap();
    }
    old.execute_batch(
        "PRAGMA user_version = 2;
         INSERT INTO snapshots VALUES ('thalweg', '0f0e', 1, 1760000000000);
         INSERT INTO hosts (mode, netns, address, prefix, connections, scored, switched,
                            min_rtt_us, max_rate, seen_age_ms, forgot_age_ms)
         VALUES ('thalweg', 1, '192.0.2.7', 32, 9, 3, 0, 100, 5, 1500, NULL),
                ('thalweg', 1, '192.0.2.8', 32, 9, 3, 0, 100, 5, 2500, 90000);",
    )
    .unwrap();
    drop(old);
    // The wall clock says that an hour has passed since.
    let store = open(directory.path());
    let hosts = load(&store, Mode::Thalweg).unwrap().hosts;
    let ages: Vec<_> = hosts
        .iter()
        .map(|row| {
            (
                row.key.address().to_string(),
                row.seen_age_ms,
                row.forgot_age_ms,
            )
        })
        .collect();
    assert_eq!(
        ages,
        [
            ("192.0.2.8".to_owned(), 3_602_500, Some(3_690_000)),
            ("192.0.2.7".to_owned(), 3_601_500, None)
        ]
    );
    let page: i64 = store
        .connection
        .pragma_query_value(None, "page_size", |row| row.get(0))
        .unwrap();
    assert_eq!(page, 1024);
    let journal: String = store
        .connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(journal, "wal");
}

#[test]
fn an_unwritable_directory_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Store::open(&file.join("state"), BOOT, NOW).unwrap_err();
    assert!(matches!(error, StoreError::File { .. }), "{error}");
    assert_told_once(error, "Not a directory");
}

#[test]
fn the_cause_is_told_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    Connection::open(store.path())
        .unwrap()
        .execute_batch("DROP TABLE hosts")
        .unwrap();
    let error = store.clear_hosts(Mode::Thalweg).unwrap_err();
    assert!(matches!(error, StoreError::Sql { .. }), "{error}");
    assert_told_once(error, "no such table");
}

/// Checks that the cause occurs once in the message of the agent and the command line.
fn assert_told_once(error: StoreError, cause: &str) {
    let told = format!("{:#}", anyhow::Error::from(error));
    assert_eq!(told.matches(cause).count(), 1, "{told}");
}

/// A document as other programs might write it: in another order, and over many lines.
fn export_json(snapshot: &Snapshot) -> String {
    let hosts: Vec<String> = snapshot
        .hosts
        .iter()
        .map(|host| export_host(host).unwrap())
        .collect();
    let text = format!("{}{}]}}", export_head(snapshot).unwrap(), hosts.join(","));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::to_string_pretty(&value).unwrap()
}

fn import_json(text: &str) -> Result<Snapshot, ImportError> {
    let mut snapshot = check_document(|| Ok(text.as_bytes()))?;
    each_host(text.as_bytes(), |_, row| {
        snapshot.hosts.push(row);
        Ok(())
    })?;
    Ok(snapshot)
}

#[test]
fn documents_round_trip() {
    for mode in [Mode::Thalweg, Mode::Classic] {
        let snapshot = snapshot(mode);
        let text = export_json(&snapshot);
        assert_eq!(import_json(&text).unwrap(), snapshot);
    }
}

#[test]
fn faults_in_documents_are_named() {
    let good = export_json(&snapshot(Mode::Thalweg));
    for (from, to, path, message) in [
        (
            "\"version\": 2",
            "\"version\": 3",
            "version",
            "found 3, this version of Thalweg reads 1 to 2",
        ),
        ("thalweg-hosts", "other", "format", "found \"other\""),
        (
            "\"mode\": \"thalweg\"",
            "\"mode\": \"fast\"",
            "mode",
            "found \"fast\"",
        ),
        (
            "\"192.0.2.7\"",
            "\"192.0.2\"",
            "hosts[0].address",
            "not an IP address",
        ),
        (
            "\"boot_id\": \"0f0e\"",
            "\"boot_id\": \"0f\\u00070e\"",
            "boot_id",
            "expected at most 36 ASCII characters",
        ),
        (
            "\"boot_id\": \"0f0e\"",
            "\"boot_id\": \"0c9a4b9e-6e1b-4a66-8f0b-0f2f3ad2b0d4b\"",
            "boot_id",
            "expected at most 36 ASCII characters",
        ),
        (
            "\"prefix\": 64",
            "\"prefix\": 129",
            "hosts[1].address",
            "0 to 128",
        ),
        (
            "\"prefix\": 64",
            "\"prefix\": -1",
            "hosts[1].prefix",
            "expected u32",
        ),
        (
            "\"switched\": 3",
            "\"swapped\": 3",
            "hosts[0].swapped",
            "unknown field",
        ),
        (
            "\"netns\": 2",
            "\"netns\": 1",
            "hosts[2].address",
            "192.0.2.7 is there twice",
        ),
        (
            "\"cubic\"",
            "\"CUBIC\"",
            "hosts[0].arms.CUBIC",
            "not the name",
        ),
        (
            "70001",
            "70000000",
            "hosts[0].arms.bbr.weight_q16",
            "above the possible 12582912",
        ),
        (
            "\"log_rate_q16\": 1310720",
            "\"log_rate_q16\": 67108864",
            "hosts[0].arms.bbr.log_rate_q16",
            "above the possible 4194304",
        ),
        (
            "\"greedy\": 21",
            "\"greedy\": 99",
            "hosts[0].arms.bbr.greedy",
            "above the possible 41",
        ),
        (
            "\"value\": 65536",
            "\"value\": \"x\"",
            "hosts[0].arms.bbr.value",
            "invalid type",
        ),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        let error = import_json(&bad).unwrap_err();
        assert_eq!(error.path, path, "{error}");
        assert!(error.message.contains(message), "{error}");
    }
    for text in [
        "",
        "{",
        "[]",
        "null",
        &good[..good.len() / 2],
        &format!("{good}x"),
    ] {
        assert!(import_json(text).is_err());
    }
}

#[test]
fn document_with_a_part_without_end_is_refused_at_its_limit() {
    let header = "{\"format\":\"thalweg-hosts\",\"version\":2,";
    for (start, byte, path) in [
        ("\"boot_id\":\"", b'a', "boot_id"),
        ("\"own_netns\":", b'1', "own_netns"),
        ("\"hosts\":[{\"address\":\"", b'1', "hosts"),
        ("\"hosts\":[", b'[', "hosts"),
    ] {
        let start = format!("{header}{start}");
        let read_bytes = std::cell::Cell::new(0);
        let error = check_document(|| {
            let endless = start.as_bytes().chain(std::io::repeat(byte).take(64 << 20));
            Ok(Counted(endless, &read_bytes))
        })
        .unwrap_err();
        assert_eq!(error.path, path, "{error}");
        let message = "found a field or host of more than 8192 bytes at line 1 column ";
        assert!(error.message.starts_with(message), "{error}");
        assert!(read_bytes.get() <= 32 << 10, "{error}: {read_bytes:?}");
    }
}

/// Counts what is read.
struct Counted<'a, R>(R, &'a std::cell::Cell<usize>);

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1.set(self.1.get() + read);
        Ok(read)
    }
}
