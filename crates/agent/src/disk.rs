//! Exhausted resources of a file system. ENOSPC and SQLite's errors do not name the resource.

use std::io::ErrorKind;
use std::path::Path;

use nix::sys::statvfs::{Statvfs, statvfs};
use rusqlite::ErrorCode;
use thalweg_control::Error;

/// Names the exhausted resource of a path's file system, after a separator; empty if there is none.
fn shortage(path: &Path) -> String {
    let existing = path.ancestors().find(|path| path.exists());
    let found = existing.and_then(|existing| Some((existing, statvfs(existing).ok()?)));
    let words = found.and_then(|(existing, about)| Some((existing, lacks(&about)?)));
    words.map_or(String::new(), |(existing, (what, command))| {
        let existing = existing.display();
        format!(" (its file system has no free {what}: `{command} {existing}`)")
    })
}

fn lacks(about: &Statvfs) -> Option<(&'static str, &'static str)> {
    // File systems without a fixed number of inodes, or without blocks at all (bpffs), say 0.
    if about.files() > 0 && about.files_available() == 0 {
        return Some(("inodes", "df -i"));
    }
    (about.blocks() > 0 && about.blocks_available() == 0).then_some(("space", "df"))
}

/// The text of [`shortage`], if an error may be due to one.
pub fn note_of_io(path: &Path, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => shortage(path),
        _ => String::new(),
    }
}

/// The text of [`shortage`], if an error of SQLite may be due to one: without a free inode a file
/// "cannot be opened".
pub fn note_of_sql(path: &Path, error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => {
            shortage(path)
        }
        _ => String::new(),
    }
}

/// Adds exhausted resources of the agent's file systems to an error of the start.
pub fn explained(error: anyhow::Error, paths: &[&Path]) -> anyhow::Error {
    let is_full = |cause: &(dyn std::error::Error + 'static)| {
        let (io, errno) = match cause.downcast_ref().map(Error::root) {
            Some(Error::Io(io)) => (Some(io), None),
            Some(Error::Errno(errno)) => (None, Some(errno)),
            _ => (cause.downcast_ref(), cause.downcast_ref()),
        };
        io.is_some_and(|error: &std::io::Error| error.kind() == ErrorKind::StorageFull)
            || errno.is_some_and(|errno| *errno == nix::Error::ENOSPC)
    };
    let is_named = format!("{error:#}").contains("its file system has no free");
    let note = paths.iter().map(|path| (path, shortage(path)));
    match note.into_iter().find(|(_, note)| !note.is_empty()) {
        Some((path, note)) if !is_named && error.chain().any(is_full) => {
            error.context(format!("{}{note}", path.display()))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::process::Command;

    use super::*;

    /// A file system in memory, until it is dropped; none where this user may not mount.
    struct Small(tempfile::TempDir);

    impl Small {
        fn new(options: &str) -> Option<Self> {
            let place = tempfile::tempdir().unwrap();
            let mounted = Command::new("mount")
                .args(["-t", "tmpfs", "-o", options, "thalweg-test"])
                .arg(place.path())
                .status();
            if mounted.is_ok_and(|status| status.success()) {
                return Some(Self(place));
            }
            crate::privileged::skip("nothing can be mounted");
            None
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
        }
    }

    #[test]
    #[cfg_attr(not(privileged), ignore = "needs root")]
    fn error_on_a_file_system_without_inodes_names_them() {
        let Some(small) = Small::new("size=1m,nr_inodes=2") else {
            return;
        };
        std::fs::write(small.0.path().join("last"), "").unwrap();
        let path = small.0.path().join("state/agent.lock");
        let error = std::fs::write(small.0.path().join("more"), "").unwrap_err();
        let note = note_of_io(&path, &error);
        assert!(note.contains("no free inodes"), "{error}: {note:?}");
        let told = explained(error.into(), &[Path::new("/proc"), &path]);
        assert!(format!("{told:#}").contains("inodes"), "{told:#}");

        let error = rusqlite::Connection::open(small.0.path().join("thalweg.db"))
            .and_then(|connection| connection.execute_batch("CREATE TABLE t (c)"))
            .unwrap_err();
        let note = note_of_sql(&path, &error);
        assert!(note.contains("no free inodes"), "{error}: {note:?}");
    }

    #[test]
    #[cfg_attr(not(privileged), ignore = "needs root")]
    fn error_on_a_full_file_system_names_space_and_other_errors_name_nothing() {
        let Some(small) = Small::new("size=16k") else {
            return;
        };
        let path = small.0.path().join("filler");
        let error = std::fs::write(&path, vec![1; 1 << 20]).unwrap_err();
        assert!(note_of_io(&path, &error).contains("no free space"));
        assert_eq!(note_of_io(&path, &io::ErrorKind::NotFound.into()), "");
        let other = explained(anyhow::anyhow!("something else"), &[&path]);
        assert_eq!(other.to_string(), "something else");
    }
}
