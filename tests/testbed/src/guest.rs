//! A user-mode Linux that runs a script as its first process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Start of a script: a bash, and the file systems that every test needs.
const PROLOGUE: &str = r#"#!/bin/bash
exec 2>&1
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir -p /run/cgroup
mount -t cgroup2 none /run/cgroup
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
"#;

/// Boots a kernel with `words` added to its command line, runs a script in it, and returns the
/// output. The kernel uses the machine's files. For a packaged kernel `ptrace` is wrapped, as in
/// the laboratory.
pub fn boot(kernel: &Path, words: &[&str], script: &str, limit: Duration) -> String {
    let directory = tempfile::tempdir().unwrap();
    let init = directory.path().join("init");
    let epilogue = "\necho END-OF-SCRIPT\nsync\nexec poweroff -f\n";
    fs::write(&init, format!("{PROLOGUE}{script}{epilogue}")).unwrap();
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).unwrap();
    let console = directory.path().join("console");
    let mut command = Command::new(kernel);
    if kernel.ends_with("linux.uml") {
        thalweg_guest::uml::ptrace::wrap_ptrace(&mut command).unwrap();
    }
    let mut child = command
        .args([
            "mem=512M",
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "rw",
            "quiet",
        ])
        .args(["console=tty0", "con=null", "con0=null,fd:1"])
        .args(words)
        .arg(format!("init={}", init.display()))
        .env("TMPDIR", directory.path())
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(fs::File::create(&console).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .expect("starting user-mode Linux");
    let deadline = Instant::now() + limit;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!(
                "no end after {limit:?}; console:\n{}",
                String::from_utf8_lossy(&fs::read(&console).unwrap())
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = String::from_utf8_lossy(&fs::read(&console).unwrap()).replace('\r', "");
    assert!(
        text.contains("END-OF-SCRIPT"),
        "the script did not finish:\n{text}"
    );
    text
}

/// Compiles the library that gives a kernel started with it (`LD_PRELOAD`) a processor with AMX.
pub fn large_state(directory: &Path) -> PathBuf {
    let library = directory.join("large-state.so");
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(super::source("large_state.c"))
        .status()
        .expect("running cc");
    assert!(status.success());
    library
}
