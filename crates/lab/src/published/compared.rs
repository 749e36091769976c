//! Tables of kind "compared": statistics of the laboratory, a row for each mode of each run,
//! over what varies from run to run; with targets, and a picture if asked for.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use thalweg_units::file::replace;

use super::{Given, Head, Page, Run, Spread};
use crate::error::Error;
use crate::measure::Unit;
use crate::mode::Mode;
use crate::outcome::{Connection, ModeOutcome};
use crate::report::picture::{Line, Panel, panels};
use crate::statistic::{Query, Statistic};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    /// What varies, in words or a number.
    condition: String,
    run: Run,
    /// The modes of this row; none: the table's.
    modes: Option<Vec<String>>,
}

/// What the table shows and of whom.
#[derive(Deserialize)]
pub(super) struct Comparison {
    /// What varies.
    across: String,
    modes: Vec<String>,
    column: Vec<Column>,
    /// File of the picture of all columns, beside the page.
    picture: Option<String>,
    #[serde(default)]
    target: Vec<Target>,
}

/// One figure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Column {
    name: String,
    pub(super) figure: Figure,
    /// Only flows of this class.
    class: Option<String>,
}

/// What is computed of a round.
#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(from = "String")]
pub(super) enum Figure {
    /// What the flows carry together, headers included, of what the bottleneck can.
    Utilisation,
    /// A statistic of the laboratory.
    Statistic(Statistic),
    /// Nothing known by that name.
    Unknown,
}

impl From<String> for Figure {
    fn from(name: String) -> Self {
        if name == "utilisation" {
            return Self::Utilisation;
        }
        Statistic::ALL
            .into_iter()
            .find(|one| one.key() == name)
            .map_or(Self::Unknown, Self::Statistic)
    }
}

/// What one hopes for: a figure of one mode in one row, or its ratio to another mode's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    condition: String,
    mode: String,
    figure: Figure,
    relative_to: Option<String>,
    /// In the unit that the table shows; a ratio with `relative_to`.
    at_least: Option<f64>,
    at_most: Option<f64>,
}

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Self::Utilisation => "utilisation",
            Self::Statistic(statistic) => statistic.words(),
            Self::Unknown => "?",
        }
    }

    /// From the unit of the laboratory to that of the page, and its digits behind the point.
    fn shown(self) -> (f64, usize) {
        let unit = match self {
            Self::Statistic(statistic) => statistic.unit(),
            _ => Unit::Share,
        };
        match unit {
            Unit::Share => (100.0, 1),
            Unit::Microseconds => (1e-3, 2),
            Unit::BitsPerSecond => (1e-6, 1),
            Unit::Number => (1.0, 3),
        }
    }

    /// Of one round, in the unit of the page.
    fn of(self, round: &Round, mode: &Mode, class: Option<&str>) -> Option<f64> {
        let outcome = round.modes.iter().find(|outcome| outcome.mode == *mode)?;
        let value = |statistic: Statistic| {
            let query = Query {
                class,
                ..statistic.into()
            };
            query.value(outcome, &round.modes).ok()
        };
        let plain = match self {
            Self::Utilisation => value(Statistic::Total)? / round.capacity_bps?,
            Self::Statistic(statistic) => value(statistic)?,
            Self::Unknown => return None,
        };
        Some(plain * self.shown().0)
    }
}

/// One round of a run: all modes.
struct Round {
    modes: Vec<ModeOutcome>,
    /// Payload that the bottleneck can carry, bit/s.
    capacity_bps: Option<f64>,
}

/// The rounds of a result.
pub(super) struct Rounds(Vec<Round>);

impl Rounds {
    pub(super) fn of(result: &Value) -> Self {
        let scenario = &result["scenarios"][0];
        let modes: Vec<(Mode, Vec<Connection>, Option<f64>)> = scenario["modes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let connections =
                    serde_json::from_value(entry["connections"].clone()).unwrap_or_default();
                let mode = entry["mode"].as_str()?.parse().ok()?;
                Some((mode, connections, entry["least_rtt_us"].as_f64()))
            })
            .collect();
        let all = modes.iter().flat_map(|(_, connections, _)| connections);
        let numbers: std::collections::BTreeSet<u32> = all.map(|one| one.round).collect();
        let capacity_bps = capacity(result);
        let round = |number: u32| Round {
            modes: modes
                .iter()
                .map(|(mode, connections, least_rtt_us)| ModeOutcome {
                    mode: mode.clone(),
                    rounds: 1,
                    connections: connections
                        .iter()
                        .filter(|one| one.round == number)
                        .cloned()
                        .collect(),
                    forward: Default::default(),
                    reverse: Default::default(),
                    hosts: Vec::new(),
                    least_rtt_us: *least_rtt_us,
                    last_change: None,
                    remotes: Vec::new(),
                })
                .collect(),
            capacity_bps,
        };
        Self(numbers.into_iter().map(round).collect())
    }

    /// A figure over the rounds, in the unit of the page.
    pub(super) fn spread(&self, mode: &str, figure: Figure, class: Option<&str>) -> Option<Spread> {
        let mode: Mode = mode.parse().ok()?;
        let figures: Vec<f64> = self
            .0
            .iter()
            .filter_map(|round| figure.of(round, &mode, class))
            .collect();
        Spread::of(&figures)
    }
}

/// Payload that the bottleneck can carry, bit/s: TCP with timestamps has 20 + 32 bytes of
/// each IPv4 packet, and Ethernet 14 more, which the forwarded path has not.
fn capacity(result: &Value) -> Option<f64> {
    let path = &result["scenarios"][0]["scenario"]["path"];
    let rate_bps = path["rate"].as_f64()?;
    let mtu = path["mtu"].as_f64()?;
    let header = if path["family"] == "ipv6" { 72.0 } else { 52.0 };
    let frame = match result["environment"]["backend"]["name"].as_str()? {
        "link" => mtu,
        _ => mtu + 14.0,
    };
    Some(rate_bps * (mtu - header) / frame)
}

/// A mode for a reader: the arm alone.
pub(super) fn arm(mode: &str) -> &str {
    mode.strip_prefix("fixed:").unwrap_or(mode)
}

impl Page<'_> {
    pub(super) fn compared(
        &mut self,
        head: &Head,
        of: &Comparison,
        rows: &[Row],
    ) -> Result<(), Error> {
        for figure in of
            .column
            .iter()
            .map(|column| column.figure)
            .chain(of.target.iter().map(|target| target.figure))
        {
            if figure == Figure::Unknown {
                return Err(Error::Options(format!(
                    "{}: table {:?} has a figure that is neither \"utilisation\" nor a statistic",
                    self.options.tables.display(),
                    head.title
                )));
            }
        }
        self.head(head);
        self.body
            .push_str("Median of the rounds, in brackets the least and the greatest.\n\n");
        if let Some(picture) = &of.picture {
            self.body
                .push_str(&format!("![{}]({picture})\n\n", head.title));
        }
        let names: Vec<&str> = of.column.iter().map(|one| one.name.as_str()).collect();
        let line = "|---".repeat(names.len() + 2);
        let across = &of.across;
        self.body.push_str(&format!(
            "| {across} | | {} |\n{line}|\n",
            names.join(" | ")
        ));
        let mut foot = Vec::new();
        let mut results: Vec<(&Row, Option<Rounds>)> = Vec::new();
        for row in rows {
            let modes = row.modes.as_ref().unwrap_or(&of.modes);
            let words: Vec<&str> = modes.iter().map(String::as_str).collect();
            let given: Given = self.run(&row.run, &words, &mut foot)?;
            let rounds = given.ok().map(|result| Rounds::of(&result));
            for mode in modes {
                let mut cells = vec![arm(mode).to_owned()];
                cells.extend(of.column.iter().map(|column| {
                    match &rounds {
                        Some(rounds) => rounds
                            .spread(mode, column.figure, column.class.as_deref())
                            .map_or("–".to_owned(), |spread| {
                                spread.text(column.figure.shown().1)
                            }),
                        None => "not run".to_owned(),
                    }
                }));
                self.row(&row.condition, &cells);
            }
            results.push((row, rounds));
        }
        self.targets(&of.target, &results);
        self.foot(foot);
        match &of.picture {
            Some(name) => {
                let folder = self.options.page.parent().unwrap_or(Path::new("."));
                let file = folder.join(name);
                let text = picture(head, of, &results);
                replace(&file, text).map_err(Error::io("cannot write", file))
            }
            None => Ok(()),
        }
    }

    fn targets(&mut self, targets: &[Target], results: &[(&Row, Option<Rounds>)]) {
        if targets.is_empty() {
            return;
        }
        self.body
            .push_str("\n| target | measured | |\n|---|---|---|\n");
        for target in targets {
            let of = results
                .iter()
                .find(|(row, _)| row.condition == target.condition)
                .and_then(|(_, rounds)| rounds.as_ref());
            let median = |mode: &str| {
                let spread = of?.spread(mode, target.figure, None)?;
                Some(spread.median)
            };
            let value = match &target.relative_to {
                None => median(&target.mode),
                Some(other) => median(&target.mode)
                    .zip(median(other))
                    .filter(|(_, other)| *other > 0.0)
                    .map(|(one, other)| one / other),
            };
            let met = value.map(|value| {
                target.at_least.is_none_or(|least| value >= least)
                    && target.at_most.is_none_or(|most| value <= most)
            });
            let digits = match target.relative_to {
                Some(_) => 2,
                None => target.figure.shown().1,
            };
            self.body.push_str(&format!(
                "| {} | {} | {} |\n",
                target.words(),
                value.map_or("–".to_owned(), |value| format!("{value:.digits$}")),
                match met {
                    Some(true) => "met",
                    Some(false) => "**missed**",
                    None => "not run",
                }
            ));
        }
    }
}

impl Target {
    fn words(&self) -> String {
        let of = match &self.relative_to {
            Some(other) => format!(" × that of {}", arm(other)),
            None => String::new(),
        };
        let bound = |word: &str, value: Option<f64>| {
            value.map_or(String::new(), |value| format!(" {word} {value}{of}"))
        };
        format!(
            "{}, {}: {}{}{}",
            self.condition,
            arm(&self.mode),
            self.figure.name(),
            bound("at least", self.at_least),
            bound("at most", self.at_most)
        )
    }
}

fn picture(head: &Head, of: &Comparison, results: &[(&Row, Option<Rounds>)]) -> String {
    let line = |column: &Column, mode: &String| Line {
        name: arm(mode).to_owned(),
        points: results
            .iter()
            .enumerate()
            .filter_map(|(place, (_, rounds))| {
                let class = column.class.as_deref();
                let spread = rounds.as_ref()?.spread(mode, column.figure, class)?;
                Some((place, [spread.least, spread.median, spread.greatest]))
            })
            .collect(),
    };
    let drawn: Vec<Panel> = of
        .column
        .iter()
        .map(|column| Panel {
            title: column.name.clone(),
            lines: of.modes.iter().map(|mode| line(column, mode)).collect(),
        })
        .collect();
    let across: Vec<String> = results
        .iter()
        .map(|(row, _)| row.condition.clone())
        .collect();
    panels(&head.title, &of.across, &across, &drawn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn result(backend: &str) -> Value {
        let flow = |round: u32, mbits: f64, srtt_us: [u32; 3]| {
            json!({
                "round": round, "goodput_bps": mbits * 1e6, "part_bps": mbits * 1e6,
                "retransmits": 0, "arm": "cubic", "mean_rtt_us": null, "srtt_us": srtt_us,
                "wall_s": 1.0, "error": null,
            })
        };
        json!({
            "environment": {"backend": {"name": backend}},
            "scenarios": [{
                "scenario": {"path": {"rate": 100_000_000, "mtu": 1500, "family": "ipv4"}},
                "modes": [{"mode": "fixed:cubic", "least_rtt_us": 1000.0, "connections": [
                    flow(0, 60.0, [3000, 3000, 3000]),
                    flow(0, 30.0, [3000, 3000, 3000]),
                    flow(1, 40.0, [1000, 5000, 6000]),
                    flow(1, 40.0, [5000, 5000, 6000]),
                ]}],
            }],
        })
    }

    fn text(figure: &str, backend: &str) -> String {
        let figure = Figure::from(figure.to_owned());
        let rounds = Rounds::of(&result(backend));
        let spread = rounds.spread("fixed:cubic", figure, None).unwrap();
        spread.text(figure.shown().1)
    }

    #[test]
    fn figures_are_of_rounds_in_the_units_of_the_page() {
        // 30 of 60 and 40 of 40.
        assert_eq!(text("fairness", "host"), "75.0 [50.0 … 100.0]");
        // 90 and 80 of 100 · 1448/1514 = 95.64 Mbit/s; of 96.53 without Ethernet.
        assert_eq!(text("utilisation", "host"), "88.9 [83.6 … 94.1]");
        assert_eq!(text("utilisation", "link"), "88.1 [82.9 … 93.2]");
        // 2 ms in the first, 4 in the second.
        assert_eq!(text("queue-delay-median", "host"), "3.00 [2.00 … 4.00]");
        assert_eq!(text("total", "host"), "85.0 [80.0 … 90.0]");
    }

    #[test]
    fn the_shipped_lists_name_what_there_is() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        for list in [
            "published/tables.toml",
            "published/tables-qemu.toml",
            "published/tables-stack.toml",
            "rate/tables.toml",
            "rate/tables-qemu.toml",
        ] {
            let file = folder.join(list);
            let text = std::fs::read_to_string(&file).unwrap();
            let document = super::super::parse(&text, &file).unwrap();
            assert!(document.runs() > 5, "{list}");
            for table in &document.table {
                let super::super::Table::Compared {
                    comparison, row, ..
                } = table
                else {
                    continue;
                };
                for one in row {
                    let scenario = file.with_file_name(&one.run.scenario);
                    crate::scenario::Scenario::load(&scenario).unwrap();
                }
                let columns = comparison.column.iter().map(|column| column.figure);
                let targets = comparison.target.iter().map(|target| target.figure);
                assert!(columns.chain(targets).all(|one| one != Figure::Unknown));
                for target in &comparison.target {
                    let of_row = |one: &Row| one.condition == target.condition;
                    assert!(row.iter().any(of_row), "{}", target.condition);
                }
            }
        }
    }

    #[test]
    fn what_was_not_measured_has_no_figure() {
        let rounds = Rounds::of(&result("host"));
        let total = Figure::from("total".to_owned());
        assert_eq!(rounds.spread("fixed:bbr", total, None), None);
        assert_eq!(rounds.spread("fixed:cubic", total, Some("long")), None);
        assert_eq!(Figure::from("goodness".to_owned()), Figure::Unknown);
    }
}
