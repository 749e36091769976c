//! What tests of the commands share: two namespaces, a cgroup, the real agent on it, and traffic.
//! Only tests depend on this crate.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

pub mod bed;
pub mod cc;
mod commands;
pub mod containers;
pub mod guest;
pub mod health;
pub mod loaded;
pub mod models;
pub mod place;
pub mod policies;
#[path = "../../../tests/privileged.rs"]
mod privileged;
pub mod stock;
pub mod traffic;
pub mod virtual_time;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

pub use bed::{Bed, plain};
pub use commands::{laboratory, thalweg};
pub use privileged::{skip, skip_unpackaged, tell_skipped};
pub use traffic::{COLLECTOR, CONNECTIONS, Load, SINK, Traffic};

/// The command of some words: the laboratory's if the first is `thalweg-lab`.
pub fn command_of(words: &[&str]) -> Command {
    let (program, words) = match words {
        ["thalweg-lab", words @ ..] => (laboratory(), words),
        words => (thalweg(), words),
    };
    let mut command = Command::new(program);
    command.args(words);
    command
}

/// Copies the command, so that others may start it, by a process of its own; the laboratory's with
/// the agent's beside it. If this process had the file open for writing, a program that another test
/// starts would inherit it. Until that program ends, the file could not be executed.
pub fn copy_of_command(to: &std::path::Path) {
    let (program, beside) = match to.ends_with("thalweg-lab") {
        true => (laboratory(), Some(to.with_file_name("thalweg"))),
        false => (thalweg(), None),
    };
    let mut copies = vec![(program, to.to_owned())];
    copies.extend(beside.map(|place| (thalweg(), place)));
    for (from, to) in copies {
        let copied = Command::new("cp").arg(from).arg(&to).status();
        assert!(copied.unwrap().success(), "{}", to.display());
    }
}

/// Longest wait for an expected event.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Whether the test can run here; if not, it is skipped.
pub fn privileged() -> bool {
    let missing = thalweg_lab::host::missing_requirements();
    if missing.is_empty() {
        return true;
    }
    skip(&missing.join("; "))
}

/// Waits until a condition holds; checks it every few milliseconds, for at most [`PATIENCE`].
pub fn wait_for<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, what, condition)
}

/// As [`wait_for`], with another limit.
pub fn wait_within<T>(
    patience: Duration,
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        let began = Instant::now();
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        // Checks take at most a fifth of a processor.
        std::thread::sleep(Duration::from_millis(10).max(4 * began.elapsed()));
    }
}

/// A name for a congestion control that no other run of the tests uses; `tag` is the test's own.
pub fn unique(tag: &str) -> String {
    let name = format!("{tag}_{}", std::process::id());
    assert!(name.len() <= 15, "{name}");
    name
}

/// A file system of its own for a directory that it creates; unmounted with this value.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a file system of a size such as `1m`.
    pub fn new(directory: &Path, size: &str) -> Self {
        fs::create_dir_all(directory).expect("a directory");
        let disk = Self(directory.to_owned());
        disk.mount(&format!("size={size},mode=0750"));
        disk
    }

    fn mount(&self, options: &str) {
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "thalweg-test"])
            .arg(&self.0)
            .status();
        assert!(done.expect("mount").success());
    }

    /// Fills it.
    pub fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).expect("a file");
        while file.write_all(&[0; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the agent may still have files open on it.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Waits for the end of a process; returns whether kill -9 ended it.
pub fn was_killed(child: &mut Child, what: &str) -> bool {
    use std::os::unix::process::ExitStatusExt;
    let status = end_of(child).unwrap_or_else(|| panic!("{what} is never passed"));
    status.signal() == Some(9)
}

/// Waits for the end of a process, for at most [`PATIENCE`]; then kills it, and returns `None`.
fn end_of(child: &mut Child) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("waiting for a process") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("ending a process");
    child.wait().expect("waiting for a process");
    None
}

/// Path of a source file of the tests' programs.
pub fn source(name: &str) -> PathBuf {
    manifest_path("tests/testbed/programs").join(name)
}

/// Compiles a program to a file in a directory.
pub fn compile(program: &str, directory: &Path, file: &str, flags: &[&str]) -> PathBuf {
    let object = directory.join(file);
    compile_file(&source(&format!("{program}.bpf.c")), &object, flags);
    object
}

/// Compiles a source file to a BPF object.
pub fn compile_file(source: &Path, object: &Path, flags: &[&str]) {
    let multiarch = Command::new("cc")
        .arg("-print-multiarch")
        .output()
        .expect("cc");
    let multiarch = String::from_utf8(multiarch.stdout).expect("text");
    let status = Command::new("clang")
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wno-unused", "-c"])
        .arg(format!("-I/usr/include/{}", multiarch.trim()))
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(object)
        .status()
        .expect("running clang");
    assert!(status.success());
}

/// Number of a pinned map.
pub fn map_id(path: &Path) -> u32 {
    use libbpf_rs::MapCore;
    let map = libbpf_rs::MapHandle::from_pinned_path(path).expect("a pinned map");
    map.info().expect("its description").info.id
}

/// The path of a file of the repository.
pub fn manifest_path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(relative)
}
