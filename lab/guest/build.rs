//! Compiles the libraries that are preloaded into user-mode kernels and QEMU.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the architecture");
    // User-mode kernels, and those in QEMU, are for x86 only.
    if architecture == "x86_64" {
        build_library("src/uml/ptrace.c", &out.join("ptrace.so"));
        build_library("src/uml/idle.c", &out.join("idle.so"));
        build_library("src/qemu/lockstep.c", &out.join("lockstep.so"));
        println!("cargo:rerun-if-changed=src/uml/xstate.c");
    }
}

fn build_library(source: &str, library: &Path) {
    println!("cargo:rerun-if-changed={source}");
    let status = cc::Build::new()
        .opt_level(2)
        .debug(false)
        .pic(true)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .get_compiler()
        .to_command()
        .args(["-shared", "-s", source, "-o"])
        .arg(library)
        .status()
        .unwrap_or_else(|error| panic!("cannot start the C compiler: {error}"));
    assert!(status.success(), "{source} does not build");
}
