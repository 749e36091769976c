//! What `status --check` says of a bed's agent, and what it depends on.

use std::fs;
use std::path::{Path, PathBuf};

use libbpf_rs::Link;

use super::Bed;

/// The line and the exit code of `status --check`.
pub fn checked(bed: &Bed) -> (i32, String) {
    let output = bed.thalweg(&["status", "--check"]);
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().expect("an exit code"), line)
}

/// Something if the agent is well, for [`wait_for`](crate::wait_for).
pub fn is_well(bed: &Bed) -> Option<()> {
    (checked(bed).0 == 0).then_some(())
}

/// Connects in the cgroup, to a server there that ends with it.
pub fn visit(bed: &Bed) {
    let address = bed.server_address();
    let sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    drop(sink);
}

/// Whether a link is attached to a cgroup that exists.
pub fn is_attached(path: &Path) -> bool {
    let link = Link::open(path).ok();
    link.is_some_and(
        |link| matches!(thalweg_control::links::attached_to(&link), Ok(Some(id)) if id != 0),
    )
}

/// A cgroup below the bed's, removed with this value.
pub struct Service(PathBuf);

impl Service {
    /// Makes the cgroup `service`.
    pub fn new(bed: &Bed) -> Self {
        let directory = bed.pair.cgroup_path().join("service");
        fs::create_dir(&directory).unwrap();
        Self(directory)
    }

    /// Gives the name to another cgroup, as a restart of the service does.
    pub fn restart(&self) {
        fs::remove_dir(&self.0).unwrap();
        fs::create_dir(&self.0).unwrap();
    }

    /// Directory of the cgroup.
    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
