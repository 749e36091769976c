//! Arms: how often each is chosen, and what it costs.

use thalweg_agent::view::{Arm, Host, HostArm};
use thalweg_terminal::output::percent_text;
use thalweg_units::figures::three_digits;

use super::hosts::{arm_cost, is_measured};
use crate::commands::top::figures::{NONE, count_text};
use crate::commands::top::scene::{Body, Scene, style_if};
use crate::commands::top::table::{Cell, Column, Table};

/// The columns.
pub const HELP: [&str; 8] = [
    "Share, Chosen: decisions for the arm, over the listed hosts.",
    "Best: hosts where it costs least.",
    "Cost: mean over the hosts where it is measured, by measurements;",
    "  in bits: one bit more is half the rate. Arms are tried at different",
    "  hosts, so a host's own costs (view 1) say more.",
    "Loss: share of segments that were retransmissions.",
    "Harm: hosts where it gains at the expense of others, so that it is",
    "  not chosen. Refused: times that the kernel did not take it.",
];

/// Sums of one arm over hosts.
#[derive(Default)]
struct Sum {
    chosen: u64,
    best: u64,
    harmful: u64,
    scored: u64,
    cost: f64,
    loss: f64,
}

impl Sum {
    fn add_arm(&mut self, host: &Host, arm: &HostArm) {
        self.chosen += u64::from(arm.count);
        self.best += u64::from(host.best.as_ref() == Some(&arm.arm));
        self.harmful += u64::from(arm.harmful);
        if is_measured(arm) {
            let scored = f64::from(arm.scored.max(1));
            self.scored += u64::from(arm.scored.max(1));
            self.cost += arm_cost(arm) * scored;
            self.loss += arm.retransmitted * scored;
        }
    }

    fn mean_text(&self, sum: f64, text: impl Fn(f64) -> String) -> String {
        match self.scored {
            0 => NONE.to_owned(),
            scored => text(sum / scored as f64),
        }
    }
}

pub fn arms_body(scene: &Scene) -> Body {
    let Some(seen) = &scene.known.hosts else {
        return scene.waiting_body();
    };
    let hosts = &seen.now.list;
    let arms: Vec<&Arm> = scene
        .known
        .arms
        .iter()
        .filter(|arm| scene.choice.passes_filter(&[&arm.name]))
        .collect();
    if arms.is_empty() && !scene.choice.filter.is_empty() {
        return scene.nothing_passes("arm");
    }
    let mut sums: Vec<(&Arm, Sum)> = arms
        .into_iter()
        .map(|arm| (arm, sum_of_arm(hosts, arm)))
        .collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.chosen));
    let all: u64 = hosts
        .iter()
        .flat_map(|host| &host.arms)
        .map(|arm| u64::from(arm.count))
        .sum();
    let table = Table {
        columns: vec![
            Column::text("Arm", 10, 0),
            Column::text("Available", 9, 1),
            Column::number("Share", 6, 0),
            Column::number("Chosen", 7, 2),
            Column::number("Best", 5, 3),
            Column::number("Cost", 6, 0),
            Column::number("Loss", 6, 4),
            Column::number("Harm", 5, 5),
            Column::number("Refused", 7, 6),
        ],
        rows: sums
            .iter()
            .map(|(arm, sum)| arm_row(scene, arm, sum, all))
            .collect(),
    };
    let known = scene
        .known
        .status
        .as_ref()
        .map_or(0, |status| status.now.hosts);
    let text = format!(
        "Over the first {} hosts by {}; {} are known.",
        hosts.len(),
        scene.choice.sort.name(),
        known.max(hosts.len() as u64)
    );
    let mut body = Body::text_only(&text, scene.width);
    let (header, lines) = table.header_and_rows(scene.width);
    body.fixed.push(header);
    body.lines = lines;
    body
}

fn sum_of_arm(hosts: &[Host], arm: &Arm) -> Sum {
    let mut sum = Sum::default();
    for host in hosts {
        if let Some(own) = host.arms.iter().find(|own| own.arm == arm.name) {
            sum.add_arm(host, own);
        }
    }
    sum
}

fn arm_row(scene: &Scene, arm: &Arm, sum: &Sum, all: u64) -> Vec<Cell> {
    let available = match (&arm.refused, arm.present, arm.system_default) {
        (Some(_), ..) => "refused",
        (None, false, _) => "no",
        (None, true, true) => "default",
        (None, true, false) => "yes",
    };
    let bad = |is_bad: bool| style_if(is_bad, scene.paint.error_style());
    vec![
        arm.name.clone().into(),
        Cell::with_style(available, bad(arm.refused.is_some())),
        percent_text(sum.chosen as f64 / all.max(1) as f64).into(),
        count_text(sum.chosen).into(),
        count_text(sum.best).into(),
        sum.mean_text(sum.cost, three_digits).into(),
        sum.mean_text(sum.loss, percent_text).into(),
        count_text(sum.harmful).into(),
        Cell::with_style(&count_text(arm.refusals), bad(arm.refusals > 0)),
    ]
}
