//! Kinds of files, to name the right command for a file of the wrong kind.

use std::path::Path;

use anyhow::{Result, bail};
use thalweg_units::file::{self, MAX_FILE_BYTES};

/// Kinds of files that users write or name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The agent's configuration.
    Configuration,
    /// A policy.
    Policy,
    /// A scenario of the laboratory.
    LabScenario,
    /// A scenario of the simulator.
    SimScenario,
    /// A list of tables of results.
    Tables,
    /// A model of the learned rate controller.
    Model,
}

impl Kind {
    /// The kind in words, and the command that takes it.
    fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Configuration => ("a configuration", "thalweg config check"),
            Self::Policy => ("a policy", "thalweg policy check"),
            Self::LabScenario => ("a scenario of the laboratory", "thalweg-lab run"),
            Self::SimScenario => ("a scenario of the simulator", "thalweg-lab sim run"),
            Self::Tables => ("a list of tables", "python -m thalweg.results --tables"),
            Self::Model => ("a model", "thalweg-lab model show"),
        }
    }
}

/// Root names that only files of one kind have.
const ROOTS: [(Kind, &[&str]); 5] = [
    (
        Kind::Configuration,
        &[
            "mode", "dry_run", "cgroup", "paths", "arms", "learning", "events", "snapshot", "http",
        ],
    ),
    (Kind::Policy, &["rule"]),
    (Kind::LabScenario, &["path", "traffic", "system"]),
    (
        Kind::SimScenario,
        &["topology", "link", "workload", "network"],
    ),
    (Kind::Tables, &["table", "title"]),
];

/// Refuses a file that is certainly of another kind. Unreadable and ambiguous files pass: their
/// faults are found when they are read.
///
/// # Errors
/// The kind of the file, and the command that takes it.
pub fn expect_kind(file: &Path, wanted: Kind) -> Result<()> {
    let Ok(bytes) = file::read_bytes(file, MAX_FILE_BYTES) else {
        return Ok(());
    };
    let (expected, _) = wanted.describe();
    match (kind_of(&bytes), wanted) {
        (Some(found), _) if found != wanted => {
            let (what, command) = found.describe();
            let file = file.display();
            bail!("{file}: found {what}, expected {expected}; `{command} {file}` takes it")
        }
        (None, Kind::Model) if is_text(&bytes) => {
            bail!(
                "{}: found a text, expected {expected}, *.safetensors",
                file.display()
            )
        }
        _ => Ok(()),
    }
}

/// Whether a file is certainly of a kind.
pub fn is_kind(file: &Path, kind: Kind) -> bool {
    let bytes = file::read_bytes(file, MAX_FILE_BYTES);
    bytes.is_ok_and(|bytes| kind_of(&bytes) == Some(kind))
}

fn is_text(bytes: &[u8]) -> bool {
    !bytes.is_empty() && !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok()
}

/// The kind of a file, if only one fits.
fn kind_of(bytes: &[u8]) -> Option<Kind> {
    // The length of a header, which is JSON (safetensors).
    if bytes.get(5..9) == Some(b"\0\0\0{") {
        return Some(Kind::Model);
    }
    let text = std::str::from_utf8(bytes).ok().filter(|_| is_text(bytes))?;
    let names: Vec<&str> = root_names(text).collect();
    let mut fitting = ROOTS
        .iter()
        .filter(|(_, own)| names.iter().any(|name| own.contains(name)))
        .map(|(kind, _)| *kind);
    let first = fitting.next()?;
    fitting.next().is_none().then_some(first)
}

/// Names at the root of TOML: keys before the first table, and tables.
fn root_names(text: &str) -> impl Iterator<Item = &str> {
    let mut is_root = true;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        let rest = if let Some(header) = line.strip_prefix('[') {
            is_root = false;
            header.trim_start_matches('[')
        } else if is_root && line.contains('=') {
            line
        } else {
            return None;
        };
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let name = &rest[..end.unwrap_or(rest.len())];
        (!name.is_empty()).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_this_repository_are_told_apart() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (folder, kind) in [
            ("policies", Kind::Policy),
            ("scenarios/sim", Kind::SimScenario),
            ("scenarios/train", Kind::SimScenario),
            ("scenarios/lab", Kind::LabScenario),
            ("packaging", Kind::Configuration),
            ("models", Kind::Model),
        ] {
            let mut seen = 0;
            for entry in std::fs::read_dir(root.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                let extension = path.extension().unwrap_or_default();
                if extension != "toml" && extension != "safetensors" {
                    continue;
                }
                let found = kind_of(&std::fs::read(&path).unwrap());
                // All keys of a sample are in comments.
                if found.is_some() || folder != "packaging" {
                    assert_eq!(found, Some(kind), "{}", path.display());
                }
                seen += 1;
            }
            assert!(seen > 0, "{folder}");
        }
        let tables = std::fs::read(root.join("scenarios/rate/tables.toml")).unwrap();
        assert_eq!(kind_of(&tables), Some(Kind::Tables));
        assert_eq!(kind_of(b"# Text\n"), None);
        assert_eq!(kind_of(b""), None);
        assert_eq!(kind_of(b"[[rule]]\n[traffic]\n"), None);
    }
}
