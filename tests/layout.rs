//! Which crates may know which, by their manifests.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use toml::Table;

/// What compiles or loads kernel programs.
const KERNEL: [&str; 4] = [
    "bindgen",
    "libbpf-cargo",
    "libbpf-rs",
    "thalweg-bpf-objects",
];
/// Crates that are built without clang, and used where no program can be loaded.
const WITHOUT: [&str; 12] = [
    "bpf-types",
    "guest",
    "learner",
    "link",
    "policy",
    "process",
    "py",
    "rate",
    "report",
    "sim",
    "stack",
    "units",
];

/// What a crate is built from: its dependencies, and theirs where they are ours.
fn built_from(name: &str) -> BTreeSet<String> {
    let manifest = format!("../crates/{name}/Cargo.toml");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest);
    let text = fs::read_to_string(&manifest).expect("each crate has a manifest");
    let manifest: Table = text.parse().expect("cargo reads it, too");
    let mut all = BTreeSet::new();
    for kind in ["dependencies", "build-dependencies"] {
        let Some(dependencies) = manifest.get(kind).and_then(|value| value.as_table()) else {
            continue;
        };
        for dependency in dependencies.keys() {
            if let Some(ours) = dependency.strip_prefix("thalweg-") {
                all.extend(built_from(ours));
            }
            all.insert(dependency.clone());
        }
    }
    all
}

#[test]
fn what_loads_no_program_is_built_without_clang() {
    for name in WITHOUT {
        let all = built_from(name);
        let found: Vec<_> = KERNEL.iter().filter(|it| all.contains(**it)).collect();
        assert!(found.is_empty(), "thalweg-{name} is built from {found:?}");
    }
}

/// Crates, and what each must not be built from.
const APART: [(&str, &[&str]); 4] = [
    (
        "control",
        &["rusqlite", "axum", "thalweg-agent", "thalweg-lab"],
    ),
    (
        "guest",
        &[
            "thalweg-lab",
            "thalweg-link",
            "thalweg-policy",
            "thalweg-report",
            "thalweg-stack",
        ],
    ),
    ("stack", &["thalweg-agent", "thalweg-lab", "thalweg-report"]),
    ("lab", &["thalweg-agent", "thalweg-control", "thalweg-sim"]),
];

#[test]
fn crates_know_nothing_of_what_uses_them() {
    assert!(built_from("control").contains("thalweg-policy"));
    for (name, others) in APART {
        let all = built_from(name);
        let found: Vec<_> = others.iter().filter(|it| all.contains(**it)).collect();
        assert!(found.is_empty(), "thalweg-{name} is built from {found:?}");
    }
}
