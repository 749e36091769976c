//! Names that contain the id of the process that made the object. A later process thus finds the
//! objects of one that was killed.

use std::fs;
use std::path::Path;

/// Prefix of all such names; the process's id and a serial number follow.
pub const PREFIX: &str = "thalweg-lab-";

/// The entries of a directory whose process no longer exists.
pub fn orphaned_entries(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| owner_pid(name).is_some_and(|pid| !is_alive(pid)))
        .collect()
}

/// The process id in a name such as "thalweg-lab-123-0-baseline-client".
fn owner_pid(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok()
}

/// Whether a process with this id exists.
fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_their_process() {
        assert_eq!(owner_pid("thalweg-lab-123-0-baseline-client"), Some(123));
        assert_eq!(owner_pid("thalweg-lab-7-run"), Some(7));
        for name in [
            "thalweg-lab.lock",
            "thalweg-lab-",
            "thalweg-lab-x-0",
            "other-1-0",
        ] {
            assert_eq!(owner_pid(name), None, "{name}");
        }
    }
}
