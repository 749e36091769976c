//! Files that decide what the agent does: only root or the agent's user may change them.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{getegid, geteuid};
use thalweg_units::file::{self, ReadError};

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// The errors of [`file::read_bytes`], and a file that others may change.
pub fn read(file: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    let system = |why| ReadError::System {
        file: file.to_owned(),
        why,
    };
    let opened = file::open_regular(file, max)?;
    let about = opened.metadata().map_err(system)?;
    if let Some(fault) = fault(file, &about) {
        let why = io::Error::new(io::ErrorKind::PermissionDenied, fault);
        return Err(system(why));
    }
    file::read_open(opened, file, max)
}

/// Other users who may change a file, and the command that prevents it.
fn fault(file: &Path, about: &Metadata) -> Option<String> {
    let shown = file.display();
    let (own, group) = (geteuid().as_raw(), getegid().as_raw());
    let (uid, mode) = (about.uid(), about.mode() & 0o7777);
    if uid != own && uid != 0 {
        return Some(format!(
            "it belongs to user {uid}, expected root or user {own}: chown {own} {shown}"
        ));
    }
    let has_own_group = about.gid() == group || about.gid() == 0;
    let is_open = mode & 0o002 != 0 || mode & 0o020 != 0 && !has_own_group;
    is_open.then(|| format!("others may write to it (mode {mode:o}): chmod go-w {shown}"))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;
    use crate::config::Config;
    use crate::named::Named;

    #[test]
    fn file_that_others_may_write_is_refused_with_the_command_to_mend_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("t.toml");
        std::fs::write(&file, "dry_run = true\n").unwrap();
        let with = |mode| {
            set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            Config::load(&file).map_err(|error| error.to_string())
        };
        for mode in [0o600, 0o644, 0o660] {
            assert!(with(mode).is_ok(), "{mode:o}");
        }
        let shown = file.display();
        for mode in [0o646, 0o666, 0o602] {
            assert_eq!(
                with(mode).unwrap_err(),
                format!(
                    "cannot read {shown}: others may write to it (mode {mode:o}): chmod go-w {shown}"
                )
            );
        }
        let table = Named::read(Some(&file)).unwrap_err().to_string();
        assert!(table.contains("chmod go-w"), "{table}");
        if geteuid().is_root() {
            chown(&file, None, Some(4711)).unwrap();
            assert!(with(0o664).unwrap_err().contains("chmod go-w"));
            assert!(with(0o644).is_ok());
            chown(&file, Some(4711), None).unwrap();
            let told = with(0o644).unwrap_err();
            assert!(
                told.contains("belongs to user 4711, expected root"),
                "{told}"
            );
        }
    }
}
