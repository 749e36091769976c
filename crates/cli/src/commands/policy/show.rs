//! `thalweg policy show`.

use anyhow::{Result, bail};
use thalweg_control::policy::{self, Report, RuleReport};
use thalweg_terminal::output;
use thalweg_terminal::output::count_text;

use crate::options::Global;

/// Remedy where a policy is not as it was applied.
const REMEDY: &str =
    "an agent that runs puts back what it can within seconds; otherwise apply it again";

/// Shows the policy in force.
pub fn run(global: &Global) -> Result<()> {
    let (place, history) = super::paths_and_history(global, global.readable_or_warn()?)?;
    let faults = policy::find_problems(&place, &history)?;
    let report = match faults.is_empty() {
        true => {
            history.recover(&place)?;
            Report::read_and_scan(&place.pin, &history)?
        }
        // Without its pins there is nothing to show but that.
        false => match Report::read_and_scan(&place.pin, &history) {
            Ok(report) => report.map(|report| Report {
                faults: faults.clone(),
                ..report
            }),
            Err(_) => bail!("{}; {REMEDY}", faults.join("; ")),
        },
    };
    if report.is_none() && !faults.is_empty() {
        eprintln!("warning: {}; {REMEDY}", faults.join("; "));
    }
    output::show_value(&global.format, &report, || match &report {
        None => "no policy is in force\n".to_owned(),
        Some(report) => report_text(report),
    })
}

fn report_text(report: &Report) -> String {
    let mut text = output::pairs_table(vec![
        (
            "policy",
            format!("{} (number {})", report.name, report.number),
        ),
        ("file", report.file.clone()),
        ("in force since", output::time_text(report.applied_ms)),
        (
            "dry run",
            if report.dry_run {
                "yes: nothing is set"
            } else {
                "no"
            }
            .to_owned(),
        ),
        ("memory", output::bytes_text(report.map_bytes)),
    ]);
    for fault in &report.faults {
        text.push_str(&format!("problem: {fault}; {REMEDY}\n"));
    }
    if let Some(unseen) = &report.unseen {
        text.push_str(&format!("note: {unseen}\n"));
    }
    for (missed, what, why) in [
        (
            report.missed.handshakes,
            "handshake",
            "forgotten: too many others were under way",
        ),
        (
            report.missed.statistics,
            "event",
            "of statistics lost: nobody read in time",
        ),
        (
            report.missed.failures,
            "failure",
            "not listed: too many kinds",
        ),
        (
            report.missed.outcomes,
            "outcome",
            "of rules with a share lost: no agent read them",
        ),
    ] {
        if missed > 0 {
            text.push_str(&format!("{} {why}\n", count_text(missed, what)));
        }
    }
    let mut header = vec!["Rule", "Flows", "Answers", "Done", "Failed"];
    let mut numbers = vec![1, 2, 3, 4];
    let existing = report.rules.iter().any(|rule| rule.existing.is_some());
    if existing {
        header.push("Open before");
        numbers.push(5);
    }
    header.push("What failed");
    let rows = report.rules.iter().map(|rule| rule_row(rule, existing));
    text.push('\n');
    text.push_str(&output::table(&header, &numbers, rows.collect()));
    text
}

fn rule_row(rule: &RuleReport, existing: bool) -> Vec<String> {
    let mut row = vec![
        rule_name(rule),
        rule.matched.to_string(),
        rule.asked.to_string(),
        rule.done.to_string(),
        rule.failed.to_string(),
    ];
    if existing {
        let matched = rule
            .existing
            .as_ref()
            .map_or(0, |existing| existing.matched);
        row.push(matched.to_string());
    }
    row.push(failures_text(rule));
    row
}

/// A rule's name, and whether it is a `never` rule, or suspended.
pub(super) fn rule_name(rule: &RuleReport) -> String {
    let never = if rule.never { " (never)" } else { "" };
    let suspended = if rule.suspended { " (suspended)" } else { "" };
    format!("{}{never}{suspended}", rule.name)
}

/// Failed settings of a rule, in one line.
pub(super) fn failures_text(rule: &RuleReport) -> String {
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
    failures.join("; ")
}
