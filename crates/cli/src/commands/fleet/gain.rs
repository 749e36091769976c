//! `thalweg fleet gain`.

use anyhow::Result;
use clap::Args;
use thalweg_agent::features::fleet::view::{FleetComparison, FleetGain};
use thalweg_terminal::output::{self, count_text, span_text};
use thalweg_units::printable;

use super::ask::FleetSource;
use crate::commands::gain::comparison_table;
use crate::options::Global;

/// Agents, rules or reasons that are named; `--json` has all.
const NAMED: usize = 20;

/// Options of `fleet gain`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    ask: FleetSource,
}

/// Shows what all agents gain together.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let found = options
        .ask
        .ask_fleet(global, "/v1/fleet/gain", |statuses| statuses.gain())?;
    output::show_value(&global.format, &found, || gain_text(&found))
}

fn gain_text(gain: &FleetGain) -> String {
    let mut text = comparison_text(&gain.all);
    for rule in &gain.rules {
        let name = printable(rule.rule.as_deref().unwrap_or_default());
        text += &format!("\nRule {name}. {}", comparison_text(rule));
    }
    if gain.without > 0 {
        let agents = count_text(gain.without, "agent");
        text += &format!("\n{agents} without a control group, or without connections in it.\n");
    }
    if !gain.silent.is_empty() {
        let named = gain.silent.iter();
        let named =
            named.map(|it| format!("{} ({} ago)", printable(&it.agent), span_text(it.age_s)));
        text += &format!(
            "\nCounted, though silent for more than an hour: {}.\n",
            first_and_more(named, gain.silent.len(), ", ")
        );
    }
    if !gain.left_out.is_empty() {
        let named = gain.left_out.iter();
        let named = named.map(|it| format!("  {}: {}", printable(&it.agent), printable(&it.why)));
        text += &format!(
            "\nLeft out:\n{}\n",
            first_and_more(named, gain.left_out.len(), "\n")
        );
    }
    text
}

/// The first ones, and how many more there are.
fn first_and_more(all: impl Iterator<Item = String>, number: usize, between: &str) -> String {
    let mut shown: Vec<String> = all.take(NAMED).collect();
    if number > NAMED {
        shown.push(format!("and {} more", number - NAMED));
    }
    shown.join(between)
}

fn comparison_text(it: &FleetComparison) -> String {
    let mut text = format!("{}\n", it.summary);
    if it.rows.is_empty() {
        return text;
    }
    text += &format!("\n{}", comparison_table(&it.rows, it.rule.is_some()));
    let known: Vec<_> = it.spread.iter().filter(|it| it.known > 0).collect();
    if known.is_empty() {
        text += "\nNo agent has host-hours enough for an interval of its own.\n";
    } else {
        let line = known.iter().map(|it| {
            let share = 100.0 * it.worse_share.unwrap_or_default();
            format!(
                "{} {} better, {} worse ({share:.0} %) of {}",
                it.measure, it.better, it.worse, it.known
            )
        });
        let lines: Vec<String> = line.collect();
        text += &format!(
            "\nAgents by intervals of their own: {}.\n",
            lines.join("; ")
        );
    }
    if !it.hinges_on.is_empty() {
        let named = it.hinges_on.iter().map(|agent| printable(agent));
        text += &format!(
            "Without any one of these agents a verdict would be another: {}.\n",
            first_and_more(named, it.hinges_on.len(), ", ")
        );
    }
    text
}
