//! Opening: new, present, older, newer and damaged files.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::{FILE_NAME, Opened, SetAside, Store, StoreError, schema};

/// How long a statement waits for another process that reads or writes the store.
const BUSY: Duration = Duration::from_secs(5);
/// Page cache, KiB; the minus is SQLite's way to say KiB.
const CACHE_KIB: i64 = -2048;
/// Pages in the write-ahead log before they are moved into the file: a page that many events
/// touch is then moved once for all of them.
const CHECKPOINT_PAGES: i64 = 4000;
/// Size to which the write-ahead log is cut after a checkpoint, bytes.
const LOG_BYTES: i64 = 16 << 20;

/// Why an attempt gave no store.
enum Failure {
    /// The content cannot be trusted.
    Damaged(String),
    /// Anything else.
    Error(StoreError),
}

pub(super) fn open(directory: &Path) -> Result<Opened, StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(directory)
        .map_err(|source| StoreError::File {
            path: directory.to_path_buf(),
            action: "make the directory",
            source,
        })?;
    let path = directory.join(FILE_NAME);
    let reason = match attempt(&path) {
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
    match attempt(&path) {
        Ok(store) => Ok(Opened {
            store,
            set_aside: Some(SetAside { path: kept, reason }),
        }),
        Err(Failure::Error(error)) => Err(error),
        // A file that was made a moment ago: the disk itself does not keep what it is given.
        Err(Failure::Damaged(reason)) => Err(StoreError::File {
            path,
            action: "make a new store",
            source: std::io::Error::other(reason),
        }),
    }
}

/// Opens, migrates and checks one file.
fn attempt(path: &Path) -> Result<Store, Failure> {
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
    // Questions first: nothing may be written to a file that is not ours to write.
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
    configure(&connection).map_err(classify("read the store"))?;
    check(&connection)
        .map_err(classify("check the store"))?
        .map_or(Ok(()), |fault| Err(Failure::Damaged(fault)))?;
    if found < schema::VERSION {
        let migrate = |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            schema::migrate(&transaction, found)?;
            transaction.commit()
        };
        migrate(&mut connection).map_err(classify("bring the store's schema up to date"))?;
    }
    match schema::difference(&connection).map_err(classify("read the store's schema"))? {
        None => Ok(Store {
            connection,
            path: path.to_path_buf(),
        }),
        Some(fault) => Err(Failure::Damaged(fault)),
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
    let verdict: String =
        connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    Ok((verdict != "ok").then_some(verdict))
}

/// Renames a file and its companions to a name that is free; returns the name.
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
