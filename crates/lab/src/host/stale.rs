//! What a laboratory left behind that was killed before it could clean up.

use std::fs;
use std::path::Path;

use super::{PREFIX, cgroup, netns, preflight, tool};
use crate::rundir;

/// Removes namespaces, cgroups and run directories whose process is gone. What
/// cannot be removed is reported and left.
pub(crate) fn remove() {
    for name in orphans(Path::new(netns::DIRECTORY)) {
        tracing::info!("removing the namespace {name} of a laboratory that is gone");
        if let Err(error) = tool::run("ip", &format!("netns delete {name}")) {
            tracing::warn!("{error}");
        }
    }
    if let Ok(mount) = cgroup::mount() {
        for name in orphans(&mount) {
            cgroup::remove(&mount.join(name));
        }
    }
    let parent = Path::new(rundir::PARENT);
    for name in orphans(parent) {
        rundir::remove(&parent.join(name));
    }
}

/// The entries of a directory that bear the name of a process that is gone.
pub(crate) fn orphans(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| owner(name).is_some_and(|pid| !preflight::is_alive(pid)))
        .collect()
}

/// The process id in a name such as "thalweg-lab-123-0-baseline-client".
fn owner(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_their_process() {
        assert_eq!(owner("thalweg-lab-123-0-baseline-client"), Some(123));
        assert_eq!(owner("thalweg-lab-7-run"), Some(7));
        for name in [
            "thalweg-lab.lock",
            "thalweg-lab-",
            "thalweg-lab-x-0",
            "other-1-0",
        ] {
            assert_eq!(owner(name), None, "{name}");
        }
    }
}
