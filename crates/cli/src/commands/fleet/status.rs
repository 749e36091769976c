//! `thalweg fleet status`.

use std::fmt::Write;

use anyhow::Result;
use thalweg_agent::view::{FleetPlace, FleetTraffic};
use thalweg_control::object::printable;

use crate::options::Global;
use crate::output;

/// Shows how the agent stands.
pub fn run(global: &Global) -> Result<()> {
    let found: Option<FleetPlace> = global.client()?.get("/v1/fleet")?;
    output::show(global, &found, || match &found {
        None => "this agent is in no fleet ([fleet] servers = [])\n".to_owned(),
        Some(place) => text(place),
    })
}

fn text(place: &FleetPlace) -> String {
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
