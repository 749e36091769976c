//! `thalweg policy`.

mod apply;
mod remove;
mod rollback;
mod show;
mod statistics;

use anyhow::Result;
use clap::Subcommand;
use thalweg_agent::policy::Place;
use thalweg_agent::policy::history::{History, Outcome};
use thalweg_agent::system;

use crate::options::Global;
use crate::output;

/// What to do with a policy.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Put the policy of a file in force, in place of the present one, in one step.
    ///
    /// Connections that are open keep what they were given. It works with and without a
    /// running agent, and outlives both it and, where the agent starts at boot, the machine's
    /// restart.
    Apply(apply::Options),
    /// Show the policy in force: matches, successes and failures of each rule.
    Show,
    /// Put the policy before the present one in force again.
    Rollback,
    /// Take the policy out of the kernel.
    Remove,
    /// Print the statistics of flows whose rules ask for them, as they come.
    Statistics(statistics::Options),
}

/// Does it.
pub fn run(global: &Global, what: &What) -> Result<()> {
    match what {
        What::Apply(options) => apply::run(global, options),
        What::Show => show::run(global),
        What::Rollback => rollback::run(global),
        What::Remove => remove::run(global),
        What::Statistics(options) => statistics::run(global, options),
    }
}

/// Where policies are applied, and where they are remembered.
fn place(global: &Global) -> Result<(Place, History)> {
    let config = global.config()?;
    let cgroup = match config.cgroup {
        Some(path) => path,
        None => system::cgroup2_mount()?,
    };
    let place = Place {
        pin: config.paths.pin,
        cgroup,
    };
    Ok((place, History::at(&config.paths.state)))
}

/// Says what came into force.
fn tell(global: &Global, outcome: &Outcome) -> Result<()> {
    if global.json {
        return output::print_json(&serde_json::json!({
            "policy": outcome.entry,
            "rules": outcome.rules,
            "map_bytes": outcome.applied.map_bytes,
            "notes": outcome.applied.notes,
        }));
    }
    for note in &outcome.applied.notes {
        output::print(&format!("note: {note}\n"))?;
    }
    let dry_run = if outcome.entry.dry_run {
        ", dry run: matches are counted, nothing is set"
    } else {
        ""
    };
    output::print(&format!(
        "policy {} (number {}) is in force: {} rules, {} of tables{dry_run}\n",
        outcome.entry.name,
        outcome.entry.number,
        outcome.rules,
        output::bytes(outcome.applied.map_bytes)
    ))
}
