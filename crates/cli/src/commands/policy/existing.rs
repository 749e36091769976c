//! Open connections in the output of `thalweg policy apply --existing`.

use serde_json::{Value, json};
use thalweg_control::policy::{Report, RuleReport, VisitedConnections};
use thalweg_terminal::output;
use thalweg_terminal::output::count_text;

use super::show;

/// For scripts.
pub fn visited_json(reached: &VisitedConnections, report: Option<&Report>) -> Value {
    let mut value = json!(reached);
    let rules = matched_rules(report).map(|rule| {
        json!({
            "name": rule.name,
            "never": rule.never,
            "existing": rule.existing,
            "failures": rule.failures,
        })
    });
    value["rules"] = rules.collect();
    value
}

/// For people: the rules that open connections got.
pub fn visited_text(reached: &VisitedConnections, report: Option<&Report>) -> String {
    let header = [
        "Rule",
        "Open connections",
        "Changed",
        "Had it",
        "Left",
        "Failed",
        "What failed",
    ];
    let rows: Vec<Vec<String>> = matched_rules(report)
        .filter_map(|rule| {
            let existing = rule.existing.as_ref()?;
            Some(vec![
                show::rule_name(rule),
                existing.matched.to_string(),
                existing.done.to_string(),
                existing.unchanged.to_string(),
                existing.left.to_string(),
                existing.failed.to_string(),
                show::failures_text(rule),
            ])
        })
        .collect();
    let mut text = String::new();
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&output::table(&header, &[1, 2, 3, 4, 5], rows));
    }
    text.push_str(&format!(
        "\n{} in {}: no rule holds for {}, newer than the policy: {}; in other cgroups, not \
         touched: {}\n",
        count_text(reached.open, "open connection"),
        count_text(reached.namespaces, "network namespace"),
        reached.unmatched,
        reached.newer,
        reached.outside
    ));
    text
}

/// Rules that open connections got.
fn matched_rules(report: Option<&Report>) -> impl Iterator<Item = &RuleReport> {
    let rules = report.map_or(&[][..], |report| &report.rules);
    rules.iter().filter(|rule| {
        let existing = rule.existing.as_ref();
        existing.is_some_and(|existing| existing.matched > 0)
    })
}
