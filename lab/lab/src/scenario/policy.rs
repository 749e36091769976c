//! The `[[policy]]` tables: policies that a mode may run under.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thalweg_policy::{Policy, Rule};
use thalweg_units::file::{MAX_FILE_BYTES, read_bytes as read_file};
use thalweg_units::one_line;
use thalweg_units::reader::Table;
use thalweg_units::schema;
use toml::de::DeValue;

use crate::mode::is_policy_name;

/// A policy file and its name in a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyFile {
    /// The NAME of mode `policy:NAME`.
    pub name: String,
    /// The path of the file.
    #[serde(skip)]
    pub file: PathBuf,
    /// The text of the file.
    pub text: String,
    /// The congestion controls that its rules set, each once.
    #[serde(skip)]
    pub congestion_controls: Vec<String>,
}

/// Reads and checks the policies, as `thalweg policy check` does; none if there is a fault. File
/// names are relative to the folder.
pub(super) fn read_policies(tables: Vec<Table<'_>>, folder: &Path) -> Option<Vec<PolicyFile>> {
    let mut all_sound = true;
    let mut policies: Vec<PolicyFile> = Vec::new();
    for mut table in tables {
        let expected = "1 to 32 letters, digits, - or _";
        let form = || schema::of_characters("A-Za-z0-9_-", 32);
        let name = table.required("name", "a name", policy_name, expected, form);
        let file: Option<PathBuf> = table.needed("file");
        table.refuse_unknown_keys();
        let name = name.unwrap_or_default();
        if !name.is_empty() && policies.iter().any(|other| other.name == name) {
            table.wrong("name", format!("{name:?} again"), "each name once");
        }
        let path = folder.join(file.unwrap_or_default());
        if table.has("file") {
            policies.extend(load_policy(&table, name, path));
        }
        all_sound &= table.is_sound();
    }
    all_sound.then_some(policies)
}

fn policy_name(value: &DeValue<'_>) -> Option<String> {
    let name = value.as_str().filter(|name| is_policy_name(name));
    name.map(str::to_owned)
}

/// Reads one policy. Its faults name its own file.
fn load_policy(table: &Table<'_>, name: String, file: PathBuf) -> Option<PolicyFile> {
    let bytes = match read_file(&file, MAX_FILE_BYTES) {
        Ok(bytes) => bytes,
        Err(error) => {
            let found = format!("{:?} ({})", file.display(), one_line(&error.to_string()));
            table.wrong("file", found, "a policy that can be read");
            return None;
        }
    };
    let policy = Policy::parse(&bytes, &file).and_then(|policy| {
        policy.compile()?;
        Ok(policy)
    });
    let policy = policy.map_err(|faults| table.add_faults(faults)).ok()?;
    let learns = |rule: &&Rule| rule.actions.iter().any(|it| it.key.name == "learn_from");
    if let Some(rule) = policy.rules.iter().find(learns) {
        let found = format!("learn_from in rule {:?} of {}", rule.name, file.display());
        let expected = "none of it: no agent runs beside a policy here";
        table.wrong("file", found, expected);
    }
    Some(PolicyFile {
        name,
        congestion_controls: policy.congestion_controls(),
        // The parser has checked that it is UTF-8.
        text: String::from_utf8_lossy(&bytes).into_owned(),
        file,
    })
}

/// Fails if no policy has this name, and names those that exist.
pub(crate) fn check_policy_name(name: &str, policies: &[PolicyFile]) -> Result<(), String> {
    if policies.iter().any(|policy| policy.name == name) {
        return Ok(());
    }
    let names: Vec<&str> = policies.iter().map(|policy| policy.name.as_str()).collect();
    Err(if names.is_empty() {
        format!("expected a [[policy]] named {name:?}, found none")
    } else {
        format!(
            "expected a [[policy]] named {name:?}, found {}",
            names.join(", ")
        )
    })
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
