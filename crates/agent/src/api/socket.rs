//! The socket of the local API.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};

/// The API's socket, removed with this value.
pub struct Socket {
    path: PathBuf,
    descriptor: OwnedFd,
    /// Device and inode of the file.
    file: Option<(u64, u64)>,
}

impl Socket {
    /// Binds the socket. The locks ensure that no other agent uses this state, so an existing
    /// socket file is stale, unless somebody answers on it. Nobody can connect yet. The agent's
    /// user may use the socket, and a group, if one is named.
    ///
    /// # Errors
    /// The path is not a socket, or somebody listens on it; there is no such group; or a system
    /// error.
    pub fn bind(path: &Path, group: Option<&str>) -> Result<Self> {
        let shown = path.display();
        let group = group.map(group_number).transpose()?;
        if let Some(directory) = path.parent() {
            make_public(directory).with_context(|| format!("creating {}", directory.display()))?;
        }
        let address = UnixAddr::new(path).with_context(|| format!("socket {shown}"))?;
        clear(path, &address)?;
        let descriptor = unconnected()?;
        socket::bind(descriptor.as_raw_fd(), &address)
            .with_context(|| format!("binding {shown}"))?;
        let bound = Self {
            path: path.to_owned(),
            descriptor,
            file: file(path),
        };
        // Nobody can connect yet, so the order does not matter.
        if let Some((name, number)) = group {
            std::os::unix::fs::lchown(path, None, Some(number))
                .with_context(|| format!("giving {shown} to the group {name}"))?;
        }
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        set_mode(path, mode).with_context(|| format!("setting the mode of {shown}"))?;
        Ok(bound)
    }

    /// Whether the path still leads to this socket.
    pub fn is_there(&self) -> bool {
        self.file.is_some() && file(&self.path) == self.file
    }

    /// Begins to accept connections.
    pub fn listen(&self) -> Result<std::os::unix::net::UnixListener> {
        socket::listen(&self.descriptor, Backlog::MAXCONN)
            .with_context(|| format!("listening on {}", self.path.display()))?;
        Ok(self.descriptor.as_fd().try_clone_to_owned()?.into())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another file at the path is not this socket's.
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Device and inode of a file.
fn file(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Creates a directory that everybody may traverse, whatever the umask; an existing one is
/// unchanged.
fn make_public(directory: &Path) -> std::io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(above) = directory.parent() {
        make_public(above)?;
    }
    fs::create_dir(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

fn group_number(name: &str) -> Result<(&str, u32)> {
    let group = nix::unistd::Group::from_name(name)
        .with_context(|| format!("looking for the group {name}"))?;
    match group {
        Some(group) => Ok((name, group.gid.as_raw())),
        None => bail!("there is no group {name:?} (paths.socket_group); make it: groupadd {name}"),
    }
}

fn unconnected() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).context("making a socket")
}

/// Removes a stale socket, and nothing else.
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

/// Sets a socket's mode, but never that of a link in its place.
fn set_mode(path: &Path, mode: u32) -> nix::Result<()> {
    let (mode, flag) = (
        Mode::from_bits_truncate(mode),
        FchmodatFlags::NoFollowSymlink,
    );
    fchmodat(AT_FDCWD, path, mode, flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_is_set_on_no_target_of_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let [target, link] = ["target", "link"].map(|name| directory.path().join(name));
        fs::write(&target, "").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(set_mode(&link, 0o600).is_err());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&target), 0o644);
        set_mode(&target, 0o660).unwrap();
        assert_eq!(mode(&target), 0o660);
    }
}
