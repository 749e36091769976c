//! Thalweg's costs in the kernel, counted in virtual time, against benches/instructions.toml.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../../tests/privileged.rs"]
mod privileged;

use std::path::Path;
use std::process::Command;

/// Downloaded if there is no kernel.
const PACKAGE: &str = "linux-image-6.12-cloud-amd64";

#[test]
#[ignore = "slow: some four minutes of a processor"]
fn nothing_costs_more_instructions_than_is_recorded() {
    let bench = Path::new(env!("CARGO_BIN_EXE_thalweg-bench"));
    let thalweg = bench.with_file_name("thalweg");
    assert!(
        thalweg.exists(),
        "no {}: cargo build -p thalweg-cli",
        thalweg.display()
    );
    let kernels = Command::new(bench.with_file_name("thalweg-lab"))
        .args(["kernels", "add", PACKAGE])
        .output()
        .unwrap();
    if !kernels.status.success() {
        let why = String::from_utf8_lossy(&kernels.stderr);
        privileged::skip(&why);
        return;
    }
    let counted = Command::new(bench)
        .arg("--binary")
        .arg(&thalweg)
        .arg("instructions")
        .output()
        .unwrap();
    let told = [counted.stdout, counted.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    println!("{told}");
    assert!(counted.status.success(), "{told}");
}
