//! Egress limits of cgroups, which earlier versions pinned by `thalweg limit`: only their removal.
//!
//! ```text
//! limits/pacing …/dropped …/line …/line_link     shared
//! limits/ID/link_… settings state flows          one limit; ID is its cgroup's
//! ```

use std::path::Path;

use crate::error::Result;
use crate::pins::{self, remove_file, remove_if_empty};

/// The directory, below the agent's.
pub const DIRECTORY: &str = "limits";

/// Removes the limits of earlier versions: links first, then maps. Connections keep the pacing
/// rate that a limit gave them. Returns the names of the removed pins.
///
/// # Errors
/// System errors.
pub fn remove_limits(pin: &Path) -> Result<Vec<String>> {
    let directory = pin.join(DIRECTORY);
    let mut removed = Vec::new();
    for id in pins::numbered_entries::<u64>(&directory)? {
        pins::remove_directory(&directory.join(id.to_string()), "link_")?;
        removed.push(format!("{DIRECTORY}/{id}"));
    }
    for shared in ["line_link", "line", "pacing", "dropped"] {
        let path = directory.join(shared);
        if path.exists() {
            remove_file(&path)?;
            removed.push(format!("{DIRECTORY}/{shared}"));
        }
    }
    remove_if_empty(&directory);
    Ok(removed)
}
