//! Compiles the loss program and generates its skeleton.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "../../bpf/loss.bpf.c";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo:rerun-if-changed={SOURCE}");
    let mut arguments = vec!["-Wall".to_owned(), "-Werror".to_owned()];
    // Debian and Ubuntu keep <asm/types.h> in a directory named after the
    // machine, which clang does not search when its target is BPF.
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the architecture");
    let multiarch = format!("/usr/include/{architecture}-linux-gnu");
    if Path::new(&multiarch).is_dir() {
        arguments.push(format!("-I{multiarch}"));
    }
    SkeletonBuilder::new()
        .source(SOURCE)
        .clang_args(arguments)
        .build_and_generate(out.join("loss.skel.rs"))
        .unwrap_or_else(|error| panic!("{SOURCE} does not build: {error:#}"));
}
