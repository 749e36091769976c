//! Tables of kind "incast": what flows that meet in one queue get, over how many they are.

use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use thalweg_units::file::replace;

use super::{Given, Head, Page, Run, Spread, connections};
use crate::error::Error;
use crate::report::picture::{Line, Panel, panels};
use crate::scenario::INCAST;
use crate::stats;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    /// What varies: its value.
    across: u32,
    run: Run,
}

/// What varies, what is compared, and the picture of it.
#[derive(Deserialize)]
pub(super) struct Sweep {
    /// What varies, in words.
    across: String,
    /// What is compared.
    compared: Vec<Compared>,
    /// File of the picture, beside the page.
    picture: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Compared {
    mode: String,
    /// What the page calls it.
    name: String,
}

/// A figure of one round.
struct Figure {
    name: &'static str,
    digits: usize,
    /// Whether it has a panel in the picture.
    drawn: bool,
    of: fn(&[&Value]) -> Option<f64>,
}

const CALLS: &str = INCAST[0].0;
const SMALL_CALLS: &str = INCAST[1].0;
const STREAMS: &str = INCAST[2].0;

const FIGURES: [Figure; 8] = [
    Figure {
        name: "all flows, Mbit/s",
        digits: 0,
        drawn: true,
        of: |flows| mbits(flows, None),
    },
    Figure {
        name: "1 MB calls, Mbit/s",
        digits: 0,
        drawn: false,
        of: |flows| mbits(flows, Some(CALLS)),
    },
    Figure {
        name: "10 kB calls, Mbit/s",
        digits: 1,
        drawn: false,
        of: |flows| mbits(flows, Some(SMALL_CALLS)),
    },
    Figure {
        name: "streams, Mbit/s",
        digits: 0,
        drawn: false,
        of: |flows| mbits(flows, Some(STREAMS)),
    },
    Figure {
        name: "retransmitted, %",
        digits: 3,
        drawn: true,
        of: sent_again,
    },
    Figure {
        name: "10 kB call, median, ms",
        digits: 1,
        drawn: true,
        of: |flows| latency(flows, 0.5),
    },
    Figure {
        name: "10 kB call, p95, ms",
        digits: 1,
        drawn: false,
        of: |flows| latency(flows, 0.95),
    },
    Figure {
        name: "10 kB call, p99, ms",
        digits: 1,
        drawn: true,
        of: |flows| latency(flows, 0.99),
    },
];

impl Page<'_> {
    pub(super) fn incast(&mut self, head: &Head, sweep: &Sweep, rows: &[Row]) -> Result<(), Error> {
        self.head(head);
        let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        let _ = write!(
            self.body,
            "In brackets the least and the greatest round.\n\n![{}]({})\n\n| {} | | {} |\n{}|\n",
            head.title,
            sweep.picture,
            sweep.across,
            names.join(" | "),
            "|---".repeat(names.len() + 2)
        );
        let modes: Vec<&str> = sweep.compared.iter().map(|one| one.mode.as_str()).collect();
        let mut foot = Vec::new();
        let mut results: Vec<(u32, Given)> = Vec::new();
        for row in rows {
            let given = self.run(&row.run, &modes, &mut foot)?;
            for one in &sweep.compared {
                let mut cells = vec![one.name.clone()];
                cells.extend(FIGURES.iter().map(|figure| {
                    match &given {
                        Ok(result) => spread(result, &one.mode, figure)
                            .map_or_else(|| "–".to_owned(), |spread| spread.text(figure.digits)),
                        Err(_) => "not run".to_owned(),
                    }
                }));
                self.row(&row.across.to_string(), &cells);
            }
            results.push((row.across, given));
        }
        self.foot(foot);
        let folder = self.options.page.parent().unwrap_or(Path::new("."));
        let file = folder.join(&sweep.picture);
        replace(&file, picture(head, sweep, &results)).map_err(Error::io("cannot write", file))
    }
}

fn picture(head: &Head, sweep: &Sweep, results: &[(u32, Given)]) -> String {
    let line = |figure: &Figure, one: &Compared| Line {
        name: one.name.clone(),
        points: results
            .iter()
            .enumerate()
            .filter_map(|(place, (_, given))| {
                let spread = spread(given.as_ref().ok()?, &one.mode, figure)?;
                Some((place, [spread.least, spread.median, spread.greatest]))
            })
            .collect(),
    };
    let drawn: Vec<Panel> = FIGURES
        .iter()
        .filter(|figure| figure.drawn)
        .map(|figure| Panel {
            title: figure.name.to_owned(),
            lines: sweep.compared.iter().map(|one| line(figure, one)).collect(),
        })
        .collect();
    let across: Vec<String> = results.iter().map(|(value, _)| value.to_string()).collect();
    panels(&head.title, &sweep.across, &across, &drawn)
}

fn spread(result: &Value, mode: &str, figure: &Figure) -> Option<Spread> {
    let all = connections(result, mode);
    let round = |flow: &Value| flow["round"].as_u64();
    let rounds: std::collections::BTreeSet<u64> = all.iter().filter_map(round).collect();
    let figures: Vec<f64> = rounds
        .into_iter()
        .filter_map(|number| {
            let flows: Vec<&Value> = all
                .iter()
                .filter(|flow| round(flow) == Some(number))
                .collect();
            (figure.of)(&flows)
        })
        .collect();
    Spread::of(&figures)
}

fn mbits(flows: &[&Value], class: Option<&str>) -> Option<f64> {
    let mut parts = flows
        .iter()
        .filter(|flow| class.is_none_or(|class| flow["class"] == class))
        .filter_map(|flow| flow["part_bps"].as_f64())
        .peekable();
    parts.peek()?;
    Some(parts.sum::<f64>() / 1e6)
}

fn sent_again(flows: &[&Value]) -> Option<f64> {
    let sum = |key: &str| -> f64 { flows.iter().filter_map(|flow| flow[key].as_f64()).sum() };
    let sent = sum("sent_segments");
    (sent > 0.0).then(|| 100.0 * sum("retransmits") / sent)
}

/// Milliseconds; a failed call counts as infinite.
fn latency(flows: &[&Value], share: f64) -> Option<f64> {
    let times: Vec<f64> = flows
        .iter()
        .filter(|flow| flow["class"] == SMALL_CALLS)
        .map(|flow| flow["fct_us"].as_f64().map_or(f64::INFINITY, |us| us / 1e3))
        .collect();
    stats::quantile(&times, share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Two rounds: what the figures must be follows by hand.
    fn result() -> Value {
        let flow = |round: u32, class: &str, mbits: f64, again: u64, ms: Option<f64>| {
            json!({
                "round": round, "class": class, "part_bps": mbits * 1e6,
                "retransmits": again, "sent_segments": 1000, "fct_us": ms.map(|ms| ms * 1e3),
            })
        };
        json!({"scenarios": [{"modes": [{"mode": "baseline", "connections": [
            flow(0, CALLS, 100.0, 30, Some(50.0)),
            flow(0, SMALL_CALLS, 5.0, 0, Some(2.0)),
            flow(0, SMALL_CALLS, 5.0, 0, Some(4.0)),
            flow(0, STREAMS, 40.0, 10, None),
            flow(1, CALLS, 300.0, 0, Some(50.0)),
            flow(1, SMALL_CALLS, 1.0, 0, Some(9.0)),
        ]}]}]})
    }

    fn text(name: &str) -> String {
        let figure = FIGURES.iter().find(|figure| figure.name == name).unwrap();
        let spread = spread(&result(), "baseline", figure).unwrap();
        spread.text(figure.digits)
    }

    #[test]
    fn figures_are_of_rounds_and_spread_over_them() {
        assert_eq!(text("all flows, Mbit/s"), "226 [150 … 301]");
        assert_eq!(text("1 MB calls, Mbit/s"), "200 [100 … 300]");
        assert_eq!(text("10 kB calls, Mbit/s"), "5.5 [1.0 … 10.0]");
        // The second round has no stream.
        assert_eq!(text("streams, Mbit/s"), "40 [40 … 40]");
        // 40 of 4000 segments, none of 2000.
        assert_eq!(text("retransmitted, %"), "0.500 [0.000 … 1.000]");
        assert_eq!(text("10 kB call, median, ms"), "6.0 [3.0 … 9.0]");
    }

    #[test]
    fn a_mode_that_was_not_run_has_no_figures() {
        assert_eq!(spread(&result(), "policy:clamp", &FIGURES[0]), None);
    }
}
