//! Whether the store was closed in good order: then it need not be read whole to be trusted.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Held by every connection of this process to the store. When the last one has gone it notes, in
/// a file beside the store, what the store looked like.
#[derive(Debug)]
pub(super) struct Lease {
    path: PathBuf,
    /// The file is to be read whole when it is opened again.
    suspect: AtomicBool,
    /// An old mark that cannot be removed.
    stuck: bool,
    resets: AtomicU64,
}

impl Lease {
    /// Begins the use of a store, which is suspect until [`Lease::trust`]. Returns whether it is
    /// as its last user has left it.
    pub(super) fn begin(path: &Path) -> (Self, bool) {
        let mark = mark(path);
        let as_left = fs::read_to_string(&mark)
            .is_ok_and(|noted| fs::metadata(path).is_ok_and(|now| describe(&now) == noted));
        // A mark that cannot be removed would vouch for what comes now.
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

    /// The store is open, and was found to be in order.
    pub(super) fn trust(&self) {
        self.suspect.store(self.stuck, Ordering::Relaxed);
    }

    /// The store has turned out to be damaged.
    pub(super) fn suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    /// Notes that records are to be forgotten.
    pub(super) fn note_reset(&self) {
        self.resets.fetch_add(1, Ordering::SeqCst);
    }

    /// How often records were to be forgotten.
    pub(super) fn resets(&self) -> u64 {
        self.resets.load(Ordering::SeqCst)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let log = PathBuf::from(format!("{}-wal", self.path.display()));
        // SQLite removes its log when it has closed the file in good order.
        if self.suspect.load(Ordering::Relaxed) || log.exists() {
            return;
        }
        if let Ok(now) = fs::metadata(&self.path) {
            // Without it the next start reads the store whole: slower, and right.
            let _ = fs::write(mark(&self.path), describe(&now));
        }
    }
}

fn mark(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.closed", path.display()))
}

/// Changes whenever the file changes.
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
