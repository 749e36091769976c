//! Rules of the policy.

use ratatui::style::Style;
use thalweg_control::inventory::Inventory;
use thalweg_control::policy::{Report, RuleReport};
use thalweg_terminal::output;

use crate::commands::top::figures::{count_text, per_second};
use crate::commands::top::scene::{Body, Scene, style_if};
use crate::commands::top::seen::Observed;
use crate::commands::top::table::{Cell, Column, Table};

/// The columns.
pub const HELP: [&str; 4] = [
    "Flows: connections that got the rule; /s: those of now.",
    "Set, Failed: settings that the kernel took, and did not take.",
    "  `thalweg policy show` names the failures.",
    "The filter looks at names of rules.",
];

type Reported = Observed<Option<Inventory>>;

pub fn rules_body(scene: &Scene) -> Body {
    let Some(seen) = &scene.known.kernel else {
        return scene.waiting_body();
    };
    let Some(kernel) = &seen.now else {
        return Body::text_only(super::health::NOT_REPORTED, scene.width);
    };
    let mut body = Body::default();
    for fault in &kernel.unreadable {
        body.add_text(
            &format!("! {fault}"),
            scene.paint.error_style(),
            scene.width,
        );
    }
    match &kernel.policy {
        None => body.add_text("No policy is in force.", Style::default(), scene.width),
        Some(policy) => add_rules(scene, seen, policy, &mut body),
    }
    body
}

fn add_rules(scene: &Scene, seen: &Reported, policy: &Report, body: &mut Body) {
    let dry_run = if policy.dry_run {
        ", dry run: nothing is set"
    } else {
        ""
    };
    let applied = output::time_text(policy.applied_ms);
    let since = applied.split('.').next().unwrap_or_default();
    let text = format!(
        "Policy {}, number {}, since {since} UTC{dry_run}",
        policy.name, policy.number
    );
    body.add_text(&text, Style::default(), scene.width);
    let shown = |(_, rule): &(usize, &RuleReport)| scene.choice.passes_filter(&[&rule.name]);
    let rows: Vec<Vec<Cell>> = policy
        .rules
        .iter()
        .enumerate()
        .filter(shown)
        .map(|(index, rule)| {
            // Of the same policy: a number counts up with each.
            let matched = |kernel: &Option<Inventory>| {
                let then = kernel.as_ref()?.policy.as_ref()?;
                let rule = then
                    .rules
                    .get(index)
                    .filter(|_| then.number == policy.number)?;
                Some(rule.matched)
            };
            let failed = style_if(rule.failed > 0, scene.paint.error_style());
            vec![
                rule.name.clone().into(),
                if rule.never { "never" } else { "" }.into(),
                count_text(rule.matched).into(),
                per_second(seen.per_second(matched)).into(),
                count_text(rule.done).into(),
                Cell::with_style(&count_text(rule.failed), failed),
            ]
        })
        .collect();
    if rows.is_empty() {
        body.lines.extend(scene.nothing_passes("rule").fixed);
        return;
    }
    let columns = vec![
        Column::text("Rule", 20, 0),
        Column::text("", 5, 2),
        Column::number("Flows", 7, 0),
        Column::number("/s", 6, 0),
        Column::number("Set", 7, 1),
        Column::number("Failed", 7, 0),
    ];
    body.add_table(&Table { columns, rows }, scene.width);
}
