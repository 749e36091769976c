//! The lock of a state directory: one agent at a time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// How long a start waits for an agent that is ending; its last snapshot takes a second or two.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);
/// What follows the pid of an agent that is ending.
const ENDING: &str = " ending";

/// A locked file with the pid of the agent that holds it.
pub struct Lock(Flock<File>);

impl Lock {
    /// Takes the lock. Where the agent that holds it is ending, its end is waited for.
    ///
    /// # Errors
    /// Another agent runs, or has not ended after ten seconds; a file that cannot be used.
    pub fn take(path: &Path) -> Result<Self> {
        let shown = path.display();
        let deadline = Instant::now() + PATIENCE;
        let mut file = open(path)?;
        let mut waits = false;
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(held) => {
                    let lock = Self(held);
                    lock.write("").with_context(|| format!("writing {shown}"))?;
                    return Ok(lock);
                }
                Err((file, Errno::EWOULDBLOCK)) => file,
                Err((_, errno)) => return Err(errno).with_context(|| format!("locking {shown}")),
            };
            let (pid, is_ending) = holder(&file).with_context(|| format!("reading {shown}"))?;
            if !is_ending {
                bail!(
                    "another agent (pid {pid}) already runs with this state ({shown}); stop it \
                     first, or give this one its own [paths] pin, state and socket"
                );
            }
            if Instant::now() >= deadline {
                bail!(
                    "another agent (pid {pid}) has not ended within {} s ({shown}): wait for its \
                     end, or kill it (the programs and what they learned stay in the kernel)",
                    PATIENCE.as_secs()
                );
            }
            if !waits {
                tracing::info!("waiting for an agent (pid {pid}) that is ending");
                waits = true;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Tells whoever wants the lock that it will be free soon.
    pub fn note_end(&self) {
        // On a disk without room the next start is refused instead of waiting.
        let _ = self.write(ENDING);
    }

    /// Replaces the text in one step, but for lines after the first.
    fn write(&self, word: &str) -> std::io::Result<()> {
        let text = format!("{}{word}\n", std::process::id());
        self.0.write_all_at(text.as_bytes(), 0)?;
        self.0.set_len(text.len() as u64)
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
