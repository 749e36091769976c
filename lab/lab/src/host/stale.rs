//! Removal of what a killed laboratory left behind.

use std::path::Path;

use thalweg_process::owned::orphaned_entries;
use thalweg_process::tool;

use super::{cgroup, netns};
use crate::rundir;

/// Removes namespaces, cgroups and run directories whose process is gone. Failures are reported and
/// left.
pub(crate) fn remove_stale() {
    for name in orphaned_entries(Path::new(netns::DIRECTORY)) {
        tracing::info!("removing the namespace {name} of a laboratory that is gone");
        if let Err(error) = tool::run_tool("ip", &format!("netns delete {name}")) {
            tracing::warn!("{error}");
        }
    }
    if let Ok(mount) = cgroup::mount_point() {
        for name in orphaned_entries(&mount) {
            cgroup::remove_cgroup(&mount.join(name));
        }
    }
    let parent = Path::new(rundir::PARENT);
    for name in orphaned_entries(parent) {
        rundir::remove_run_directory(&parent.join(name));
    }
}
