//! Metrics of the policy in force.

use std::fmt;

use thalweg_control::policy::{Report, RuleReport};

use crate::metrics::page::{Page, Rows};

/// Writes the metrics of the policy in force.
pub fn write_metrics(policy: &Report, page: &mut Page<'_>) -> fmt::Result {
    let dry_run = if policy.dry_run { "true" } else { "false" };
    page.gauges(
        "thalweg_policy_in_force",
        "1 for the policy in force.",
        ["policy", "dry_run"],
        Rows::each([([policy.name.as_str(), dry_run], 1.0)]),
    )?;
    let of = |figure: fn(&RuleReport) -> u64| {
        let rules = policy.rules.iter();
        Rows::sums(rules.map(|rule| ([&rule.name], figure(rule) as f64)))
    };
    for (name, help, rows) in [
        (
            "thalweg_policy_rule_flows",
            "Flows that got the rule, since the policy was applied.",
            of(|rule| rule.matched),
        ),
        (
            "thalweg_policy_rule_answers",
            "Answers that the rule gave to the kernel.",
            of(|rule| rule.asked),
        ),
        (
            "thalweg_policy_rule_operations",
            "Settings of the rule that succeeded.",
            of(|rule| rule.done),
        ),
        (
            "thalweg_policy_rule_failures",
            "Settings of the rule that failed.",
            of(|rule| rule.failed),
        ),
    ] {
        page.counters(name, help, ["rule"], rows)?;
    }
    let missed = [
        ("handshakes", policy.missed.handshakes),
        ("statistics", policy.missed.statistics),
        ("failures", policy.missed.failures),
        ("outcomes", policy.missed.outcomes),
    ];
    page.counters(
        "thalweg_policy_missed",
        "What found a table of the policy full: handshakes, events of statistics, kinds of failures, outcomes of rules with a share.",
        ["what"],
        Rows::sums(missed.map(|(what, count)| ([what], count as f64))),
    )
}
