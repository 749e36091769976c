//! `thalweg fleet status`.

use std::fmt::Write;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use thalweg_agent::features::fleet::view::{FleetAgent, FleetAgents, FleetPlace, FleetTraffic};
use thalweg_terminal::output::{self, count_text, span_text};
use thalweg_units::printable;

use super::ask::FleetSource;
use crate::options::Global;

/// Options of `fleet status`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    ask: FleetSource,
}

/// How the agent stands, and all agents.
#[derive(Serialize)]
struct FleetStatus {
    #[serde(flatten)]
    place: FleetPlace,
    /// All agents; `None`: they cannot be had.
    fleet: Option<FleetAgents>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet_fault: Option<String>,
}

/// Shows how the agent stands, and all agents.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    if let Some(statuses) = options.ask.server_statuses()? {
        let agents = statuses.agents();
        return output::show_value(&global.format, &agents, || agents_text(&agents));
    }
    let client = global.agent_client()?;
    let found: Option<FleetPlace> = client.get("/v1/fleet")?;
    let found = found.map(|place| {
        let agents = client.get::<Option<FleetAgents>>("/v1/fleet/agents");
        let fleet_fault = agents.as_ref().err().map(|error| format!("{error:#}"));
        FleetStatus {
            place,
            fleet: agents.ok().flatten(),
            fleet_fault,
        }
    });
    output::show_value(&global.format, &found, || match &found {
        None => "this agent is in no fleet ([fleet] servers = [])\n".to_owned(),
        Some(shown) => {
            let others = match (&shown.fleet, &shown.fleet_fault) {
                (Some(agents), _) => agents_text(agents),
                (None, why) => {
                    let why = why.as_deref().unwrap_or("the agent does not tell");
                    format!(
                        "The agents of the fleet cannot be had: {}\n",
                        printable(why)
                    )
                }
            };
            format!("{}\n{others}", place_text(&shown.place))
        }
    })
}

/// All agents: one line, and a table.
fn agents_text(agents: &FleetAgents) -> String {
    let line = format!(
        "{}, {}, {} silent, {} with problems\n",
        count_text(agents.agents.len(), "agent"),
        count_text(agents.versions.len(), "version"),
        agents.silent,
        agents.with_problems
    );
    if agents.agents.is_empty() {
        return line;
    }
    let header = [
        "Agent", "Version", "Labels", "Status", "Policies", "Problems",
    ];
    let rows = agents.agents.iter().map(agent_row).collect();
    format!("{line}\n{}", output::table(&header, &[], rows))
}

fn agent_row(agent: &FleetAgent) -> Vec<String> {
    let age = span_text(agent.age_s);
    let policies = agent.policies.iter();
    let policies = policies.map(|it| format!("{} {} {}", it.label, it.number, it.stage));
    let problems = match &agent.unreadable {
        Some(why) => format!("not readable: {why}"),
        None => agent.problems.join("; "),
    };
    vec![
        printable(&agent.agent),
        printable(agent.version.as_deref().unwrap_or("–")),
        printable(&agent.labels.join(" ")),
        match agent.silent {
            true => format!("{age} ago, silent"),
            false => format!("{age} ago"),
        },
        printable(&policies.collect::<Vec<_>>().join(", ")),
        printable(&problems),
    ]
}

fn place_text(place: &FleetPlace) -> String {
    let server = match (&place.server, place.connected_s) {
        (Some(server), Some(seconds)) => format!("{}, for {seconds} s", printable(server)),
        _ => "none: the fleet is away; the agent goes on without it".to_owned(),
    };
    let which = |does: bool, text: String| if does { text } else { "nothing".to_owned() };
    let tells = which(place.shares, format!("of {} networks", place.told));
    let takes = which(
        place.takes,
        format!(
            "what {} agents tell of {} networks; {} records in force, {} left out",
            place.agents, place.networks, place.in_force, place.left_out
        ),
    );
    let traffic = |it: FleetTraffic| format!("{} messages, {} bytes", it.messages, it.bytes);
    let mut rows = vec![
        ("Agent", place.agent.clone()),
        ("Labels", place.labels.join(" ")),
        ("Server", server),
        ("Tells", tells),
        ("Takes", takes),
        ("Sent", traffic(place.sent)),
        ("Received", traffic(place.received)),
    ];
    for policy in &place.policies {
        let why = match policy.reason.is_empty() {
            true => String::new(),
            false => format!(": {}", printable(&policy.reason)),
        };
        let (number, label) = (policy.number, &policy.label);
        rows.push((
            "Policy",
            format!("{number} of {label}, {}{why}", policy.stage),
        ));
    }
    if place.other_rule > 0 {
        let text = format!("{} messages of other versions", place.other_rule);
        rows.push(("Not used", text));
    }
    if place.unheard > 0 {
        let text = format!("{} reports, for want of room", place.unheard);
        rows.push(("Not heard", text));
    }
    if let Some(last) = &place.last_fault {
        let text = format!("{} s ago: {}", last.age_s, printable(&last.text));
        rows.push(("Last fault", text));
    }
    for (kind, number) in &place.faults {
        rows.push(("Faults", format!("{number} of kind {kind}")));
    }
    let mut text = String::new();
    for (name, value) in rows {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "{name:<11} {value}");
    }
    text
}
