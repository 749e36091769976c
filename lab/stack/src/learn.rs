//! The work of an agent in the kernel: learn, starting from the records of earlier runs, and obey a
//! policy.
//!
//! The records are a document of `thalweg export` in a file of the user. It goes in through the
//! work directory, and comes back there at intervals and at the end. Only this side touches the
//! file. It holds the lock, which a kernel inside could not, and replaces the file whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use thalweg_policy::Policy;
use thalweg_units::file::{self, Draft};

use crate::error::Error;

/// The records that go in, in the work directory.
pub(crate) const KNOWN: &str = "known.json";
/// The records that come back, in the work directory.
pub(crate) const LEARNED: &str = "learned.json";
/// The policy's directory, in the work directory.
pub(crate) const POLICY: &str = "policy";
/// Most hosts that the agent inside keeps; beyond, the least valuable go.
pub(crate) const HOSTS_MAX: u64 = 4096;
/// Most bytes of the document per host, the agent's own bound.
const HOST_MAX_BYTES: u64 = 8 << 10;

/// A file of learned records, locked while this lives.
#[derive(Debug)]
pub struct Store {
    file: PathBuf,
    known: Option<Vec<u8>>,
    _lock: Flock<File>,
}

impl Store {
    /// Locks and reads a file, which need not exist; its directory must. `check` returns the fault
    /// of a document.
    ///
    /// # Errors
    /// Another process holds the lock; its number is given. The file cannot be used, or is no such
    /// document.
    pub fn lock_and_read(
        file: &Path,
        check: impl Fn(&[u8]) -> Result<(), String>,
    ) -> Result<Self, Error> {
        // Read before locking, so that no lock is left beside a foreign file.
        read_records(file, &check)?;
        let lock = lock_records(file)?;
        Ok(Self {
            file: file.to_owned(),
            known: read_records(file, &check)?,
            _lock: lock,
        })
    }

    /// Copies the records to the kernel's work directory.
    pub(crate) fn hand_in(&self, work: &Path) -> Result<(), Error> {
        let Some(known) = &self.known else {
            return Ok(());
        };
        let path = work.join(KNOWN);
        fs::write(&path, known).map_err(Error::io("cannot write", path))
    }

    /// Replaces the file by the records that came back.
    pub(crate) fn keep_records(&self, work: &Path) -> Result<(), Error> {
        let path = work.join(LEARNED);
        let learned = fs::read(&path).map_err(Error::io("cannot read", path))?;
        Draft::new(&self.file, 0o600)
            .and_then(|draft| draft.replace(&learned))
            .map_err(Error::io("cannot write", &self.file))
    }
}

fn read_records(
    file: &Path,
    check: impl Fn(&[u8]) -> Result<(), String>,
) -> Result<Option<Vec<u8>>, Error> {
    let bytes = match file::read_bytes(file, HOSTS_MAX * HOST_MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match check(&bytes) {
        Ok(()) => Ok(Some(bytes)),
        Err(why) => Err(refused_error(file)(io::Error::other(format!(
            "{why}: move it away, or name another file with --store"
        )))),
    }
}

/// The lock lies beside the file, which itself is replaced.
fn lock_records(file: &Path) -> Result<Flock<File>, Error> {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(Error::io("cannot open", &path))?;
    match Flock::lock(open, FlockArg::LockExclusiveNonblock) {
        Ok(mut held) => {
            held.set_len(0)
                .and_then(|()| writeln!(held, "{}", std::process::id()))
                .map_err(Error::io("cannot write", &path))?;
            Ok(held)
        }
        Err((mut open, Errno::EWOULDBLOCK)) => {
            let mut holder = String::new();
            // The holder's number helps, but is not needed.
            let _ = open.read_to_string(&mut holder);
            Err(refused_error(file)(io::Error::other(format!(
                "another `thalweg-lab stack` (pid {}) learns into it; wait for its end, or name \
                 another file with --store",
                holder.trim()
            ))))
        }
        Err((_, errno)) => Err(Error::io("cannot lock", path)(errno.into())),
    }
}

fn refused_error(file: &Path) -> impl FnOnce(io::Error) -> Error {
    Error::io("cannot use", file)
}

/// A checked policy.
#[derive(Debug, Clone)]
pub struct Rules {
    name: OsString,
    text: Vec<u8>,
    congestion_controls: Vec<String>,
}

impl Rules {
    /// The text of a file, and the policy in it.
    pub fn new(file: &Path, text: Vec<u8>, policy: &Policy) -> Self {
        Self {
            name: file.file_name().unwrap_or(file.as_os_str()).to_owned(),
            text,
            congestion_controls: policy.congestion_controls(),
        }
    }

    /// The congestion controls that its rules set, each once.
    pub(crate) fn congestion_controls(&self) -> &[String] {
        &self.congestion_controls
    }

    /// Copies the policy to the kernel's work directory, and returns its path.
    pub(crate) fn hand_in(&self, work: &Path) -> Result<PathBuf, Error> {
        let directory = work.join(POLICY);
        fs::create_dir(&directory).map_err(Error::io("cannot create", &directory))?;
        let path = directory.join(&self.name);
        fs::write(&path, &self.text).map_err(Error::io("cannot write", &path))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(file: &Path) -> Result<Store, String> {
        let check = |bytes: &[u8]| match bytes {
            b"{}" => Ok(()),
            _ => Err("expected {}".to_owned()),
        };
        Store::lock_and_read(file, check).map_err(|error| error.to_string())
    }

    #[test]
    fn one_at_a_time_and_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let work = tempfile::tempdir().unwrap();
        let file = directory.path().join("stack.json");
        let store = take(&file).unwrap();
        let pid = std::process::id();
        let refusal = take(&file).unwrap_err();
        assert!(
            refusal.contains(&format!("another `thalweg-lab stack` (pid {pid}) learns")),
            "{refusal}"
        );
        // Nothing has come back yet, so the file is not created.
        assert!(store.keep_records(work.path()).is_err() && !file.exists());
        fs::write(work.path().join(LEARNED), "{}").unwrap();
        store.keep_records(work.path()).unwrap();
        drop(store);
        let store = take(&file).unwrap();
        store.hand_in(work.path()).unwrap();
        assert_eq!(fs::read(work.path().join(KNOWN)).unwrap(), b"{}");
        drop(store);
        fs::write(&file, "{").unwrap();
        let refusal = take(&file).unwrap_err();
        let expected = format!(
            "cannot use {}: expected {{}}: move it away, or name another file with --store",
            file.display()
        );
        assert_eq!(refusal, expected);
    }
}
