//! `thalweg events`.

use std::collections::HashSet;

use anyhow::{Context, Result};
use clap::Args;
use serde::Deserialize;
use thalweg_agent::view::{Event, Explanation};
use thalweg_terminal::output::{self, bytes_text, milliseconds_text, percent_text, rate_text};
use thalweg_terminal::whole_number;

use crate::client::{Client, percent_encode, with_query};
use crate::options::{Global, parse_host};

/// Options of `events`.
#[derive(Debug, Args)]
pub struct Options {
    /// Go on with events as they come, until interrupted.
    #[arg(long, short)]
    follow: bool,
    /// Only events of this remote host.
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    host: Option<String>,
    /// The latest N events, at most 10000.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole_number::<u32>(0..=10_000))]
    limit: u32,
}

/// A line of the stream.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Event(Box<Event>),
    /// Number of events that the agent had to leave out.
    Missed {
        missed: u64,
    },
}

/// Shows decisions and ends of connections, oldest first.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let client = global.agent_client()?;
    let host = options.host.as_deref();
    let host = host.map(|host| record_key(&client, host));
    let host = ("host", host.as_deref());
    let limit = options.limit.to_string();
    let latest = with_query("/v1/events", &[("limit", Some(&limit)), host]);
    if !options.follow {
        let mut events: Vec<Event> = client.get(&latest)?;
        events.reverse();
        return output::show_value(&global.format, &events, || {
            events.iter().map(event_line).collect()
        });
    }
    // An event between the two requests is in both responses.
    let seen = std::cell::RefCell::new(HashSet::new());
    client.follow_lines(
        &with_query("/v1/events/stream", &[host]),
        &latest,
        |events: Vec<Event>| {
            events.iter().rev().try_for_each(|event| {
                seen.borrow_mut().insert(event_identity(event));
                show_event(event, global.format.json)
            })
        },
        |text| {
            let parsed = serde_json::from_str(text)
                .with_context(|| format!("the agent sent what is not an event: {text}"))?;
            match parsed {
                Line::Event(event) if seen.borrow_mut().remove(&event_identity(&event)) => Ok(()),
                Line::Event(event) => show_event(&event, global.format.json),
                Line::Missed { missed } if global.format.json => {
                    output::print_json_line(&serde_json::json!({ "missed": missed }))
                }
                Line::Missed { missed } => output::print(&format!("... {missed} events missed\n")),
            }
        },
    )
}

/// Identity of an event, whether stored or not.
fn event_identity(event: &Event) -> (i64, u64, String) {
    (event.time_ms, event.connection, event.kind.clone())
}

/// The key of the record that contains an address, under which events are stored. The address
/// itself if the agent has no such record (any more).
fn record_key(client: &Client, host: &str) -> String {
    client
        .get::<Vec<Explanation>>(&format!("/v1/hosts/{}", percent_encode(host)))
        .ok()
        .and_then(|found| found.into_iter().next())
        .map_or_else(|| host.to_owned(), |found| found.host.address)
}

fn show_event(event: &Event, json: bool) -> Result<()> {
    if json {
        output::print_json_line(event)
    } else {
        output::print(&event_line(event))
    }
}

/// One event as one line of text.
pub fn event_line(event: &Event) -> String {
    let name = |arm: &Option<String>| arm.clone().unwrap_or_else(|| "another".to_owned());
    let from_to = if event.passive { "from" } else { "to" };
    let port = if event.passive {
        event.local_port
    } else {
        event.remote_port
    };
    let mut text = format!(
        "{}  {:8}  {from_to} {} port {port}: ",
        output::time_text(event.time_ms),
        event.kind,
        event.remote
    );
    match &event.measurement {
        None => {
            text.push_str(&name(&event.arm));
            text.push_str(&format!(
                " ({}, {}",
                event.reason,
                percent_text(event.propensity)
            ));
            match event.level.strip_prefix("fleet-") {
                Some(level) => {
                    text.push_str(&format!(", by what other agents told of its {level}"))
                }
                None if event.level != "host" => {
                    text.push_str(&format!(", by its {}", event.level));
                }
                None => {}
            }
            if event.chosen != event.arm {
                text.push_str(&format!(", chosen was {}", name(&event.chosen)));
            }
            if event.system_arm != event.arm {
                text.push_str(&format!(", system {}", name(&event.system_arm)));
            }
            if event.dry_run {
                text.push_str(", dry run");
            }
            text.push(')');
        }
        Some(measured) => {
            text.push_str(&format!(
                "{} moved {} at {}, RTT {}, {} of {} segments retransmitted ({}, {})",
                name(&event.arm),
                bytes_text(measured.bytes),
                rate_text(measured.rate_bytes_per_s as f64),
                milliseconds_text(measured.srtt_us),
                measured.retrans,
                measured.segs_out,
                measured.end,
                measured.outcome
            ));
        }
    }
    if let Some(error) = &event.error {
        text.push_str(&format!("; the kernel refused: {error}"));
    }
    text.push('\n');
    text
}
