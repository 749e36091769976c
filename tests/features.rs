//! Each feature of the agent can be taken out: its folder, and its word in the list.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The list of features.
const LIST: &str = "crates/agent/src/features.rs";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Copies the tracked files of the repository.
fn copy_repository() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let copied = Command::new("sh")
        .args([
            "-c",
            "git ls-files -z | xargs -0 cp --parents -t \"$1\"",
            "sh",
        ])
        .arg(directory.path())
        .current_dir(root())
        .status();
    assert!(copied.expect("a shell").success());
    directory
}

/// Names of the features: the lines of the list within `features! { … }`.
fn feature_names() -> Vec<String> {
    let list = fs::read_to_string(root().join(LIST)).expect("the list");
    let body = list.rsplit_once("features! {").expect("a list").1;
    let body = body.split('}').next().expect("its end");
    let names = body.split(',').map(str::trim).filter(|it| !it.is_empty());
    names.map(str::to_owned).collect()
}

/// Sections of the sample configuration that a copy has no more.
fn sections_lost(copy: &Path) -> Vec<String> {
    let sections = |root: &Path| -> Vec<String> {
        let sample = fs::read_to_string(root.join("packaging/thalweg.toml"));
        let lines = sample.expect("the sample");
        let lines = lines.lines().filter(|line| line.starts_with('['));
        lines.map(str::to_owned).collect()
    };
    let left = sections(copy);
    let mut lost = sections(&root());
    lost.retain(|section| !left.contains(section));
    lost
}

fn remove_from_page(copy: &Path, section: &str) {
    let page = copy.join("docs/reference/configuration.md");
    let text = fs::read_to_string(&page).expect("the page");
    let (before, rest) = text
        .split_once(&format!("## `{section}`\n"))
        .expect("a heading of the section");
    let after = rest.find("\n## ").map_or("", |at| &rest[at + 1..]);
    fs::write(&page, format!("{before}{after}")).expect("the page");
}

/// Whether the command uses types of a feature, as `thalweg fleet` does; then it is not built
/// without.
fn has_command(name: &str) -> bool {
    let searched = Command::new("grep")
        .args(["-rq", &format!("features::{name}::"), "crates/cli/src"])
        .current_dir(root())
        .status();
    searched.expect("grep").success()
}

fn run_cargo(repository: &Path, arguments: &[&str]) {
    let target = root().join("target/without-feature");
    let ended = Command::new("cargo")
        .args(arguments)
        .args(["--locked", "--quiet"])
        .env("CARGO_TARGET_DIR", target)
        .env("THALWEG_GENERATE", "1")
        .current_dir(repository)
        .status();
    assert!(ended.expect("cargo").success(), "cargo {arguments:?}");
}

#[test]
#[ignore = "builds the agent and the command once for each feature"]
fn agent_without_one_feature_builds_and_passes_its_tests() {
    let names = feature_names();
    assert!(!names.is_empty());
    for name in names {
        let copy = copy_repository();
        let list = copy.path().join(LIST);
        let text = fs::read_to_string(&list).expect("the list");
        let without = text.replace(&format!("    {name},\n"), "");
        assert_ne!(without, text, "{name} has no line of its own");
        fs::write(&list, without).expect("the list");
        let source = list.with_extension("").join(&name);
        fs::remove_file(source.with_extension("rs")).expect("the feature's module");
        fs::remove_dir_all(source).expect("the feature's folder");
        // The sample loses its section, and so does the page.
        let sample = ["test", "--package", "thalweg-agent", "--lib", "sample_has"];
        run_cargo(copy.path(), &sample);
        for section in sections_lost(copy.path()) {
            remove_from_page(copy.path(), &section);
        }
        run_cargo(
            copy.path(),
            &["test", "--package", "thalweg-agent", "--lib"],
        );
        if !has_command(&name) {
            run_cargo(copy.path(), &["test", "--package", "thalweg-cli", "--bins"]);
        }
    }
}
