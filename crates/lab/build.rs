//! Compiles the programs for loss, round-trip times and timers, and generates their skeletons, and the
//! libraries that are preloaded into user-mode kernels and QEMU.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut arguments = vec!["-Wall".to_owned(), "-Werror".to_owned()];
    // Debian and Ubuntu keep <asm/types.h> in a directory named after the
    // machine, which clang does not search when its target is BPF.
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the architecture");
    let multiarch = format!("/usr/include/{architecture}-linux-gnu");
    if Path::new(&multiarch).is_dir() {
        arguments.push(format!("-I{multiarch}"));
    }
    for name in ["loss", "rtt", "timer"] {
        let source = format!("../../bpf/{name}.bpf.c");
        println!("cargo:rerun-if-changed={source}");
        SkeletonBuilder::new()
            .source(&source)
            .clang_args(&arguments)
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| panic!("{source} does not build: {error:#}"));
    }
    // User-mode kernels are for x86 alone, and so are those that run in QEMU.
    if architecture == "x86_64" {
        build_library("src/uml/ptrace.c", &out.join("ptrace.so"));
        build_library("src/qemu/lockstep.c", &out.join("lockstep.so"));
        build_library("src/stack/idle.c", &out.join("idle.so"));
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
