//! Agents in namespaces of their own, as in containers.

use std::fs;
use std::process::{Command, Stdio};

use super::Bed;

/// The bed's agent in a mount namespace of its own, after a line of shell in which `$0` is a directory.
pub fn with_mounts(bed: &Bed, line: &str) -> Command {
    with_own(bed, &["--mount"], line)
}

/// As [`with_mounts`], like a container, whose first process has the same mounts.
pub fn in_container(bed: &Bed, line: &str) -> Command {
    let namespaces = ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];
    with_own(bed, &namespaces, line)
}

/// A command that runs the agent in namespaces of its own, after a line of shell.
fn with_own(bed: &Bed, namespaces: &[&str], line: &str) -> Command {
    let place = bed.directory.path().join("mounts");
    fs::create_dir_all(&place).unwrap();
    let own = bed.run_command();
    let mut command = Command::new("unshare");
    command
        .args(namespaces)
        .args(["sh", "-c", &format!("{line} && exec \"$@\"")])
        .arg(place)
        .arg(own.get_program())
        .args(own.get_args())
        .stdin(Stdio::null());
    command
}
