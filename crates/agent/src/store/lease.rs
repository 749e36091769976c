//! Lease of the store: shows whether it was closed in good order, and need not be checked as a
//! whole.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Lease that every connection of this process to the store holds. When the last one is dropped, it
/// records the file's state in a mark beside the store.
#[derive(Debug)]
pub(super) struct Lease {
    path: PathBuf,
    /// Whether the next opening must check the whole file.
    suspect: AtomicBool,
    /// Whether an old mark cannot be removed.
    stuck: bool,
    resets: AtomicU64,
}

impl Lease {
    /// Begins to use a store, which is suspect until [`Lease::trust`]. Returns whether the store is
    /// as its last user left it.
    pub(super) fn begin(path: &Path) -> (Self, bool) {
        let mark = mark(path);
        let as_left = fs::read_to_string(&mark)
            .is_ok_and(|noted| fs::metadata(path).is_ok_and(|now| describe(&now) == noted));
        // A mark that cannot be removed would vouch for later changes.
        let gone = match fs::remove_file(&mark) {
            Ok(()) => true,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        let lease = Self {
            path: path.to_path_buf(),
            suspect: AtomicBool::new(true),
            stuck: !gone,
            resets: AtomicU64::new(0),
        };
        (lease, as_left)
    }

    /// Notes that the store is open and in order.
    pub(super) fn trust(&self) {
        self.suspect.store(self.stuck, Ordering::Relaxed);
    }

    /// Notes that the store is damaged.
    pub(super) fn suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    /// Counts a removal of records on request.
    pub(super) fn note_reset(&self) {
        self.resets.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of removals on request.
    pub(super) fn resets(&self) -> u64 {
        self.resets.load(Ordering::SeqCst)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let log = PathBuf::from(format!("{}-wal", self.path.display()));
        // SQLite removes its log when it closes the file in good order.
        if self.suspect.load(Ordering::Relaxed) || log.exists() {
            return;
        }
        if let Ok(now) = fs::metadata(&self.path) {
            // Without the mark, the next start checks the whole store: slower, but correct.
            let _ = fs::write(mark(&self.path), describe(&now));
        }
    }
}

fn mark(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.closed", path.display()))
}

/// Description of a file that changes whenever the file does.
fn describe(file: &Metadata) -> String {
    format!(
        "{} {} {}.{:09} {}.{:09}\n",
        file.ino(),
        file.len(),
        file.mtime(),
        file.mtime_nsec(),
        file.ctime(),
        file.ctime_nsec()
    )
}
