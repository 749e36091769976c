//! Directories of pins in a BPF file system.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::fcntl::{Flock, FlockArg};

use crate::error::{Context, Result, bail};
use crate::system;

/// A directory of directories, locked against other writers.
pub struct Locked {
    /// Path of the directory.
    pub directory: PathBuf,
    _lock: Flock<File>,
}

impl Locked {
    /// Creates and locks a directory.
    ///
    /// # Errors
    /// System errors.
    pub fn create(directory: &Path) -> Result<Self> {
        // The process that removes the last entry removes the directory, possibly at this moment.
        loop {
            create_directory(directory, true)?;
            if let Some(locked) = Self::open(directory)? {
                return Ok(locked);
            }
        }
    }

    /// Locks a directory. None if there is none, or if it was removed before the lock, even if a
    /// new one exists by now.
    ///
    /// # Errors
    /// System errors; a directory that is on no BPF file system, and so somebody else's.
    pub fn open(directory: &Path) -> Result<Option<Self>> {
        let shown = directory.display();
        let file = match File::open(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| format!("opening {shown}"))?,
        };
        if !system::has_pins(directory) {
            bail!(
                Damaged,
                "{shown} is not on a BPF file system: what is there is left alone"
            );
        }
        let inode = file.metadata()?.ino();
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| errno)
            .with_context(|| format!("locking {shown}"))?;
        if !fs::metadata(directory).is_ok_and(|now| now.ino() == inode) {
            return Ok(None);
        }
        Ok(Some(Self {
            directory: directory.to_owned(),
            _lock: lock,
        }))
    }

    /// The directory of one entry.
    pub fn entry_path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Removes this directory and the agent's if they are empty.
    pub fn remove_if_empty(self, pin: &Path) {
        remove_if_empty(&self.directory);
        drop(self);
        remove_if_empty(pin);
    }
}

/// Objects of one kind, a directory each, below one that is locked while they are read or changed.
/// Opening the directory recovers from an interrupted call.
pub(crate) trait RecoverablePins: Sized {
    /// Name of the directory below the agent's.
    const DIRECTORY: &str;
    /// The objects in such a directory.
    const OF: fn(Locked) -> Self;

    /// Finishes or reverts what an earlier call has left.
    fn recover(&self) -> Result<()>;

    /// The directory, created if needed.
    fn create(pin: &Path) -> Result<Self> {
        let all = (Self::OF)(Locked::create(&pin.join(Self::DIRECTORY))?);
        all.recover()?;
        Ok(all)
    }

    /// The directory; `None` if nothing is kept.
    fn open(pin: &Path) -> Result<Option<Self>> {
        let all = Locked::open(&pin.join(Self::DIRECTORY))?.map(Self::OF);
        all.as_ref().map_or(Ok(()), Self::recover)?;
        Ok(all)
    }
}

/// Creates a directory that only its owner can read. `recursive`: its parents too, and it may
/// exist.
///
/// # Errors
/// System errors.
pub fn create_directory(directory: &Path, recursive: bool) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(recursive)
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("creating {}", directory.display()))
}

/// Names in a directory; none if it does not exist.
pub(crate) fn directory_entries(directory: &Path) -> Result<Vec<String>> {
    match fs::read_dir(directory) {
        Ok(entries) => Ok(entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", directory.display())),
    }
}

/// Names in a directory, in order, without those with a suffix; none if it does not exist.
pub(crate) fn entries_without(suffix: &str, directory: &Path) -> Result<Vec<String>> {
    let mut names = directory_entries(directory)?;
    names.retain(|name| !name.ends_with(suffix));
    names.sort();
    Ok(names)
}

/// A directory, and those below it to a depth.
pub(crate) fn directories_below(directory: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found = vec![directory.to_owned()];
    if depth > 0 {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        found.extend(inner.flat_map(|entry| directories_below(&entry.path(), depth - 1)));
    }
    found
}

/// Numbers among the names in a directory; none if it does not exist.
pub(crate) fn numbered_entries<T: FromStr>(directory: &Path) -> Result<Vec<T>> {
    let names = directory_entries(directory)?.into_iter();
    Ok(names.filter_map(|name| name.parse().ok()).collect())
}

/// Removes a directory and its content, first the files whose names start with `first`. A missing
/// directory is no error.
pub(crate) fn remove_directory(directory: &Path, first: &str) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    let (before, after): (Vec<_>, Vec<_>) = directory_entries(directory)?
        .into_iter()
        .partition(|file| file.starts_with(first));
    for file in before.iter().chain(&after) {
        remove_file(&directory.join(file))?;
        fail_point!("pins::removed");
    }
    fs::remove_dir(directory).with_context(|| format!("removing {}", directory.display()))
}

/// Removes a file, or a pin; a missing one is no error.
///
/// # Errors
/// System errors.
pub fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a directory if it is empty.
pub(crate) fn remove_if_empty(directory: &Path) {
    // Not empty means in use, which is no error.
    let _ = fs::remove_dir(directory);
}
