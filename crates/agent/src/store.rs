//! The store: what has been learned and what was decided, in one SQLite file.
//!
//! One column a field and arms by name, so a store outlives changes of the kernel interface
//! and of the arm table. Every change is one transaction: after a crash the store holds the
//! state before it or the state after it.
//!
//! Unsigned 64-bit values are stored as the signed integer of the same bits.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

mod document;
mod events;
mod open;
mod row;
mod schema;
mod snapshot;
#[cfg(test)]
mod tests;

pub use document::{ImportError, export_json, import_json};
pub use events::PRUNE_STEP;
pub use row::{HostRow, Snapshot, parse_mode};

/// Name of the store's file in the state directory.
pub const FILE_NAME: &str = "thalweg.db";

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The state directory or a file in it cannot be made, moved or opened.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// SQLite refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Sql {
        /// The store's file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: rusqlite::Error,
    },
    /// The file was written by a newer version of Thalweg.
    #[error(
        "{}: the store has schema version {found}, this version of Thalweg knows up to {known}; \
         install the newer version, or name another directory in paths.state",
        path.display()
    )]
    Newer {
        /// The store's file.
        path: PathBuf,
        /// Version of the file.
        found: i64,
        /// Newest version this program knows.
        known: i64,
    },
    /// A row holds what no version of Thalweg writes.
    #[error("{}: the store holds a host record that is not valid: {fault}", path.display())]
    Row {
        /// The store's file.
        path: PathBuf,
        /// Which, and what is wrong with it.
        fault: String,
    },
}

/// A store that has just been opened.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Store,
    /// The damaged file that was in its place, if there was one. The caller must report it.
    pub set_aside: Option<SetAside>,
}

/// A damaged store, renamed and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// Where it is now.
    pub path: PathBuf,
    /// What was wrong with it.
    pub reason: String,
}

impl std::fmt::Display for SetAside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, reason } = self;
        write!(
            f,
            "the store was damaged ({reason}); it is kept as {}, and what it held is not used",
            path.display()
        )
    }
}

/// The open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens the store in a state directory; makes both where they are absent.
    ///
    /// A store of an older schema is migrated, one of a newer schema refused
    /// ([`StoreError::Newer`]), a damaged one set aside and replaced by an empty one.
    pub fn open(directory: &Path) -> Result<Opened, StoreError> {
        open::open(directory)
    }

    /// The store's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn sql<T>(
        &self,
        action: &'static str,
        result: Result<T, rusqlite::Error>,
    ) -> Result<T, StoreError> {
        result.map_err(|source| StoreError::Sql {
            path: self.path.clone(),
            action,
            source,
        })
    }
}
