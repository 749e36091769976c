//! Tests that cannot run everywhere. As the build script of crates with privileged tests, this
//! file sets `cfg(privileged)` where the build has the privileges; without, such tests are ignored.
//! As a module of tests it skips those that lack something else.

// Build scripts and tests each use one half; build scripts do not know the condition.
#![allow(dead_code, unexpected_cfgs)]

use std::io::Write;

/// CAP_NET_ADMIN and CAP_SYS_ADMIN (linux/capability.h).
const NEEDED: u64 = 1 << 12 | 1 << 21;

/// Tells the compiler whether this process is privileged.
pub fn main() {
    println!("cargo::rustc-check-cfg=cfg(privileged)");
    // One of these changes with the user.
    println!("cargo::rerun-if-env-changed=HOME");
    println!("cargo::rerun-if-env-changed=USER");
    if is_privileged() {
        println!("cargo::rustc-cfg=privileged");
    }
}

fn is_privileged() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits & NEEDED == NEEDED)
}

/// Skips a test because of something missing: false. Where it must run, it fails: with
/// THALWEG_REQUIRE_PRIVILEGED=1, or if the tests were built with privileges and run without.
pub fn skip(why: &str) -> bool {
    assert!(
        std::env::var_os("THALWEG_REQUIRE_PRIVILEGED").is_none(),
        "this test must run here, but: {why}"
    );
    assert!(
        cfg!(not(privileged)) || is_privileged(),
        "built with privileges and run without, it is not ignored: {why}"
    );
    tell_skipped(why);
    false
}

/// As [`skip`], because of a package that Ubuntu does not have: there the test need not run.
pub fn skip_unpackaged(why: &str) -> bool {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    if release.lines().any(|line| line == "ID=debian") {
        return skip(why);
    }
    tell_skipped(why);
    false
}

/// Tells that a test is skipped that need not run on any machine. The harness hides what passed
/// tests print, but not what they write. `scripts/test.sh` counts these lines.
pub fn tell_skipped(why: &str) {
    let thread = std::thread::current();
    let why: Vec<&str> = why.split_whitespace().collect();
    let line = format!(
        "\nskipped: {}: {}\n",
        thread.name().unwrap_or("a test"),
        why.join(" ")
    );
    let _ = std::io::stderr().write_all(line.as_bytes());
}
