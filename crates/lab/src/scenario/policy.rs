//! The `[[policy]]` tables: policies that a mode may run under.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thalweg_policy::{Policy, Value};
use thalweg_units::file::{MAX_FILE_BYTES, read};
use thalweg_units::one_line;
use toml::Spanned;

use super::{Fault, ScenarioError};
use crate::mode::{Mode, is_policy_name};

/// A policy file and what a scenario calls it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyFile {
    /// Mode `policy:NAME` runs under it.
    pub name: String,
    /// Where it is.
    #[serde(skip)]
    pub file: PathBuf,
    /// What it says.
    pub text: String,
    /// The congestion controls that its rules set, each once.
    #[serde(skip)]
    pub congestion_controls: Vec<String>,
}

/// One table as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    name: Spanned<String>,
    file: Spanned<PathBuf>,
}

/// A fault in the scenario, or in a policy that it names.
pub(super) enum PolicyFault {
    Here(Fault),
    There(ScenarioError),
}

/// Reads and checks the policies, as `thalweg policy check` does; relative names begin at
/// the folder.
pub(super) fn load(tables: Vec<Table>, folder: &Path) -> Result<Vec<PolicyFile>, PolicyFault> {
    let mut policies: Vec<PolicyFile> = Vec::new();
    for Table { name, file } in tables {
        let here = |span, message| Err(PolicyFault::Here((span, message)));
        if !is_policy_name(name.get_ref()) {
            let message = format!(
                "expected a name of 1 to 32 letters, digits, '-' or '_', found {:?}",
                name.get_ref()
            );
            return here(name.span(), message);
        }
        if policies.iter().any(|other| other.name == *name.get_ref()) {
            let message = format!("expected each name once, found {:?} again", name.get_ref());
            return here(name.span(), message);
        }
        let path = folder.join(file.get_ref());
        let bytes = match read(&path, MAX_FILE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) => return here(file.span(), one_line(&error.to_string())),
        };
        let parsed = check(&bytes, &path)?;
        if let Some(rule) = parsed.rules.iter().find(|rule| {
            let learned = |action: &thalweg_policy::Action| action.key.name == "learn_from";
            rule.actions.iter().any(learned)
        }) {
            let message = format!(
                "rule {:?} of {} sets learn_from, but no agent runs beside a policy here",
                rule.name,
                path.display()
            );
            return here(file.span(), message);
        }
        policies.push(PolicyFile {
            name: name.into_inner(),
            congestion_controls: congestion_controls(&parsed),
            // The parser has found it to be UTF-8.
            text: String::from_utf8_lossy(&bytes).into_owned(),
            file: path,
        });
    }
    Ok(policies)
}

fn check(bytes: &[u8], file: &Path) -> Result<Policy, PolicyFault> {
    let policy = Policy::parse(bytes, file).and_then(|policy| {
        policy.compile()?;
        Ok(policy)
    });
    policy.map_err(|faults| {
        // Never empty by its contract; the first is told, as for scenarios.
        let fault = faults.0.into_iter().next();
        PolicyFault::There(match fault {
            Some(fault) => ScenarioError {
                file: fault.file,
                line: fault.at.line,
                column: fault.at.column,
                message: match fault.key {
                    Some(key) => {
                        format!("{key}: found {}, expected {}", fault.found, fault.expected)
                    }
                    None => format!("found {}, expected {}", fault.found, fault.expected),
                },
            },
            None => ScenarioError {
                file: file.to_owned(),
                line: 1,
                column: 1,
                message: "expected a policy".to_owned(),
            },
        })
    })
}

/// The congestion controls that a policy's rules set, each once.
pub(crate) fn congestion_controls(policy: &Policy) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for action in policy.rules.iter().flat_map(|rule| &rule.actions) {
        if action.key.name == "congestion"
            && let Value::Text(name) = &action.value
            && !names.contains(name)
        {
            names.push(name.clone());
        }
    }
    names
}

/// Whether the scenario has the policy that a mode in an expectation asks for.
pub(super) fn check_mode(mode: &Spanned<String>, policies: &[PolicyFile]) -> Result<(), Fault> {
    match mode.get_ref().parse() {
        Ok(Mode::Policy(name)) => known(&name, policies).map_err(|why| (mode.span(), why)),
        // What else is wrong with it is said elsewhere.
        _ => Ok(()),
    }
}

/// Whether there is a policy of this name; otherwise which ones there are.
pub(crate) fn known(name: &str, policies: &[PolicyFile]) -> Result<(), String> {
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
