//! The store: learned records and decisions, in one SQLite file.
//!
//! It has a column per field and arms by name, so a store outlives changes of the kernel interface
//! and of the arm table. Every change is one transaction: after a crash the store has the state
//! before it or after it.
//!
//! Unsigned 64-bit values are stored as the signed integer with the same bits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, ErrorCode};

use crate::disk::{note_of_io, note_of_sql};

mod clock;
mod document;
mod events;
mod history;
mod lease;
mod open;
mod row;
mod sampling;
pub(crate) mod schema;
mod snapshot;
#[cfg(test)]
pub(crate) mod tests;
mod waits;

pub use clock::Moment;
pub use document::{
    HOST_MAX_BYTES, ImportError, check_document, each_host, export_head, export_host, import_host,
};
pub use events::PRUNE_STEP;
pub use history::{Decided, Intervals};
pub use row::{HostRow, Restored, Snapshot, parse_mode};
pub use snapshot::{Saved, unsigned};
pub use waits::KeptWait;

/// Name of the store's file in the state directory.
pub const FILE_NAME: &str = "thalweg.db";

/// Why the store cannot be used. Causes are sources: `{:#}` of [`anyhow::Error`] prints them.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The state directory or a file in it cannot be created, moved or opened.
    #[error("{}: cannot {action}{}", path.display(), note_of_io(path, source))]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The action.
        action: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// SQLite returned an error.
    #[error("{}: cannot {action}{}", path.display(), note_of_sql(path, source))]
    Sql {
        /// The store's file.
        path: PathBuf,
        /// The action.
        action: &'static str,
        /// The cause.
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
        /// Newest version that this program supports.
        known: i64,
    },
    /// Records were removed on request since the store was last read.
    #[error("{}: records were removed meanwhile", path.display())]
    Removed {
        /// The store's file.
        path: PathBuf,
    },
}

/// A store that has just been opened.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Store,
    /// The damaged file that was there before, if any. The caller must report it.
    pub set_aside: Option<SetAside>,
}

/// A damaged store, renamed and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// Present path of the store set aside.
    pub path: PathBuf,
    /// Fault of the store.
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
    // Dropped before the lease, which inspects the files after the close.
    pub(crate) connection: Connection,
    path: PathBuf,
    clock: clock::Clock,
    pub(crate) boot_id: String,
    lease: Arc<lease::Lease>,
}

impl Store {
    /// Opens the store in a state directory; creates both if they are absent.
    ///
    /// A store of an older schema is migrated. One of a newer schema is refused
    /// ([`StoreError::Newer`]). A damaged one is set aside and replaced by an empty one.
    ///
    /// A store that its last user closed in good order is not checked; any other is checked whole.
    pub fn open(directory: &Path, boot_id: &str, moment: Moment) -> Result<Opened, StoreError> {
        open::open(directory, boot_id, moment)
    }

    /// Fails unless a directory is empty or has been a state directory before.
    ///
    /// # Errors
    /// It is used by others, or cannot be read.
    pub fn check_own(directory: &Path, names: &[&str]) -> Result<(), StoreError> {
        open::check_own(directory, names)
    }

    /// Makes a state directory and its files private to the agent, whatever they were: they show
    /// whom this machine talks to.
    ///
    /// # Errors
    /// A file that belongs to somebody else, or whose mode cannot be set.
    pub fn make_private(directory: &Path) -> Result<(), StoreError> {
        open::make_private(directory)
    }

    /// Another connection to the same file. Neither waits for the other's reads, and a write waits
    /// for at most one transaction of the other.
    pub fn again(&self) -> Result<Self, StoreError> {
        open::again(self)
    }

    /// Number of removals on request, by any connection.
    pub fn resets(&self) -> u64 {
        self.lease.resets()
    }

    fn note_reset(&self) {
        self.lease.note_reset();
    }

    /// The time on the store's clock, ms.
    pub fn now_ms(&self, moment: Moment) -> i64 {
        self.clock.at(moment.monotonic_ns)
    }

    /// The store's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the action and the file to an error of SQLite.
    pub(crate) fn sql<T>(
        &self,
        action: &'static str,
        result: Result<T, rusqlite::Error>,
    ) -> Result<T, StoreError> {
        result.map_err(|source| {
            if let Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) =
                source.sqlite_error_code()
            {
                self.lease.suspect();
            }
            StoreError::Sql {
                path: self.path.clone(),
                action,
                source,
            }
        })
    }
}
