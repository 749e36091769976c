//! `thalweg policy check`.

mod here;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use thalweg_policy::{Policy, WarningKind};
use thalweg_terminal::Failure;
use thalweg_terminal::output::{self, Fault, count_text};
use thalweg_units::{Position, excerpt};

use crate::options::Global;

/// Options of `policy check`.
#[derive(Debug, Args)]
pub struct Options {
    /// Policy files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Exit code 1 if there are warnings, too.
    #[arg(long)]
    deny_warnings: bool,
    /// Refuse cgroups and congestion controls that this machine lacks.
    #[arg(long)]
    here: bool,
}

/// Faults and warnings of one file.
#[derive(Default, Serialize)]
struct Report {
    file: String,
    /// Empty if the file cannot be parsed.
    policy: String,
    rules: usize,
    settings: usize,
    faults: Vec<Fault>,
    warnings: Vec<Warning>,
    /// Known trade-offs of settings, which may be intended.
    notes: Vec<Warning>,
}

#[derive(Serialize)]
struct Warning {
    line: usize,
    column: usize,
    rule: String,
    kind: WarningKind,
    message: String,
}

/// Checks all files before it reports a failure.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let mut reports = Vec::new();
    for file in &options.files {
        let bytes = super::read_file(file)?;
        let mut report = check_policy(file, &bytes);
        if options.here && report.faults.is_empty() {
            report.faults = here::lacking_here(&bytes, file)?;
        }
        if !global.format.json {
            output::print(&report_text(&report, &String::from_utf8_lossy(&bytes)))?;
        }
        reports.push(report);
    }
    if global.format.json {
        output::print_json(&reports)?;
    }
    let faults: usize = reports.iter().map(|report| report.faults.len()).sum();
    let warnings: usize = reports.iter().map(|report| report.warnings.len()).sum();
    if faults > 0 {
        return Err(Failure::Faults(format!("found {}", count_text(faults, "fault"))).into());
    }
    if options.deny_warnings && warnings > 0 {
        let message = format!(
            "found {}, which --deny-warnings forbids",
            count_text(warnings, "warning")
        );
        return Err(Failure::Faults(message).into());
    }
    Ok(())
}

fn check_policy(file: &Path, bytes: &[u8]) -> Report {
    let mut report = Report {
        file: file.display().to_string(),
        ..Report::default()
    };
    let policy = match Policy::parse(bytes, file) {
        Ok(policy) => policy,
        Err(faults) => {
            report.faults = output::json_faults(&faults);
            return report;
        }
    };
    report.policy.clone_from(&policy.name);
    report.rules = policy.rules.len();
    report.settings = policy.rules.iter().map(|rule| rule.actions.len()).sum();
    if let Err(faults) = policy.compile() {
        report.faults = output::json_faults(&faults);
    }
    let warnings = policy.warnings_where(super::rto_min_us());
    let warnings = warnings.into_iter().map(|warning| Warning {
        line: warning.at.line,
        column: warning.at.column,
        rule: warning.rule,
        kind: warning.kind,
        message: warning.message,
    });
    (report.notes, report.warnings) =
        warnings.partition(|warning| warning.kind == WarningKind::Trap);
    report
}

fn report_text(report: &Report, source: &str) -> String {
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
        let (line, column) = (fault.line, fault.column);
        text.push_str(&excerpt(source, Position { line, column }));
    }
    let warnings = report.warnings.iter().map(|it| ("warning", it));
    let notes = report.notes.iter().map(|it| ("note", it));
    for (sort, warning) in warnings.chain(notes) {
        text.push_str(&format!(
            "{file}:{}:{}: {sort}: rule {:?}: {}\n",
            warning.line, warning.column, warning.rule, warning.message
        ));
    }
    let found = match (report.faults.len(), report.warnings.len()) {
        (0, 0) => "good".to_owned(),
        (0, warnings) => count_text(warnings, "warning"),
        (faults, 0) => count_text(faults, "fault"),
        (faults, warnings) => {
            format!(
                "{}, {}",
                count_text(faults, "fault"),
                count_text(warnings, "warning")
            )
        }
    };
    let notes = match report.notes.len() {
        0 => String::new(),
        notes => format!(", {}", count_text(notes, "note")),
    };
    let size = format!(
        "{}, {}; ",
        count_text(report.rules, "rule"),
        count_text(report.settings, "setting")
    );
    let size = if report.policy.is_empty() { "" } else { &size };
    text.push_str(&format!("{file}: {size}{found}{notes}\n"));
    text
}
