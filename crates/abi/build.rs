//! Generates the Rust view of `bpf/include/thalweg_abi.h` and compiles the kernel programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<()> {
    let bpf = Path::new(&env::var("CARGO_MANIFEST_DIR")?)
        .join("../../bpf")
        .canonicalize()?;
    let include = bpf.join("include");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", bpf.display());

    bindgen::Builder::default()
        .header(include.join("thalweg_abi.h").display().to_string())
        .allowlist_file(".*thalweg_((policy|network|rate)_)?abi\\.h")
        .derive_default(true)
        .prepend_enum_name(false)
        .layout_tests(true)
        .generate()
        .context("bindgen failed on thalweg_abi.h (is libclang installed?)")?
        .write_to_file(out.join("raw.rs"))?;

    let version = Command::new("clang").arg("--version").output();
    let version = version.context("cannot run clang (is it installed?)")?;
    let version = String::from_utf8(version.stdout)?;
    let version = version.lines().next().unwrap_or_default();
    println!("cargo:rustc-env=THALWEG_CLANG={version}");

    // One source, two objects: against the UAPI alone, and with the kernel's own BTF.
    build_object(&bpf, &include, &out, "learn", &[])?;
    build_object(&bpf, &include, &out, "learn_btf", &["-DTHALWEG_KERNEL_BTF"])?;
    build_object(&bpf, &include, &out, "policy", &[])?;
    build_object(&bpf, &include, &out, "policy_mark", &[])?;
    build_object(&bpf, &include, &out, "policy_existing", &[])?;
    build_object(&bpf, &include, &out, "limit", &[])?;
    build_object(&bpf, &include, &out, "htcp", &[])?;
    build_object(&bpf, &include, &out, "dctcp", &[])?;
    build_object(&bpf, &include, &out, "rate", &[])
}

fn build_object(bpf: &Path, include: &Path, out: &Path, name: &str, flags: &[&str]) -> Result<()> {
    let mut arguments = vec![
        "-mcpu=v3".to_string(),
        "-Wall".to_string(),
        "-Werror".to_string(),
        format!("-I{}", include.display()),
        format!("-I/usr/include/{}", multiarch()?),
    ];
    let source = format!("{}.bpf.c", name.trim_end_matches("_btf"));
    arguments.extend(flags.iter().map(ToString::to_string));
    SkeletonBuilder::new()
        .source(bpf.join(&source))
        .obj(out.join(format!("{name}.bpf.o")))
        .clang_args(arguments)
        .build()
        .with_context(|| format!("cannot build {name} from {source} (is clang installed?)"))
}

/// Debian and Ubuntu keep <asm/types.h> in a directory named after the machine.
fn multiarch() -> Result<String> {
    let output = Command::new("cc")
        .arg("-print-multiarch")
        .output()
        .context("cannot run cc (is gcc installed?)")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}
