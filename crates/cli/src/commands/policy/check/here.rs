//! Objects that a policy names and this machine lacks.

use std::path::Path;

use anyhow::Result;
use thalweg_control::system;
use thalweg_policy::{Policy, Position, Rule, Value};

use thalweg_terminal::output::Fault;

/// Cgroups that do not exist, and congestion controls that the kernel does not offer. None for a
/// policy with faults.
///
/// # Errors
/// This machine cannot be inspected.
pub fn lacking_here(bytes: &[u8], file: &Path) -> Result<Vec<Fault>> {
    let Ok(policy) = Policy::parse(bytes, file) else {
        return Ok(Vec::new());
    };
    let offered = system::available_ccs()?;
    let cgroups = system::cgroup2_mount()?;
    let mut faults = Vec::new();
    for rule in &policy.rules {
        for cgroup in &rule.conditions.cgroup {
            if !cgroups.join(cgroup.trim_start_matches('/')).is_dir() {
                let found = format!("{cgroup:?}, which does not exist here");
                let expected = format!("a cgroup below {}", cgroups.display());
                faults.push(new_fault(rule, rule.at, "match.cgroup", found, expected));
            }
        }
        for action in &rule.actions {
            let names = match &action.value {
                Value::Text(name) if action.key.name == "congestion" => std::slice::from_ref(name),
                Value::Names(names) => names,
                _ => continue,
            };
            for name in names.iter().filter(|name| !offered.contains(name)) {
                let found = format!("{name:?}, which this machine does not offer");
                let expected = format!("one of {}", offered.join(", "));
                faults.push(new_fault(rule, action.at, action.key.name, found, expected));
            }
        }
    }
    Ok(faults)
}

fn new_fault(rule: &Rule, at: Position, key: &str, found: String, expected: String) -> Fault {
    Fault {
        line: at.line,
        column: at.column,
        key: Some(format!("rule {:?}: {key}", rule.name)),
        found,
        expected,
    }
}
