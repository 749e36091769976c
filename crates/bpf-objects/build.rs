//! Compiles the kernel programs, and generates skeletons of some.

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::ObjectBuilder;

/// Objects without a skeleton: kept as long as the command runs, and pinned.
const OBJECTS: [&str; 13] = [
    "learn",
    "learn_open",
    "learn_clamp",
    "timers",
    "buffers",
    "idle",
    "idle_cubic",
    "policy",
    "policy_mark",
    "policy_existing",
    "htcp",
    "dctcp",
    "rate",
];

fn main() -> Result<()> {
    let bpf = Path::new(&env::var("CARGO_MANIFEST_DIR")?)
        .join("../../bpf")
        .canonicalize()?;
    let include = bpf.join("include");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", bpf.display());

    let version = Command::new("clang").arg("--version").output();
    let version = version.context("cannot run clang (is it installed?)")?;
    let version = String::from_utf8(version.stdout)?;
    let version = version.lines().next().unwrap_or_default();
    println!("cargo:rustc-env=THALWEG_CLANG={version}");

    let mut names = String::new();
    for name in OBJECTS {
        build_object(&bpf, &include, &out, name, &[])?;
        names += &names_of(&out, name)?;
    }
    // One source, two objects: against the UAPI only, and with the kernel's own BTF.
    for name in ["learn_btf", "policy_btf"] {
        build_object(&bpf, &include, &out, name, &["-DTHALWEG_KERNEL_BTF"])?;
    }
    std::fs::write(out.join("names.rs"), names)?;
    for name in ["loss", "rtt", "timer"] {
        let source = bpf.join(format!("{name}.bpf.c"));
        SkeletonBuilder::new()
            .source(&source)
            .clang_args(arguments(&include, &[])?)
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .with_context(|| format!("cannot build {name}.bpf.c (is clang installed?)"))?;
    }
    Ok(())
}

fn build_object(bpf: &Path, include: &Path, out: &Path, name: &str, flags: &[&str]) -> Result<()> {
    let source = format!("{}.bpf.c", name.trim_end_matches("_btf"));
    SkeletonBuilder::new()
        .source(bpf.join(&source))
        .obj(out.join(format!("{name}.bpf.o")))
        .clang_args(arguments(include, flags)?)
        .build()
        .with_context(|| format!("cannot build {name} from {source} (is clang installed?)"))?;
    let object = std::fs::read(out.join(format!("{name}.bpf.o")))?;
    let packed = miniz_oxide::deflate::compress_to_vec_zlib(&object, 9);
    Ok(std::fs::write(out.join(format!("{name}.bpf.z")), packed)?)
}

/// The module of an object: a constant for the name of each map and program.
fn names_of(out: &Path, object: &str) -> Result<String> {
    let open = ObjectBuilder::default().open_file(out.join(format!("{object}.bpf.o")))?;
    let maps = open.maps().map(|map| map.name().to_owned());
    let programs = open.progs().map(|program| program.name().to_owned());
    let mut text = format!("pub mod {object} {{\n");
    for (kind, names) in [
        ("maps", maps.collect::<Vec<_>>()),
        ("programs", programs.collect()),
    ] {
        writeln!(text, "pub mod {kind} {{")?;
        for name in names {
            let name = name.into_string().ok().context("a name is not UTF-8")?;
            let word = name.trim_start_matches('.').replace('.', "_");
            writeln!(text, "pub const {}: &str = {name:?};", word.to_uppercase())?;
        }
        text.push_str("}\n");
    }
    Ok(text + "}\n")
}

/// Compiler arguments of every program.
fn arguments(include: &Path, flags: &[&str]) -> Result<Vec<String>> {
    let mut arguments = vec![
        "-mcpu=v3".to_string(),
        "-Wall".to_string(),
        "-Werror".to_string(),
        format!("-I{}", include.display()),
        format!("-I/usr/include/{}", multiarch()?),
    ];
    arguments.extend(flags.iter().map(ToString::to_string));
    Ok(arguments)
}

/// Debian and Ubuntu keep <asm/types.h> in a directory named after the machine.
fn multiarch() -> Result<String> {
    let output = Command::new("cc")
        .arg("-print-multiarch")
        .output()
        .context("cannot run cc (is gcc installed?)")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}
