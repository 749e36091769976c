//! `thalweg policy check`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use thalweg_policy::{Faults, Policy, WarningKind};

use super::count;
use crate::failure::Failure;
use crate::options::Global;
use crate::output;

/// Which files.
#[derive(Debug, Args)]
pub struct Options {
    /// Policy files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Exit code 1 if there are warnings, too.
    #[arg(long)]
    deny_warnings: bool,
}

/// What was found in one file.
#[derive(Serialize)]
struct Report {
    file: String,
    /// Empty where the file cannot be parsed.
    policy: String,
    rules: usize,
    settings: usize,
    faults: Vec<Fault>,
    warnings: Vec<Warning>,
}

#[derive(Serialize)]
struct Fault {
    line: usize,
    column: usize,
    key: Option<String>,
    found: String,
    expected: String,
}

#[derive(Serialize)]
struct Warning {
    line: usize,
    column: usize,
    rule: String,
    kind: WarningKind,
    message: String,
}

/// Checks all files before it says how it went.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let mut reports = Vec::new();
    for file in &options.files {
        let report = check(file, &super::read(file)?);
        if !global.json {
            output::print(&text(&report))?;
        }
        reports.push(report);
    }
    if global.json {
        output::print_json(&reports)?;
    }
    let faults: usize = reports.iter().map(|report| report.faults.len()).sum();
    let warnings: usize = reports.iter().map(|report| report.warnings.len()).sum();
    if faults > 0 {
        return Err(Failure::Policy(format!("found {}", count(faults, "fault"))).into());
    }
    if options.deny_warnings && warnings > 0 {
        let message = format!(
            "found {}, which --deny-warnings forbids",
            count(warnings, "warning")
        );
        return Err(Failure::Policy(message).into());
    }
    Ok(())
}

fn check(file: &Path, bytes: &[u8]) -> Report {
    let mut report = Report {
        file: file.display().to_string(),
        policy: String::new(),
        rules: 0,
        settings: 0,
        faults: Vec::new(),
        warnings: Vec::new(),
    };
    let policy = match Policy::parse(bytes, file) {
        Ok(policy) => policy,
        Err(faults) => {
            report.faults = list(faults);
            return report;
        }
    };
    report.policy.clone_from(&policy.name);
    report.rules = policy.rules.len();
    report.settings = policy.rules.iter().map(|rule| rule.actions.len()).sum();
    if let Err(faults) = policy.compile() {
        report.faults = list(faults);
    }
    let warnings = policy.warnings().into_iter().map(|warning| Warning {
        line: warning.at.line,
        column: warning.at.column,
        rule: warning.rule,
        kind: warning.kind,
        message: warning.message,
    });
    report.warnings = warnings.collect();
    report
}

fn list(faults: Faults) -> Vec<Fault> {
    let faults = faults.0.into_iter().map(|fault| Fault {
        line: fault.at.line,
        column: fault.at.column,
        key: fault.key,
        found: fault.found,
        expected: fault.expected,
    });
    faults.collect()
}

fn text(report: &Report) -> String {
    let file = &report.file;
    let mut text = String::new();
    for fault in &report.faults {
        let key = fault.key.as_ref().map(|key| format!("{key}: "));
        text.push_str(&format!(
            "{file}:{}:{}: error: {}found {}, expected {}\n",
            fault.line,
            fault.column,
            key.unwrap_or_default(),
            fault.found,
            fault.expected
        ));
    }
    for warning in &report.warnings {
        text.push_str(&format!(
            "{file}:{}:{}: warning: rule {:?}: {}\n",
            warning.line, warning.column, warning.rule, warning.message
        ));
    }
    let found = match (report.faults.len(), report.warnings.len()) {
        (0, 0) => "good".to_owned(),
        (0, warnings) => count(warnings, "warning"),
        (faults, 0) => count(faults, "fault"),
        (faults, warnings) => {
            format!("{}, {}", count(faults, "fault"), count(warnings, "warning"))
        }
    };
    let size = format!(
        "{}, {}; ",
        count(report.rules, "rule"),
        count(report.settings, "setting")
    );
    let size = if report.policy.is_empty() { "" } else { &size };
    text.push_str(&format!("{file}: {size}{found}\n"));
    text
}
