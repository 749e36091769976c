//! Tables of kind "simulated": the laboratory beside the packet simulator.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use thalweg_units::file::read_text;

use super::compared::{Figure, Rounds, arm};
use super::{Head, Page, Run, Spread};
use crate::error::Error;
use crate::statistic::Statistic;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    condition: String,
    mode: String,
    run: Run,
    /// Every mode of the run, so that one run serves several rows.
    modes: Vec<String>,
    /// The simulator's scenario, beside the list of tables.
    scenario: PathBuf,
    /// The simulator's controller, as `--cc` has it.
    cc: String,
}

/// The same quantity in the words of both.
const FIGURES: [(&str, Figure, &str, usize); 3] = [
    ("SU %", Figure::Utilisation, "utilisation", 1),
    (
        "FR %",
        Figure::Statistic(Statistic::Fairness),
        "fairness",
        1,
    ),
    (
        "queue delay, ms",
        Figure::Statistic(Statistic::QueueDelayMedian),
        "queue-latency",
        2,
    ),
];

const SEEDS: &str = "3";

impl Page<'_> {
    pub(super) fn simulated(&mut self, head: &Head, rows: &[Row]) -> Result<(), Error> {
        self.head(head);
        let names: Vec<String> = FIGURES
            .iter()
            .flat_map(|(name, ..)| {
                [
                    format!("{name}: Linux"),
                    "simulator".to_owned(),
                    "difference".to_owned(),
                ]
            })
            .collect();
        let line = "|---".repeat(names.len() + 2);
        self.body
            .push_str(&format!("| flows | | {} |\n{line}|\n", names.join(" | ")));
        let mut foot = Vec::new();
        for row in rows {
            let modes: Vec<&str> = row.modes.iter().map(String::as_str).collect();
            let linux = self.run(&row.run, &modes, &mut foot)?;
            let rounds = linux.ok().map(|result| Rounds::of(&result));
            let simulated = self.simulate(row, &mut foot)?;
            let mut cells = vec![arm(&row.mode).to_owned()];
            for (_, figure, statistic, digits) in FIGURES {
                let ours = rounds
                    .as_ref()
                    .and_then(|rounds| rounds.spread(&row.mode, figure, None));
                let theirs = simulated
                    .as_ref()
                    .ok()
                    .and_then(|result| of_simulation(result, statistic, figure));
                let text = |value: Option<String>| value.unwrap_or("–".to_owned());
                cells.push(text(ours.map(|spread: Spread| spread.text(digits))));
                cells.push(text(theirs.map(|value| format!("{value:.digits$}"))));
                cells.push(text(ours.zip(theirs).map(|(ours, theirs)| {
                    format!("{:+.digits$}", ours.median - theirs)
                })));
            }
            self.row(&row.condition, &cells);
        }
        self.foot(foot);
        Ok(())
    }

    fn simulate(&mut self, row: &Row, foot: &mut Vec<String>) -> Result<super::Given, Error> {
        let folder = self.options.tables.parent().unwrap_or(Path::new("."));
        let scenario = plain(&folder.join(&row.scenario));
        let stem = row.scenario.file_stem().unwrap_or_default();
        let words = [
            "sim",
            "run",
            &scenario.display().to_string(),
            "--cc",
            &row.cc,
            "--seeds",
            SEEDS,
        ]
        .map(str::to_owned)
        .to_vec();
        let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let cc: String = row.cc.chars().map(letter).collect();
        let name = format!("sim-{}-{cc}", stem.to_string_lossy());
        // A model in the controller's words is a file that the result depends on.
        let model = row.cc.split([':', ',']).find_map(|word| {
            let file = word.strip_prefix("model=")?;
            Some(super::digest(Path::new(file)))
        });
        let stamp = model.unwrap_or_default();
        let inputs = read_text(&scenario)? + &stamp;
        self.made(&name, words, &inputs, foot)
    }
}

/// A path without the detours that a list in another folder makes: "a/../b" is "b".
fn plain(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut plain = PathBuf::new();
    for part in path.components() {
        match (part, plain.components().next_back()) {
            (Component::ParentDir, Some(Component::Normal(_))) => {
                plain.pop();
            }
            _ => plain.push(part),
        }
    }
    plain
}

/// Mean over the seeds of a statistic of the only controller, in the unit of the page.
fn of_simulation(result: &Value, statistic: &str, figure: Figure) -> Option<f64> {
    let mean = result["scenarios"][0]["controllers"][0]["summary"][statistic]["mean"].as_f64()?;
    Some(match figure {
        // Microseconds to milliseconds; the others are in percent on both sides.
        Figure::Statistic(Statistic::QueueDelayMedian) => mean / 1e3,
        _ => mean,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detours_are_left_out_of_commands() {
        for (path, expected) in [
            ("scenarios/rate/../sim/x.toml", "scenarios/sim/x.toml"),
            ("../sim/x.toml", "../sim/x.toml"),
            ("a/b/../../x.toml", "x.toml"),
        ] {
            assert_eq!(plain(Path::new(path)), Path::new(expected));
        }
    }
}
