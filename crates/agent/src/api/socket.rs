//! The socket of the local API.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};

/// The API's socket, which goes with this.
pub struct Socket {
    path: PathBuf,
    descriptor: OwnedFd,
}

impl Socket {
    /// Binds the socket; the locks say that no agent of this state is alive, so a socket file
    /// in the way is stale, unless somebody answers on it. Nobody can connect yet.
    ///
    /// # Errors
    /// What is in the way is no socket, or somebody listens on it; or the system's own.
    pub fn bind(path: &Path) -> Result<Self> {
        let shown = path.display();
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)
                .with_context(|| format!("creating {}", directory.display()))?;
        }
        let address = UnixAddr::new(path).with_context(|| format!("socket {shown}"))?;
        clear(path, &address)?;
        let descriptor = unconnected()?;
        socket::bind(descriptor.as_raw_fd(), &address)
            .with_context(|| format!("binding {shown}"))?;
        let bound = Self {
            path: path.to_owned(),
            descriptor,
        };
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))
            .with_context(|| format!("setting the mode of {shown}"))?;
        Ok(bound)
    }

    /// From now on it can be connected to.
    pub fn listen(&self) -> Result<std::os::unix::net::UnixListener> {
        socket::listen(&self.descriptor, Backlog::MAXCONN)
            .with_context(|| format!("listening on {}", self.path.display()))?;
        Ok(self.descriptor.as_fd().try_clone_to_owned()?.into())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // One that is gone is as good as removed.
        let _ = fs::remove_file(&self.path);
    }
}

fn unconnected() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).context("making a socket")
}

/// Takes a stale socket away, and nothing else.
fn clear(path: &Path, address: &UnixAddr) -> Result<()> {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("looking at {shown}")),
        Ok(there) if !there.file_type().is_socket() => bail!(
            "{shown} is not a socket, and is left as it is; remove it, or name another file in \
             paths.socket"
        ),
        Ok(_) => {}
    }
    match socket::connect(unconnected()?.as_raw_fd(), address) {
        // EAGAIN: somebody listens, and the queue is full.
        Ok(()) | Err(Errno::EAGAIN) => {
            bail!("another process answers on {shown}; give this agent its own [paths] socket")
        }
        Err(_) => fs::remove_file(path).with_context(|| format!("removing stale {shown}")),
    }
}
