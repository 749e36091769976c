//! Opening of new, present, older, newer and damaged files.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use thalweg_control::policy::history::History;

use super::clock::{Clock, Moment};
use super::lease::Lease;
use super::{FILE_NAME, Opened, SetAside, Store, StoreError, schema};

/// Longest wait of a statement for another process that reads or writes the store.
const BUSY: Duration = Duration::from_secs(5);
/// Size of the page cache; SQLite takes a negative number as KiB.
const CACHE_KIB: i64 = -2048;
/// Pages in the write-ahead log before a checkpoint: a page that many events change is then written
/// once for all of them.
const CHECKPOINT_PAGES: i64 = 16_000;
/// Size of a page, bytes. Changed host records are scattered, and each change writes a page.
const PAGE_BYTES: i64 = 1024;
/// Size to which the write-ahead log is cut after a checkpoint, bytes.
const LOG_BYTES: i64 = 16 << 20;

/// Name of the table that may be large.
const EVENTS: &str = "events";

/// Reason that an attempt to open failed.
enum Failure {
    /// The content cannot be trusted.
    Damaged(String),
    /// Any other error.
    Error(StoreError),
}

pub(super) fn open(directory: &Path, boot_id: &str, moment: Moment) -> Result<Opened, StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|source| StoreError::File {
            path: directory.to_path_buf(),
            action: "make the directory",
            source,
        })?;
    let path = directory.join(FILE_NAME);
    let reason = match attempt(&path, boot_id, moment) {
        Ok(store) => {
            return Ok(Opened {
                store,
                set_aside: None,
            });
        }
        Err(Failure::Error(error)) => return Err(error),
        Err(Failure::Damaged(reason)) => reason,
    };
    let kept = set_aside(&path)?;
    match attempt(&path, boot_id, moment) {
        Ok(store) => Ok(Opened {
            store,
            set_aside: Some(SetAside { path: kept, reason }),
        }),
        Err(Failure::Error(error)) => Err(error),
        // The file was just created, so the disk itself does not keep its data.
        Err(Failure::Damaged(reason)) => Err(StoreError::File {
            path,
            action: "make a new store",
            source: std::io::Error::other(reason),
        }),
    }
}

/// Whether an entry of a directory marks it as a state directory. `thalweg policy` creates one,
/// too.
fn is_own(directory: &Path, name: &str, names: &[&str]) -> bool {
    match name {
        "policy" => History::at(directory).is_own(),
        "agent.lock" => true,
        _ => name.starts_with(FILE_NAME) || names.contains(&name),
    }
}

/// Fails unless a directory is empty or has been a state directory before: its mode and that of its
/// files are changed.
///
/// # Errors
/// The directory is used by others, or cannot be read.
pub(super) fn check_own(directory: &Path, own: &[&str]) -> Result<(), StoreError> {
    let path = directory.to_path_buf();
    let refused = |source| StoreError::File {
        path: path.clone(),
        action: "use it as paths.state",
        source,
    };
    let entries = fs::read_dir(directory).map_err(refused)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names
        .collect::<std::io::Result<Vec<String>>>()
        .map_err(refused)?;
    // File systems create this directory.
    names.retain(|name| name != "lost+found");
    names.sort();
    match names.first() {
        Some(other) if !names.iter().any(|name| is_own(directory, name, own)) => {
            let fault = format!(
                "it has files of others ({other}), and would become this agent's alone: name an \
                 empty directory, or one that does not exist"
            );
            Err(refused(std::io::Error::other(fault)))
        }
        _ => Ok(()),
    }
}

/// Removes others' permissions on the files of a state directory: on all, or on none.
///
/// # Errors
/// A file belongs to another user, who could read it through an open descriptor; or a system error.
pub(super) fn make_private(directory: &Path) -> Result<(), StoreError> {
    let refused = |path: &Path, action| {
        let path = path.to_path_buf();
        move |source| StoreError::File {
            path,
            action,
            source,
        }
    };
    let tighten = |path: &Path, mode: u32| {
        let found = fs::symlink_metadata(path)?;
        if found.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        Ok(())
    };
    let own = nix::unistd::geteuid().as_raw();
    let mut files = Vec::new();
    let entries = fs::read_dir(directory).map_err(refused(directory, "read the directory"))?;
    for entry in entries {
        let path = entry
            .map_err(refused(directory, "read the directory"))?
            .path();
        let found = fs::symlink_metadata(&path).map_err(refused(&path, "look at the file"))?;
        if !found.is_file() {
            continue;
        }
        if found.uid() != own {
            let user = found.uid();
            let fault =
                format!("it belongs to user {user}, the agent runs as {own}: chown {own} it");
            return Err(refused(&path, "use the file")(std::io::Error::other(fault)));
        }
        files.push(path);
    }
    tighten(directory, 0o700).map_err(refused(directory, "set the mode"))?;
    files
        .iter()
        .try_for_each(|file| tighten(file, 0o600).map_err(refused(file, "set the mode")))
}

/// Opens, migrates and checks one file.
fn attempt(path: &Path, boot_id: &str, moment: Moment) -> Result<Store, Failure> {
    let classify = |action| {
        move |source: rusqlite::Error| match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                Failure::Damaged(source.to_string())
            }
            _ => Failure::Error(StoreError::Sql {
                path: path.to_path_buf(),
                action,
                source,
            }),
        }
    };
    let mut connection = Connection::open(path).map_err(classify("open the store"))?;
    // Queries come first: files of another program must not be written.
    let (found, foreign) = examine(&connection).map_err(classify("read the store"))?;
    if !(0..=schema::VERSION).contains(&found) {
        let known = schema::VERSION;
        let path = path.to_path_buf();
        return Err(Failure::Error(StoreError::Newer { path, found, known }));
    }
    if foreign {
        return Err(Failure::Damaged(
            "it is another program's database".to_owned(),
        ));
    }
    let (lease, as_left) = Lease::begin(path);
    if found == 0 {
        connection
            .pragma_update(None, "page_size", PAGE_BYTES)
            .map_err(classify("make the store"))?;
    }
    configure(&connection).map_err(classify("read the store"))?;
    let checked = match as_left {
        // A disk may lose data that was written well.
        true => check_small(&connection),
        false => check(&connection),
    };
    checked
        .map_err(classify("check the store"))?
        .map_or(Ok(()), |fault| Err(Failure::Damaged(fault)))?;
    if found < schema::VERSION {
        let migrate = |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            schema::migrate(&transaction, found)?;
            transaction.commit()
        };
        migrate(&mut connection).map_err(classify("bring the store's schema up to date"))?;
        if found != 0 {
            shrink_pages(&connection).map_err(classify("bring the store's pages up to date"))?;
        }
    }
    if let Some(fault) =
        schema::difference(&connection).map_err(classify("read the store's schema"))?
    {
        return Err(Failure::Damaged(fault));
    }
    let start_clock = |connection: &mut Connection| {
        let transaction = connection.transaction()?;
        let clock = Clock::start(&transaction, boot_id, moment)?;
        transaction.commit()?;
        Ok(clock)
    };
    let clock = start_clock(&mut connection).map_err(classify("note the time"))?;
    lease.trust();
    Ok(Store {
        connection,
        path: path.to_path_buf(),
        clock,
        boot_id: boot_id.to_owned(),
        lease: Arc::new(lease),
    })
}

/// Opens another connection to an open store.
pub(super) fn again(store: &Store) -> Result<Store, StoreError> {
    let open = || {
        let connection = Connection::open(&store.path)?;
        connection.busy_timeout(BUSY)?;
        configure(&connection)?;
        Ok(connection)
    };
    Ok(Store {
        connection: store.sql("open the store", open())?,
        path: store.path.clone(),
        clock: store.clock.clone(),
        boot_id: store.boot_id.clone(),
        lease: Arc::clone(&store.lease),
    })
}

/// Converts a store of an earlier version to the present page size. If that fails, as on a full
/// disk, the store keeps its pages, and changes write more.
fn shrink_pages(connection: &Connection) -> Result<(), rusqlite::Error> {
    let have: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    if have == PAGE_BYTES {
        return Ok(());
    }
    let shrink = || {
        // With a write-ahead log the page size cannot change.
        connection.pragma_update(None, "journal_mode", "DELETE")?;
        connection.pragma_update(None, "page_size", PAGE_BYTES)?;
        connection.execute_batch("VACUUM")
    };
    let shrunk = shrink();
    connection.pragma_update(None, "journal_mode", "WAL")?;
    match shrunk {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => Err(error),
        _ => Ok(()),
    }
}

/// The file's version, and whether another program made it.
fn examine(connection: &Connection) -> Result<(i64, bool), rusqlite::Error> {
    connection.busy_timeout(BUSY)?;
    let version = schema::version(connection)?;
    Ok((version, version == 0 && !schema::is_empty(connection)?))
}

fn configure(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "cache_size", CACHE_KIB)?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES)
}

/// The first fault SQLite finds in the file, in words.
fn check(connection: &Connection) -> Result<Option<String>, rusqlite::Error> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok((verdict != "ok").then_some(verdict))
}

/// The first fault in the tables that a start reads, in words: all tables except the events, of
/// which only the newest is checked.
fn check_small(connection: &Connection) -> Result<Option<String>, rusqlite::Error> {
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let mut tables = connection.prepare(tables)?;
    let names = tables.query_map([], |row| row.get::<_, String>(0))?;
    let names = names.collect::<Result<Vec<_>, _>>()?;
    for name in names.iter().filter(|name| *name != EVENTS) {
        let mut fault = None;
        connection.pragma(None, "quick_check", name, |row| {
            let verdict: String = row.get(0)?;
            if verdict != "ok" {
                fault.get_or_insert(verdict);
            }
            Ok(())
        })?;
        if fault.is_some() {
            return Ok(fault);
        }
    }
    if names.iter().any(|name| name == EVENTS) {
        let newest = format!("SELECT * FROM {EVENTS} ORDER BY id DESC LIMIT 1");
        connection.prepare(&newest)?.query([])?.next()?;
    }
    Ok(None)
}

/// Renames a file and its companions to a free name; returns the name.
fn set_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let stamp = jiff::Timestamp::now()
        .strftime("%Y%m%dT%H%M%SZ")
        .to_string();
    let base = format!("{}.corrupt-{stamp}", path.display());
    let target = (0..)
        .map(|n| {
            PathBuf::from(if n == 0 {
                base.clone()
            } else {
                format!("{base}.{n}")
            })
        })
        .find(|target| !target.exists())
        .unwrap_or_else(|| PathBuf::from(&base));
    for suffix in ["", "-wal", "-shm"] {
        let from = PathBuf::from(format!("{}{suffix}", path.display()));
        let to = PathBuf::from(format!("{}{suffix}", target.display()));
        match std::fs::rename(&from, &to) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                let action = "set the damaged store aside";
                return Err(StoreError::File {
                    path: from,
                    action,
                    source,
                });
            }
            _ => {}
        }
    }
    Ok(target)
}
