//! Remote hosts: what they carry, and which arm the next connection gets.

use std::cmp::Reverse;
use std::collections::HashSet;

use thalweg_agent::view::{Host, HostArm};

use crate::commands::hosts::matches_prefix;
use crate::commands::top::choice::Sort;
use crate::commands::top::figures::{NONE, age_text, bits_text, count_text, per_second};
use crate::commands::top::scene::{Body, Scene, style_if};
use crate::commands::top::table::{Cell, Column, Table};
use thalweg_terminal::output::percent_text;
use thalweg_units::figures::three_digits;

/// The columns.
pub const HELP: [&str; 11] = [
    "Container: or the number of the network namespace, where there are several.",
    "Conns: connections since the host has been known; /s: those of now.",
    "Arm: what the next connection gets most likely; Next: how likely.",
    "bit/s, ms, Loss: typical rate, round-trip time and share of",
    "  retransmitted segments with that arm; - where it is not measured.",
    "Cost: of that arm in bits: one bit more is half the rate.",
    "  In mode classic: its published cost.",
    "Others: how much more the other arms cost; ! is an arm that gains at",
    "  the expense of others, and is not chosen.",
    "Sort: traffic is most connections, recent is last used, cost is",
    "  the highest cost. `thalweg explain HOST` has the reasons.",
];

/// Columns of the screen from which all have room; below it, other arms matter more.
const WIDE: usize = 100;

pub fn hosts_body(scene: &Scene) -> Body {
    let Some(seen) = &scene.known.hosts else {
        return scene.waiting_body();
    };
    if seen.now.list.is_empty() {
        return Body::text_only(
            "No hosts yet: no connection has been decided on.",
            scene.width,
        );
    }
    let rate = |host: &Host| seen.per_second(|hosts| hosts.connections_of(host));
    let choice = scene.choice;
    let passes = |host: &&Host| {
        let chosen = likeliest_arm(host).map_or("", |arm| arm.arm.as_str());
        let container = host.container.as_deref().unwrap_or_default();
        choice.passes_filter(&[&host.address, chosen, container])
            || matches_prefix(&host.address, &choice.filter)
    };
    let mut hosts: Vec<&Host> = seen.now.list.iter().filter(passes).collect();
    if hosts.is_empty() {
        let among = format!(
            "host among the first {} by {}",
            seen.now.list.len(),
            choice.sort.name()
        );
        return scene.nothing_passes(&among);
    }
    match choice.sort {
        Sort::Traffic => hosts.sort_by_key(|host| (Reverse(host.connections), host.idle_s)),
        Sort::Recent => {
            let per_second = |host: &Host| (rate(host).unwrap_or(0.0) * 1e3) as u64;
            hosts.sort_by_cached_key(|host| (host.idle_s, Reverse(per_second(host))));
        }
        Sort::Cost => hosts.sort_by_key(|host| Reverse(least_cost(host))),
    }
    let mut addresses = HashSet::new();
    let several = !hosts.iter().all(|host| addresses.insert(&host.address));
    let mut table = Table {
        columns: host_columns(),
        rows: hosts
            .iter()
            .map(|host| host_row(scene, host, rate(host)))
            .collect(),
    };
    // The container tells equal addresses apart.
    if !several && hosts.iter().all(|host| host.container.is_none()) {
        table.remove_column("Container");
    }
    if scene.width < WIDE {
        table.remove_column("Next");
        if choice.sort != Sort::Recent {
            table.remove_column("Idle");
        }
    }
    let (header, lines) = table.header_and_rows(scene.width);
    let fixed = vec![header];
    Body { fixed, lines }
}

fn host_columns() -> Vec<Column> {
    vec![
        Column::text("Host", 15, 0),
        Column::text("Container", 5, 2),
        Column::number("Conns", 5, 0),
        Column::number("/s", 5, 3),
        Column::number("Idle", 4, 1),
        Column::text("Arm", 5, 0),
        Column::number("Next", 6, 8),
        Column::number("bit/s", 5, 5),
        Column::number("ms", 5, 4),
        Column::number("Loss", 5, 6),
        Column::number("Cost", 5, 2),
        Column::text("Others", 9, 7),
    ]
}

fn host_row(scene: &Scene, host: &Host, rate: Option<f64>) -> Vec<Cell> {
    let arm = likeliest_arm(host);
    let container = host.container.clone();
    let container = container.unwrap_or_else(|| host.netns.to_string());
    let measured = |text: &dyn Fn(&HostArm) -> String| match arm {
        Some(arm) if is_measured(arm) => text(arm),
        _ => NONE.to_owned(),
    };
    let is_lossy = arm.is_some_and(|arm| arm.retransmitted >= 0.05);
    let loss = style_if(is_lossy, scene.paint.warning_style());
    vec![
        host.address.clone().into(),
        container.into(),
        count_text(host.connections.into()).into(),
        per_second(rate).into(),
        age_text(host.idle_s).into(),
        arm.map_or(NONE.to_owned(), |arm| arm.arm.clone()).into(),
        arm.map_or(NONE.to_owned(), |arm| percent_text(arm.next_probability))
            .into(),
        measured(&|arm| bits_text(rate_of(arm))).into(),
        measured(&|arm| three_digits(f64::from(arm.srtt_us.max(arm.min_rtt_us)) / 1e3)).into(),
        Cell::with_style(&measured(&|arm| percent_text(arm.retransmitted)), loss),
        measured(&|arm| three_digits(arm_cost(arm))).into(),
        other_arms(host, arm).into(),
    ]
}

/// The arm that the next connection gets most likely.
pub(super) fn likeliest_arm(host: &Host) -> Option<&HostArm> {
    let by_share = |a: &&HostArm, b: &&HostArm| a.next_probability.total_cmp(&b.next_probability);
    host.arms.iter().max_by(by_share)
}

pub(super) fn is_measured(arm: &HostArm) -> bool {
    arm.evidence > 0.0 || arm.metric > 0
}

/// Bits (thalweg), or the published cost (classic).
pub(super) fn arm_cost(arm: &HostArm) -> f64 {
    arm.metric as f64 / 1e6
}

/// Bytes per second: typical (thalweg) or highest (classic, which keeps bytes per µs).
fn rate_of(arm: &HostArm) -> f64 {
    match arm.evidence > 0.0 {
        true => arm.rate_bytes_per_s,
        false => arm.max_rate as f64 * 1e6,
    }
}

/// The agent's order: cost of the best arm, unmeasured hosts last.
fn least_cost(host: &Host) -> Option<u64> {
    let best = host.best.as_ref()?;
    let arm = host.arms.iter().find(|arm| arm.arm == *best)?;
    Some(arm.metric)
}

/// The further arms, the cheapest first, with what they cost more.
fn other_arms(host: &Host, chosen: Option<&HostArm>) -> String {
    let Some(chosen) = chosen else {
        return String::new();
    };
    let mut others: Vec<&HostArm> = host
        .arms
        .iter()
        .filter(|arm| arm.arm != chosen.arm && is_measured(arm))
        .collect();
    others.sort_by_key(|arm| arm.metric);
    let text = others.iter().map(|arm| {
        let harmful = if arm.harmful { "!" } else { "" };
        match is_measured(chosen) {
            true => format!(
                "{}{harmful}{:+.1}",
                arm.arm,
                arm_cost(arm) - arm_cost(chosen)
            ),
            false => format!("{}{harmful} {}", arm.arm, three_digits(arm_cost(arm))),
        }
    });
    text.collect::<Vec<_>>().join(" ")
}
