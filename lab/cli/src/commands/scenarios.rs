//! Lists of scenario files, for `thalweg-lab list` and `thalweg-lab sim list`.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use thalweg_terminal::kinds::{self, Kind};
use thalweg_terminal::{Format, output};

/// One file.
#[derive(Serialize)]
struct Entry {
    file: PathBuf,
    /// Null if the file is faulty.
    name: Option<String>,
    /// The scenario's description, or the first fault of the file.
    description: String,
}

/// Lists the scenarios of a kind in a directory, by file name; `load` gives name and description.
///
/// # Errors
/// The directory cannot be read.
pub fn list_scenarios<E: Display>(
    format: &Format,
    directory: &Path,
    kind: Kind,
    load: impl Fn(&Path) -> Result<(String, String), E>,
) -> Result<()> {
    let cannot = || format!("cannot read {}", directory.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        if path.extension().is_some_and(|it| it == "toml") && kinds::is_kind(&path, kind) {
            files.push(path);
        }
    }
    files.sort();
    let entries: Vec<Entry> = files
        .into_iter()
        .map(|file| match load(&file) {
            Ok((name, description)) => Entry {
                file,
                name: Some(name),
                description,
            },
            Err(fault) => Entry {
                file,
                name: None,
                description: first_line(&fault.to_string()),
            },
        })
        .collect();
    if format.json {
        return output::print_json(&entries);
    }
    if entries.is_empty() {
        return output::print(&format!("no scenarios in {}\n", directory.display()));
    }
    let rows = entries
        .into_iter()
        .map(|entry| vec![entry.file.display().to_string(), entry.description]);
    output::print(&output::table(&["File", "Scenario"], &[], rows.collect()))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
