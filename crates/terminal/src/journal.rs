//! Whether standard error goes to the journal of systemd.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

/// Whether standard error is the stream that the journal gave this process, named by device and
/// inode (systemd.exec(5), `JOURNAL_STREAM`).
pub fn is_standard_error() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let Some((device, inode)) = stream.split_once(':') else {
        return false;
    };
    let Ok(descriptor) = std::io::stderr().as_fd().try_clone_to_owned() else {
        return false;
    };
    let found = File::from(descriptor);
    found
        .metadata()
        .is_ok_and(|found| device.parse() == Ok(found.dev()) && inode.parse() == Ok(found.ino()))
}
