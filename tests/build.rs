//! Compiles the learner's header functions twice, for this machine and for the kernel, and
//! generates the type of the requests that go to both.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};
use libbpf_cargo::SkeletonBuilder;

/// The types of thalweg_abi.h come from the crate thalweg-abi, which derives all that these
/// derive.
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
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let source = here.join("src");
    let bpf = here.join("../bpf").canonicalize()?;
    let include = bpf.join("include");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for path in [&source, &include, &bpf.join("vectors.bpf.c")] {
        println!("cargo:rerun-if-changed={}", path.display());
    }

    bindgen::Builder::default()
        .header(source.join("request.h").display().to_string())
        .clang_arg(format!("-I{}", include.display()))
        .clang_arg("-DTHALWEG_TESTS_LAYOUT_ONLY")
        .allowlist_file(".*request\\.h")
        .blocklist_file(".*thalweg_abi\\.h")
        .parse_callbacks(Box::new(PlainTypes))
        .derive_default(true)
        .prepend_enum_name(false)
        .generate()
        .context("bindgen failed on request.h (is libclang installed?)")?
        .write_to_file(out.join("request.rs"))?;

    cc::Build::new()
        .file(source.join("native.c"))
        .file(source.join("cc.c"))
        .include(&include)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .try_compile("thalweg_vectors")?;

    build_programs(&bpf, &[&include, &source], &out)
}

fn build_programs(bpf: &Path, includes: &[&Path], out: &Path) -> Result<()> {
    let mut arguments = vec![
        "-mcpu=v3".to_string(),
        "-Wall".to_string(),
        "-Werror".to_string(),
        format!("-I/usr/include/{}", multiarch()?),
    ];
    arguments.extend(includes.iter().map(|path| format!("-I{}", path.display())));
    SkeletonBuilder::new()
        .source(bpf.join("vectors.bpf.c"))
        .obj(out.join("vectors.bpf.o"))
        .clang_args(arguments)
        .build()
        .context("cannot build vectors.bpf.c (is clang installed?)")
}

/// Debian and Ubuntu keep <asm/types.h> in a directory named after the machine.
fn multiarch() -> Result<String> {
    let output = Command::new("cc")
        .arg("-print-multiarch")
        .output()
        .context("cannot run cc (is gcc installed?)")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}
