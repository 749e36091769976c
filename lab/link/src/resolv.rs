//! Another /etc/resolv.conf for one process and its children.

use std::fs;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// The file that programs read.
pub(crate) const FILE: &str = "/etc/resolv.conf";
/// A directory that is always there, for a moment the place of a file system in memory.
const PLACE: &str = "/proc";
const DRAFT: &str = "/proc/resolv.conf";
/// systemd-resolved's socket: through it `nss-resolve` would ask beside the link.
const BESIDE: &str = "/run/systemd/resolve/io.systemd.Resolve";

/// Gives the calling process a mount namespace in which [`FILE`] has this text. No file of the
/// machine changes, and none is left behind. Async-signal-safe.
pub(crate) fn replace_resolv_conf(text: &str) -> std::io::Result<()> {
    let (none, plain) = (None::<&str>, MsFlags::empty());
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    mount(none, PLACE, Some("tmpfs"), plain, none)?;
    fs::write(DRAFT, text)?;
    mount(Some(DRAFT), FILE, none, MsFlags::MS_BIND, none)?;
    umount2(PLACE, MntFlags::MNT_DETACH)?;
    if Path::new(BESIDE).exists() {
        mount(Some("/dev/null"), BESIDE, none, MsFlags::MS_BIND, none)?;
    }
    Ok(())
}
