//! Decisions joined with what became of their connections, for `thalweg replay`.

use std::collections::HashMap;

use anyhow::Result;
use serde::Serialize;
use thalweg_agent::view::{Arm, Event, Measurement};

use crate::client::Client;
use crate::commands::replay::file::{FORMAT, Head, Line, Measured, Tail, VERSION, Window};

/// Events per request.
const PAGE: usize = 10_000;

/// Writes every decision of the learner whose connection has ended.
pub fn write_decisions(client: &Client, write: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let arms: Vec<Arm> = client.get("/v1/arms")?;
    let mut open = OpenConnections::default();
    let permitted = arms.iter().filter(|arm| arm.present && !arm.needs_ecn);
    open.permitted = permitted.map(|arm| arm.name.clone()).collect();
    let head = Head {
        format: FORMAT.to_owned(),
        version: VERSION,
        arms: arms.into_iter().map(|arm| arm.name).collect(),
    };
    write_line(&head, write)?;
    let mut count = 0;
    let mut since = 0;
    loop {
        let page = format!("/v1/events?since={since}&limit={PAGE}");
        let events: Vec<Event> = client.get(&page)?;
        for event in &events {
            since = event.id;
            if let Some(connection) = open.add_event(event) {
                count += 1;
                write_line(&connection, write)?;
            }
        }
        if events.len() < PAGE {
            return write_line(&Tail { end: count }, write);
        }
    }
}

fn write_line(value: &impl Serialize, write: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    write(&text)
}

/// Cookies of a connection's network namespace and socket, its remote address and port. Events outlive a
/// restart of the machine, after which other connections have the same cookies.
type ConnectionKey = (u64, u64, String, u16);

/// Connections that have not ended.
#[derive(Default)]
struct OpenConnections {
    lines: HashMap<ConnectionKey, Line>,
    /// Arms that a connection may get without ECN.
    permitted: Vec<String>,
}

impl OpenConnections {
    /// Takes the next event; returns the connection that it ends.
    fn add_event(&mut self, event: &Event) -> Option<Line> {
        let remote = event.remote.clone();
        let key = (event.netns, event.connection, remote, event.remote_port);
        let Some(measurement) = &event.measurement else {
            // Of a change mid-flow the measurements tell.
            if is_choice(event)
                && let Some(line) = line_of_decision(event)
            {
                self.lines.insert(key, line);
            }
            return None;
        };
        if !self.lines.contains_key(&key) {
            let line = self.warm_up(event, measurement)?;
            self.lines.insert(key.clone(), line);
        }
        let line = self.lines.get_mut(&key)?;
        line.window = chosen_window(event);
        line.stretches.push(measured_interval(event, measurement));
        let goes_on = matches!(measurement.end.as_str(), "switch" | "stretch");
        if goes_on {
            None
        } else {
            self.lines.remove(&key)
        }
    }

    /// The start of a connection from its first measurement: while a host's record warms up,
    /// decisions make no event, and the system's arm stays.
    fn warm_up(&self, event: &Event, measurement: &Measurement) -> Option<Line> {
        if event.reason != "warm-up" || event.arm != event.system_arm {
            return None;
        }
        let lasted_ms = i64::try_from(measurement.wall_us / 1000).ok()?;
        let start = Event {
            time_ms: event.time_ms - lasted_ms,
            propensities: Some([(event.arm.clone()?, 1.0)].into()),
            allowed: Some(self.permitted.clone()),
            ..event.clone()
        };
        line_of_decision(&start)
    }
}

/// Whether a rule chose, or the control group, at establishment.
fn is_choice(event: &Event) -> bool {
    let reasons = [
        "warm-up", "greedy", "explore", "untried", "drawn", "control",
    ];
    reasons.contains(&event.reason.as_str()) && event.error.is_none()
}

/// The start of a connection's line; `None` if its arm is none of the table. A dry run sets
/// nothing, so that its connections had no choice but the system's.
fn line_of_decision(event: &Event) -> Option<Line> {
    let arm = event.arm.clone()?;
    let fixed = event.dry_run || event.control;
    let propensities = match &event.propensities {
        _ if fixed => [(arm.clone(), 1.0)].into(),
        Some(propensities) => propensities.clone(),
        None => Default::default(),
    };
    Some(Line {
        time_ms: event.time_ms,
        netns: event.netns,
        host: event.host.clone(),
        system: event.system_arm.clone(),
        allowed: event.allowed.clone().unwrap_or_else(|| vec![arm.clone()]),
        arm,
        reason: event.reason.clone(),
        level: (event.level != "host").then(|| event.level.clone()),
        control: event.control,
        propensities,
        handshake_rtt_us: event.handshake_rtt_us,
        rule: event.rule,
        parameters: event.parameters,
        stands_for: event.stands_for,
        window: None,
        stretches: Vec::new(),
    })
}

/// The initial window with the probability of what it was. A dry run had no choice. One that the
/// kernel refused is left out: it is neither what was chosen nor a choice of 10 segments.
fn chosen_window(event: &Event) -> Option<Window> {
    let window = event.window.as_ref()?;
    if !event.dry_run && window.segments != window.chosen {
        return None;
    }
    Some(Window {
        segments: window.segments.into(),
        propensity: if event.dry_run {
            1.0
        } else {
            window.propensity
        },
        cost_bits: window.cost_bits,
    })
}

fn measured_interval(event: &Event, measurement: &Measurement) -> Measured {
    Measured {
        time_ms: event.time_ms,
        arm: event.arm.clone(),
        end: measurement.end.clone(),
        bytes: measurement.bytes,
        duration_us: measurement.duration_us,
        wall_us: measurement.wall_us,
        srtt_us: measurement.srtt_us,
        min_rtt_us: measurement.min_rtt_us,
        segs_out: measurement.segs_out,
        retrans: measurement.retrans,
        receiver_us: measurement.receiver_us,
        buffer_us: measurement.buffer_us,
        app_limited: measurement.app_limited,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn event(changes: Value) -> Event {
        let mut event = json!({
            "id": 1, "time_ms": 5000, "kind": "decision", "connection": 7, "netns": 1,
            "host": "192.0.2.7", "remote": "192.0.2.7", "remote_port": 80, "local_port": 9,
            "arm": "bbr", "chosen": "bbr", "system_arm": "cubic", "reason": "greedy",
            "propensity": 0.9, "propensities": { "bbr": 0.9, "cubic": 0.1 },
            "allowed": ["bbr", "cubic"], "passive": false, "ecn": false, "dry_run": false,
            "switched": false, "error": null,
        });
        for (key, value) in changes.as_object().unwrap() {
            event[key] = value.clone();
        }
        serde_json::from_value(event).unwrap()
    }

    fn end(kind: &str) -> Value {
        json!({
            "end": kind, "outcome": "scored", "bytes": 1000, "duration_us": 10,
            "wall_us": 2_000_000, "rate_bytes_per_s": 1, "srtt_us": 1, "min_rtt_us": 1,
            "segs_out": 1, "retrans": 0, "cost": 1, "weight": 1.0,
        })
    }

    fn lines(changes: &[Value]) -> Vec<Line> {
        let mut open = OpenConnections {
            permitted: vec!["bbr".into(), "cubic".into(), "reno".into()],
            ..OpenConnections::default()
        };
        changes
            .iter()
            .filter_map(|changes| open.add_event(&event(changes.clone())))
            .collect()
    }

    #[test]
    fn a_decision_is_joined_with_all_stretches_of_its_connection() {
        let found = lines(&[
            json!({}),
            json!({ "connection": 8, "arm": "cubic" }),
            json!({ "measurement": end("switch") }),
            json!({ "reason": "loss", "arm": "cubic", "propensities": { "cubic": 0.75 } }),
            json!({ "arm": "cubic", "reason": "loss", "measurement": end("fin-local") }),
            json!({ "connection": 9, "measurement": end("fin-local") }),
        ]);
        // One has not ended, and of one the decision is unknown.
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].arm.as_str(), found[0].propensities["bbr"]),
            ("bbr", 0.9)
        );
        let arms: Vec<_> = found[0]
            .stretches
            .iter()
            .map(|it| it.arm.as_deref())
            .collect();
        assert_eq!(arms, [Some("bbr"), Some("cubic")]);
    }

    #[test]
    fn connection_of_another_boot_with_the_same_cookies_is_another() {
        let found = lines(&[
            json!({}),
            // After a restart of the machine.
            json!({ "remote": "192.0.2.8", "measurement": end("fin-local") }),
            json!({ "remote_port": 443, "measurement": end("fin-local") }),
            json!({ "measurement": end("fin-local") }),
        ]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].stretches.len(), 1);
    }

    #[test]
    fn an_initial_window_has_the_probability_of_what_it_was() {
        let with = |changes: Value, window: Value| {
            let mut changes = changes;
            changes["window"] = window;
            changes["measurement"] = end("fin-local");
            changes
        };
        let found = lines(&[
            json!({}),
            with(
                json!({}),
                json!({ "segments": 16, "chosen": 16, "propensity": 0.25, "cost_bits": -0.5 }),
            ),
            json!({}),
            with(
                json!({ "dry_run": true }),
                json!({ "segments": 10, "chosen": 16, "propensity": 0.25, "cost_bits": 0.5 }),
            ),
            // The kernel refused it.
            json!({}),
            with(
                json!({}),
                json!({ "segments": 10, "chosen": 16, "propensity": 0.25 }),
            ),
            json!({}),
            json!({ "measurement": end("fin-local") }),
        ]);
        let windows: Vec<_> = found.iter().map(|line| line.window.clone()).collect();
        let of = |segments, propensity, cost| {
            Some(Window {
                segments,
                propensity,
                cost_bits: Some(cost),
            })
        };
        assert_eq!(windows, [of(16, 0.25, -0.5), of(10, 1.0, 0.5), None, None]);
    }

    #[test]
    fn without_a_choice_the_systems_arm_is_certain() {
        let found = lines(&[
            json!({ "arm": "cubic", "reason": "warm-up", "measurement": end("fin-local") }),
            json!({ "arm": "cubic", "dry_run": true }),
            json!({ "arm": "cubic", "dry_run": true, "measurement": end("reset") }),
        ]);
        assert_eq!((found[0].time_ms, found[1].time_ms), (3000, 5000));
        for line in &found {
            assert_eq!(line.propensities, [("cubic".to_owned(), 1.0)].into());
        }
        assert_eq!(found[0].allowed.len(), 3);
    }
}
