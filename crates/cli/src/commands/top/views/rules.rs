//! Rules of the policy, and limits of cgroups.

use ratatui::style::Style;
use thalweg_control::inventory::Inventory;
use thalweg_control::limit::Limit;
use thalweg_control::policy::{Report, RuleReport};
use thalweg_units::figures::{rate, time};

use crate::commands::top::figures::{NONE, count, per_second};
use crate::commands::top::scene::{Body, Scene};
use crate::commands::top::seen::Seen;
use crate::commands::top::table::{Cell, Column, Table};
use crate::output;

/// The columns.
pub const HELP: [&str; 7] = [
    "Flows: connections that got the rule; /s: those of now.",
    "Set, Failed: settings that the kernel took, and did not take.",
    "  `thalweg policy show` names the failures.",
    "Rate: what the cgroup may send; Now: what it sent in the last whole",
    "  second; Queue: how long a packet of it waits.",
    "Marked, Dropped: packets, per second.",
    "The filter looks at names of rules and cgroups.",
];

type Reported = Seen<Option<Inventory>>;

pub fn body(scene: &Scene) -> Body {
    let Some(seen) = &scene.known.kernel else {
        return scene.waiting();
    };
    let Some(kernel) = &seen.now else {
        return Body::told(super::health::NOT_REPORTED, scene.width);
    };
    let mut body = Body::default();
    for fault in &kernel.unreadable {
        body.note(&format!("! {fault}"), scene.paint.bad(), scene.width);
    }
    match &kernel.policy {
        None => body.note("No policy is in force.", Style::default(), scene.width),
        Some(policy) => rules(scene, seen, policy, &mut body),
    }
    body.gap();
    if kernel.limits.is_empty() {
        body.note("No cgroup is limited.", Style::default(), scene.width);
    } else {
        limits(scene, seen, kernel, &mut body);
    }
    body
}

fn rules(scene: &Scene, seen: &Reported, policy: &Report, body: &mut Body) {
    let dry_run = if policy.dry_run {
        ", dry run: nothing is set"
    } else {
        ""
    };
    let applied = output::time(policy.applied_ms);
    let since = applied.split('.').next().unwrap_or_default();
    let text = format!(
        "Policy {}, number {}, since {since} UTC{dry_run}",
        policy.name, policy.number
    );
    body.note(&text, Style::default(), scene.width);
    let shown = |(_, rule): &(usize, &RuleReport)| scene.choice.passes(&[&rule.name]);
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
            let failed = if rule.failed > 0 {
                scene.paint.bad()
            } else {
                Style::default()
            };
            vec![
                rule.name.clone().into(),
                if rule.never { "never" } else { "" }.into(),
                count(rule.matched).into(),
                per_second(seen.per_second(matched)).into(),
                count(rule.done).into(),
                Cell::styled(&count(rule.failed), failed),
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
    body.table(&Table { columns, rows }, scene.width);
}

fn limits(scene: &Scene, seen: &Reported, kernel: &Inventory, body: &mut Body) {
    let name = |limit: &Limit| match &limit.cgroup {
        Some(cgroup) => {
            let cgroup = cgroup.display().to_string();
            cgroup.trim_start_matches("/sys/fs/cgroup/").to_owned()
        }
        None => format!("removed ({})", limit.cgroup_id),
    };
    let shown = |limit: &&Limit| scene.choice.passes(&[&name(limit)]);
    let rows: Vec<Vec<Cell>> = kernel
        .limits
        .iter()
        .filter(shown)
        .map(|limit| {
            let grown = |counter: fn(&Limit) -> u64| {
                let of = |kernel: &Option<Inventory>| {
                    let limits = &kernel.as_ref()?.limits;
                    let same = limits.iter().find(|one| one.cgroup_id == limit.cgroup_id)?;
                    Some(counter(same))
                };
                per_second(seen.per_second(of))
            };
            let queue = match limit.queue_us {
                0 => NONE.to_owned(),
                us => time(us as f64),
            };
            vec![
                name(limit).into(),
                rate(limit.present_rate_bps as f64).into(),
                rate(limit.measured_bps as f64).into(),
                queue.into(),
                grown(|limit| limit.packets).into(),
                grown(|limit| limit.marked_packets).into(),
                grown(|limit| limit.dropped_packets).into(),
            ]
        })
        .collect();
    if rows.is_empty() {
        body.lines
            .extend(scene.nothing_passes("limited cgroup").fixed);
        return;
    }
    let columns = vec![
        Column::text("Limited cgroup", 14, 0),
        Column::number("Rate", 11, 0),
        Column::number("Now", 11, 0),
        Column::number("Queue", 7, 1),
        Column::number("Packets/s", 9, 4),
        Column::number("Marked/s", 8, 2),
        Column::number("Dropped/s", 9, 3),
    ];
    body.table(&Table { columns, rows }, scene.width);
}
