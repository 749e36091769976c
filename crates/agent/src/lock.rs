//! The locks of an agent's directories: one agent at a time.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use thalweg_control::pins;

/// Longest wait of a start for an ending agent, whose last snapshot takes a second or two.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval of polls for the end of that agent.
const LOOK: Duration = Duration::from_millis(20);
/// Suffix after the pid of an agent that is ending.
const ENDING: &str = " ending";

/// A locked file with the pid of the agent that holds it.
pub struct Lock(Flock<File>);

impl Lock {
    /// Takes the lock. If the agent that holds it is ending, waits for its end.
    ///
    /// # Errors
    /// Another agent runs, or has not ended after ten seconds; or the file cannot be used.
    pub fn take(path: &Path) -> Result<Self> {
        let shown = path.display();
        let held = wait(open(path)?, path, |file| {
            let (pid, is_ending) = holder(file).with_context(|| format!("reading {shown}"))?;
            if !is_ending {
                bail!(
                    "another agent (pid {pid}) already runs with this state ({shown}); stop it \
                     first, or give this one its own [paths] pin, state and socket"
                );
            }
            Ok(format!("another agent (pid {pid})"))
        })?;
        let lock = Self(held);
        lock.write("").with_context(|| format!("writing {shown}"))?;
        Ok(lock)
    }

    /// Announces to waiting agents that the lock will be free soon.
    pub fn note_end(&self) {
        // If the disk is full, the next start is refused instead of waiting.
        let _ = self.write(ENDING);
    }

    /// Replaces the first line in one step.
    fn write(&self, word: &str) -> std::io::Result<()> {
        let text = format!("{}{word}\n", std::process::id());
        self.0.write_all_at(text.as_bytes(), 0)?;
        self.0.set_len(text.len() as u64)
    }
}

/// Locks that an agent holds while it runs.
pub struct Locks {
    /// Lock of the state directory.
    pub state: Lock,
    /// Lock of the directory of pins.
    pub pins: Arc<PinLock>,
}

impl Locks {
    /// Announces to waiting agents that the locks will be free soon.
    pub fn note_end(&self) {
        self.state.note_end();
        self.pins.note_end();
    }
}

/// The locked directory of an agent's pins. No file there can name the holder. A running agent
/// holds the lock exclusively; an ending one shares it.
pub struct PinLock(Mutex<Flock<File>>);

impl PinLock {
    /// Creates the directory if needed and takes its lock. If the agent that holds it is ending,
    /// waits for its end.
    ///
    /// # Errors
    /// Another agent runs with these pins, or has not ended after ten seconds; or the directory
    /// cannot be used.
    pub fn take(path: &Path) -> Result<Self> {
        let shown = path.display();
        // A detached agent removes the directory.
        loop {
            pins::create_directory(path, true)?;
            let file = match File::open(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                file => file.with_context(|| format!("opening {shown}"))?,
            };
            let inode = file.metadata()?.ino();
            let held = wait(file, path, |file| {
                match Flock::lock(file.try_clone()?, FlockArg::LockSharedNonblock) {
                    Ok(_) => Ok("another agent".to_owned()),
                    Err((_, Errno::EWOULDBLOCK)) => bail!(
                        "another agent already uses {shown}; give this one its own [paths] pin"
                    ),
                    Err((_, errno)) => Err(errno).with_context(|| format!("locking {shown}")),
                }
            })?;
            if fs::metadata(path).is_ok_and(|now| now.ino() == inode) {
                return Ok(Self(Mutex::new(held)));
            }
        }
    }

    /// Locks the directory that has the path now, if it is another one.
    ///
    /// # Errors
    /// There is no directory, or another agent has locked it.
    pub fn follow(&self, path: &Path) -> Result<()> {
        let shown = path.display();
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let file = File::open(path).with_context(|| format!("opening {shown}"))?;
        let place = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
        if place(&file)? == place(&held)? {
            return Ok(());
        }
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(taken) => *held = taken,
            Err((_, Errno::EWOULDBLOCK)) => bail!("another agent uses {shown} by now"),
            Err((_, errno)) => return Err(errno).with_context(|| format!("locking {shown}")),
        }
        Ok(())
    }

    /// Announces to waiting agents that the lock will be free soon.
    pub fn note_end(&self) {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // If that fails, the next start is refused instead of waiting.
        let _ = held.relock(FlockArg::LockSharedNonblock);
    }
}

/// Locks a file. `holder` returns the holder's name if it is ending, and an error if it is not.
fn wait(
    mut file: File,
    path: &Path,
    holder: impl Fn(&File) -> Result<String>,
) -> Result<Flock<File>> {
    let shown = path.display();
    let deadline = Instant::now() + PATIENCE;
    let mut waits = false;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => return Ok(held),
            Err((file, Errno::EWOULDBLOCK)) => file,
            Err((_, errno)) => return Err(errno).with_context(|| format!("locking {shown}")),
        };
        let holder = holder(&file)?;
        if Instant::now() >= deadline {
            bail!(
                "{holder} has not ended within {} s ({shown}): wait for its end, or kill it (the \
                 programs and what they learned stay in the kernel)",
                PATIENCE.as_secs()
            );
        }
        if !waits {
            tracing::info!("waiting for {holder} that is ending");
            waits = true;
        }
        std::thread::sleep(LOOK);
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(nix::libc::ELOOP) => anyhow!(
                "{} is a symbolic link, which is not followed: remove it",
                path.display()
            ),
            _ => anyhow::Error::new(error).context(format!("opening {}", path.display())),
        })
}

/// The pid of the agent that holds the lock, and whether it is ending.
fn holder(file: &File) -> std::io::Result<(String, bool)> {
    let mut text = [0; 64];
    let length = file.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text[..length]);
    let mut words = text.lines().next().unwrap_or_default().split_whitespace();
    let pid = words.next().unwrap_or("unknown").to_owned();
    Ok((pid, words.next() == Some(ENDING.trim_start())))
}
