//! docs/reference/kernels.md against its kernels.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../../tests/privileged.rs"]
mod privileged;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// The kernels of the page, the older first.
const PACKAGES: [&str; 2] = ["linux-image-cloud-amd64", "linux-image-6.12-cloud-amd64"];

fn thalweg() -> PathBuf {
    let bench = Path::new(env!("CARGO_BIN_EXE_thalweg-bench"));
    let thalweg = bench.with_file_name("thalweg");
    assert!(
        thalweg.exists(),
        "no {}: cargo build -p thalweg-cli",
        thalweg.display()
    );
    thalweg
}

/// `thalweg-bench kernels ARGUMENTS`.
fn kernels(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg-bench"));
    command.arg("--binary").arg(thalweg()).arg("kernels");
    command.args(arguments).env_remove("RUST_BACKTRACE");
    command
}

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// Adds a package; returns its release. None if it is not available, which is a failure on Debian
/// as root.
fn release_of(package: &str) -> Option<String> {
    let added = Command::new(thalweg().with_file_name("thalweg-lab"))
        .args(["--json", "kernels", "add", package])
        .output()
        .unwrap();
    if !added.status.success() {
        let why = said(&added);
        privileged::skip(&why);
        return None;
    }
    let added: serde_json::Value = serde_json::from_slice(&added.stdout).unwrap();
    let name = added["name"].as_str();
    Some(name.unwrap_or_else(|| panic!("{added}")).to_owned())
}

#[test]
fn the_oldest_kernel_is_as_the_page_says() {
    let Some(release) = release_of(PACKAGES[0]) else {
        return;
    };
    // The features closest to the verifier's limits, and those that no other test runs on this
    // kernel.
    let tried = kernels(&["--kernel", &release])
        .args(["--feature", "learning by busy time"])
        .args(["--feature", "policies: open connections"])
        .output()
        .unwrap();
    assert!(tried.status.success(), "{}", said(&tried));
    println!("{}", said(&tried));
}

#[test]
#[ignore = "slow: everything on two kernels in QEMU and on this one, three minutes"]
fn the_page_holds() {
    if !PACKAGES.iter().all(|package| release_of(package).is_some()) {
        return;
    }
    let tried = kernels(&[]).output().unwrap();
    assert!(tried.status.success(), "{}", said(&tried));
    println!("{}", said(&tried));
}

#[test]
fn bad_input_is_refused_in_a_line() {
    let nowhere = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], expected: &str| {
        let output = kernels(arguments)
            .env("XDG_CACHE_HOME", nowhere.path())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        // One line, after the laboratory's line that it cannot run.
        let lines = error.lines().filter(|line| !line.ends_with(':'));
        assert_eq!(lines.count(), 1, "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    };
    refused(&[], "thalweg-lab kernels add linux-image-cloud-amd64");
    refused(&["--kernel", "7.0-none"], "no kernel \"7.0-none\"");
    refused(&["--feature", "flying"], "expected one of learning, ");
    refused(
        &["--write", "--feature", "policies"],
        "--write takes no --kernel and no --feature",
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_interrupted_probe_leaves_nothing() {
    if !nix::unistd::geteuid().is_root() {
        privileged::skip("not root");
        return;
    }
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../models/adpg-plus.safetensors"
    );
    let mut probe = Command::new(env!("CARGO_BIN_EXE_thalweg-bench"))
        .arg("--binary")
        .arg(thalweg())
        .args(["probe", model, "policies"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let pid = probe.id();
    let under_way = || {
        let pins = format!("/proc/{pid}/root/sys/fs/bpf/thalweg-bench-{pid}-policy/policy");
        std::fs::read_dir(pins).is_ok_and(|entries| entries.count() > 0)
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !under_way() {
        assert!(Instant::now() < deadline, "no policy");
        assert_eq!(probe.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(10));
    }
    // As Ctrl-C does: to the group.
    let group = Pid::from_raw(pid as i32);
    nix::sys::signal::killpg(group, Signal::SIGINT).unwrap();
    assert!(!probe.wait().unwrap().success());
    let names = |directory: &str| -> Vec<String> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names
            .filter(|name| name.contains(&format!("-{pid}-")))
            .collect()
    };
    for directory in ["/sys/fs/bpf", "/run/netns"] {
        assert_eq!(names(directory), Vec::<String>::new(), "{directory}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn without_qemu_it_says_what_to_install() {
    let Some(release) = release_of(PACKAGES[0]) else {
        return;
    };
    // QEMU is found wherever PATH leads, so another file is mounted over it, in a mount namespace.
    let command = kernels(&["--kernel", &release]);
    let covered = Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg("mount --bind /dev/null \"$(command -v qemu-system-x86_64)\" && exec \"$@\"")
        .arg("sh")
        .arg(command.get_program())
        .args(command.get_args())
        .env_remove("RUST_BACKTRACE")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&covered.stderr);
    if error.contains("Operation not permitted") {
        privileged::skip(&error);
        return;
    }
    assert!(!covered.status.success(), "{error}");
    let expected = "install the package qemu-system-x86";
    assert!(error.contains(expected), "{error}");
}
