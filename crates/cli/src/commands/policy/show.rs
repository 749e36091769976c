//! `thalweg policy show`.

use anyhow::Result;
use thalweg_agent::policy::{Report, RuleReport};

use crate::options::Global;
use crate::output;

/// Shows the policy in force.
pub fn run(global: &Global) -> Result<()> {
    let (place, history) = super::place(global)?;
    let report = Report::read(&place.pin, &history)?;
    if global.json {
        return output::print_json(&report);
    }
    match report {
        None => output::print("no policy is in force\n"),
        Some(report) => output::print(&text(&report)),
    }
}

fn text(report: &Report) -> String {
    let mut text = output::pairs(vec![
        (
            "policy",
            format!("{} (number {})", report.name, report.number),
        ),
        ("file", report.file.clone()),
        ("in force since", output::time(report.applied_ms)),
        (
            "dry run",
            if report.dry_run {
                "yes: nothing is set"
            } else {
                "no"
            }
            .to_owned(),
        ),
        ("memory", output::bytes(report.map_bytes)),
    ]);
    let header = ["Rule", "Flows", "Answers", "Done", "Failed", "What failed"];
    let rows = report.rules.iter().map(row).collect();
    text.push('\n');
    text.push_str(&output::table(&header, &[1, 2, 3, 4], rows));
    text
}

fn row(rule: &RuleReport) -> Vec<String> {
    let failures: Vec<String> = rule
        .failures
        .iter()
        .map(|failure| {
            format!(
                "{} ({}) at {}: {} x {}",
                failure.key, failure.option, failure.stage, failure.count, failure.error
            )
        })
        .collect();
    let never = if rule.never { " (never)" } else { "" };
    vec![
        format!("{}{never}", rule.name),
        rule.matched.to_string(),
        rule.asked.to_string(),
        rule.done.to_string(),
        rule.failed.to_string(),
        failures.join("; "),
    ]
}
