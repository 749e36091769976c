//! Compiles the learner's header functions for this machine and for the kernel, and generates the
//! type of the requests to both.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};
use libbpf_cargo::SkeletonBuilder;

mod privileged;

/// Derives for the types of thalweg_abi.h, which come from the crate thalweg-bpf-types.
#[derive(Debug)]
struct PlainTypes;

impl ParseCallbacks for PlainTypes {
    fn blocklisted_type_implements_trait(
        &self,
        _name: &str,
        derive_trait: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        let derived = matches!(
            derive_trait,
            DeriveTrait::Copy | DeriveTrait::Debug | DeriveTrait::Default
        );
        Some(if derived {
            ImplementsTrait::Yes
        } else {
            ImplementsTrait::No
        })
    }
}

fn main() -> Result<()> {
    privileged::main();
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let source = here.join("src");
    let bpf = here.join("../bpf").canonicalize()?;
    let include = bpf.join("include");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-changed={}", include.display());

    for request in ["request", "network_request"] {
        bindgen::Builder::default()
            .header(source.join(format!("{request}.h")).display().to_string())
            .clang_arg(format!("-I{}", include.display()))
            .clang_arg("-DTHALWEG_TESTS_LAYOUT_ONLY")
            .allowlist_file(format!(".*/{request}\\.h"))
            .blocklist_file(".*thalweg_((policy|network)_)?abi\\.h")
            .parse_callbacks(Box::new(PlainTypes))
            .derive_default(true)
            .prepend_enum_name(false)
            .generate()
            .with_context(|| format!("bindgen failed on {request}.h (is libclang installed?)"))?
            .write_to_file(out.join(format!("{request}.rs")))?;
    }

    cc::Build::new()
        .files([
            source.join("native.c"),
            source.join("network_native.c"),
            source.join("cc.c"),
        ])
        .include(&include)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .try_compile("thalweg_vectors")?;

    // Clang, because it calls the handlers in this file.
    cc::Build::new()
        .compiler("clang")
        .file(source.join("network_checked.c"))
        .include(&include)
        .flag("-fsanitize=undefined")
        .flag("-fsanitize-minimal-runtime")
        .flag("-Wno-unused-command-line-argument")
        .opt_level(1)
        .warnings(true)
        .warnings_into_errors(true)
        .try_compile("thalweg_checked")
        .context("cannot build network_checked.c (is clang installed?)")?;

    // Clang, because it alone has these flags; without optimisation each condition is an edge.
    cc::Build::new()
        .compiler("clang")
        .file(source.join("native_covered.c"))
        .include(&include)
        .flag("-fsanitize-coverage=inline-bool-flag,pc-table")
        .opt_level(0)
        .debug(true)
        .warnings(true)
        .warnings_into_errors(true)
        .try_compile("thalweg_covered")
        .context("cannot build native_covered.c (is clang installed?)")?;

    for program in ["vectors", "network_vectors", "churn"] {
        build_program(&bpf, program, &[&include, &source], &out)?;
    }
    Ok(())
}

fn build_program(bpf: &Path, name: &str, includes: &[&Path], out: &Path) -> Result<()> {
    let source = bpf.join(format!("{name}.bpf.c"));
    println!("cargo:rerun-if-changed={}", source.display());
    let mut arguments = vec![
        "-mcpu=v3".to_string(),
        "-Wall".to_string(),
        "-Werror".to_string(),
        format!("-I/usr/include/{}", multiarch()?),
    ];
    arguments.extend(includes.iter().map(|path| format!("-I{}", path.display())));
    SkeletonBuilder::new()
        .source(&source)
        .obj(out.join(format!("{name}.bpf.o")))
        .clang_args(arguments)
        .build()
        .with_context(|| format!("cannot build {name}.bpf.c (is clang installed?)"))
}

/// Debian and Ubuntu keep <asm/types.h> in a directory named after the machine.
fn multiarch() -> Result<String> {
    let output = Command::new("cc")
        .arg("-print-multiarch")
        .output()
        .context("cannot run cc (is gcc installed?)")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}
