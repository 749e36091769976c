//! `thalweg-lab compare`: two runs, compared.
//!
//! The medians of each scenario, mode and measure that both runs have are compared by a bootstrap
//! (Efron 1979). Both samples are resampled with replacement. The interval lies between percentiles
//! of the resampled comparison. The draws are seeded.

mod bootstrap;
mod input;

use std::path::Path;

use serde::Serialize;
use thalweg_report::sample;

use crate::error::Error;
use crate::figure::{Better, Unit};
use crate::measure::Measure;
use crate::outcome::Connection;
use crate::table::Table;
use bootstrap::bootstrap_interval;
use input::{Run, RunMode, RunScenario};

/// Options of a comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Options {
    /// A difference within this counts as none: 0.05 is 5 % of A's median, or 5 percentage points
    /// of a share. Not negative.
    pub tolerance: f64,
    /// Confidence level of the intervals, between 0 and 1.
    pub confidence: f64,
    /// Number of resamples.
    pub resamples: u32,
    /// Seed of the draws.
    pub seed: u64,
    /// Only these measures; empty: all.
    pub measures: Vec<Measure>,
    /// Only modes of these names, "fixed" for each fixed:ARM; empty: all.
    pub modes: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tolerance: 0.0,
            confidence: 0.95,
            resamples: 10_000,
            seed: 1,
            measures: Vec::new(),
            modes: Vec::new(),
        }
    }
}

/// The verdict on B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval lies on the better side, beyond the tolerance.
    Better,
    /// The whole interval lies on the worse side, beyond the tolerance.
    Worse,
    /// Neither. This does not prove that there is no difference.
    NoDifferenceShown,
}

/// The comparison of B's median with A's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Against {
    /// B / A.
    Ratio,
    /// B − A: for shares, which may be 0.
    Difference,
}

impl Against {
    fn for_measure(measure: Measure) -> Self {
        match measure.unit() {
            Unit::Share => Self::Difference,
            _ => Self::Ratio,
        }
    }

    /// The value where A and B are equal.
    fn neutral_value(self) -> f64 {
        match self {
            Self::Ratio => 1.0,
            Self::Difference => 0.0,
        }
    }

    fn compare_values(self, a: f64, b: f64) -> f64 {
        match self {
            // Equal values compare as equal, also if both are 0 or infinite.
            _ if a == b => self.neutral_value(),
            Self::Ratio => b / a,
            Self::Difference => b - a,
        }
    }
}

/// One measure of one mode in both runs. Infinite values are null in JSON: a flow that failed never
/// completes.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The scenario's name.
    pub scenario: String,
    /// The mode.
    pub mode: String,
    /// The class of flows; empty if there is only one.
    pub class: String,
    /// The remote host; empty if there is only one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The measure that is compared.
    pub measure: Measure,
    /// Unit of the measure.
    pub unit: Unit,
    /// Which direction is an improvement.
    pub better: Better,
    /// Connections in A.
    pub count_a: usize,
    /// Connections in B.
    pub count_b: usize,
    /// A's median.
    pub median_a: f64,
    /// B's median.
    pub median_b: f64,
    /// Ratio or difference.
    pub against: Against,
    /// Ratio or difference of the medians.
    pub value: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end of its interval.
    pub high: f64,
    /// The verdict on B.
    pub verdict: Verdict,
}

/// The whole comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// Options of the comparison.
    pub options: Options,
    /// One row per scenario, mode, class and measure of both runs.
    pub rows: Vec<Row>,
    /// Only in A: scenarios, or "scenario: mode".
    pub only_a: Vec<String>,
    /// Only in B.
    pub only_b: Vec<String>,
    /// Differences between the two runs' environments, one a line.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Whether B is worse than A in any row.
    pub fn is_worse(&self) -> bool {
        self.rows.iter().any(|row| row.verdict == Verdict::Worse)
    }
}

/// Reads two runs and compares them.
///
/// # Errors
/// [`Error::Compare`]: a run cannot be read, no scenario is common to both, or scenarios of one
/// name differ.
pub fn compare_runs(a: &Path, b: &Path, options: &Options) -> Result<Comparison, Error> {
    let fault = |message: &str| Err(Error::Options(message.to_owned()));
    if !options.tolerance.is_finite() || options.tolerance < 0.0 {
        let found = options.tolerance;
        return fault(&format!(
            "--tolerance: found {found}, expected a part that is not negative"
        ));
    }
    if !(options.confidence > 0.0 && options.confidence < 1.0) {
        let found = options.confidence;
        return fault(&format!(
            "--confidence: found {found}, expected a part between 0 and 1"
        ));
    }
    if options.resamples < 100 {
        let found = options.resamples;
        return fault(&format!(
            "--resamples: found {found}, expected at least 100"
        ));
    }
    let (a, b) = (Run::load(a)?, Run::load(b)?);
    compare_loaded(&a, &b, options)
}

fn compare_loaded(a: &Run, b: &Run, options: &Options) -> Result<Comparison, Error> {
    let mut comparison = Comparison {
        options: options.clone(),
        rows: Vec::new(),
        only_a: a.missing_from(b),
        only_b: b.missing_from(a),
        notes: a.environment_differences(b),
    };
    for first in &a.scenarios {
        let Some(second) = b.scenarios.iter().find(|other| other.name == first.name) else {
            continue;
        };
        first.check_same(second)?;
        for mode in &first.modes {
            let wanted = options.modes.is_empty()
                || options.modes.iter().any(|wanted| {
                    *wanted == mode.mode || (wanted == "fixed" && mode.mode.starts_with("fixed:"))
                });
            if let Some(other) = second.mode_named(&mode.mode).filter(|_| wanted) {
                compare_mode(first, mode, other, options, &mut comparison.rows);
            }
        }
    }
    if comparison.rows.is_empty() {
        return Err(Error::Compare(format!(
            "{} and {} have no measurement in common{}",
            a.source.display(),
            b.source.display(),
            if options.modes.is_empty() && options.measures.is_empty() {
                ""
            } else {
                " that was asked for"
            }
        )));
    }
    Ok(comparison)
}

fn compare_mode(
    scenario: &RunScenario,
    a: &RunMode,
    b: &RunMode,
    options: &Options,
    rows: &mut Vec<Row>,
) {
    let mut sorts: Vec<(&str, &str)> = Vec::new();
    for one in &a.connections {
        let sort = (one.host.as_str(), one.class.as_str());
        if !sorts.contains(&sort) {
            sorts.push(sort);
        }
    }
    // Hosts in the order of the scenario, classes in alphabetical order.
    let places: Vec<&str> = sorts.iter().map(|(host, _)| *host).collect();
    let place = |host: &str| places.iter().position(|other| *other == host);
    sorts.sort_by_key(|(host, class)| (place(host), *class));
    for (host, class) in sorts {
        // Both runs share one least RTT. Each run's own differs by chance, and would shift all of
        // its delays.
        let least_rtt_us = [a, b]
            .into_iter()
            .filter_map(|mode| mode.least_rtt_us(host))
            .reduce(f64::min);
        for measure in Measure::ALL {
            if !options.measures.is_empty() && !options.measures.contains(&measure) {
                continue;
            }
            let values = |mode: &RunMode| -> Vec<f64> {
                let of_sort = |one: &&Connection| one.class == class && one.host == host;
                mode.connections
                    .iter()
                    .filter(of_sort)
                    .filter_map(|one| measure.connection_value(one, least_rtt_us))
                    .collect()
            };
            let (old, new) = (values(a), values(b));
            let (Some(median_a), Some(median_b)) = (sample::median(&old), sample::median(&new))
            else {
                continue;
            };
            let against = Against::for_measure(measure);
            let (low, high) =
                bootstrap_interval(&old, &new, options, |a, b| against.compare_values(a, b));
            rows.push(Row {
                scenario: scenario.name.clone(),
                mode: a.mode.clone(),
                class: class.to_owned(),
                host: host.to_owned(),
                measure,
                unit: measure.unit(),
                better: measure.better(),
                count_a: old.len(),
                count_b: new.len(),
                median_a,
                median_b,
                against,
                value: against.compare_values(median_a, median_b),
                low,
                high,
                verdict: judge_interval(low, high, against, measure.better(), options.tolerance),
            });
        }
    }
}

fn judge_interval(
    low: f64,
    high: f64,
    against: Against,
    better: Better,
    tolerance: f64,
) -> Verdict {
    let above = low > against.neutral_value() + tolerance;
    let below = high < against.neutral_value() - tolerance;
    match (better, above, below) {
        (Better::Higher, true, _) | (Better::Lower, _, true) => Verdict::Better,
        (Better::Higher, _, true) | (Better::Lower, true, _) => Verdict::Worse,
        _ => Verdict::NoDifferenceShown,
    }
}

/// The options of a comparison, in a line.
pub fn comparison_title(comparison: &Comparison) -> String {
    let options = &comparison.options;
    format!(
        "Medians of B against A, {}% intervals, {} resamples, seed {}",
        // 0.95 is not exact in binary.
        (options.confidence * 1e6).round() / 1e4,
        options.resamples,
        options.seed
    )
}

/// One table for each scenario.
pub fn comparison_tables(comparison: &Comparison) -> Vec<Table> {
    let rows = &comparison.rows;
    rows.chunk_by(|one, next| one.scenario == next.scenario)
        .map(|rows| Table {
            title: rows[0].scenario.clone(),
            header: [
                "mode", "measure", "A", "B", "n", "B to A", "from", "to", "B is",
            ]
            .map(str::to_owned)
            .to_vec(),
            rows: rows.iter().map(row_cells).collect(),
        })
        .collect()
}

fn row_cells(row: &Row) -> Vec<String> {
    let figure = |value: f64| match row.against {
        Against::Ratio => format!("{value:.3}×"),
        Against::Difference => format!("{:+.2} pp", value * 100.0),
    };
    let sort: Vec<&str> = [row.host.as_str(), row.class.as_str()]
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect();
    let sort = match sort.join(", ").as_str() {
        "" => String::new(),
        words => format!(" ({words})"),
    };
    vec![
        row.mode.clone(),
        format!("{}{sort}", row.measure),
        format_finite(row.unit, row.median_a),
        format_finite(row.unit, row.median_b),
        format!("{}/{}", row.count_a, row.count_b),
        figure(row.value),
        figure(row.low),
        figure(row.high),
        match row.verdict {
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::NoDifferenceShown => "not shown",
        }
        .to_owned(),
    ]
}

fn format_finite(unit: Unit, value: f64) -> String {
    if value.is_finite() {
        unit.with_unit(value)
    } else {
        "never".into()
    }
}

/// Lines below the tables: what only one run has, and how their environments differ.
pub fn comparison_remarks(comparison: &Comparison) -> Vec<String> {
    let only = [("A", &comparison.only_a), ("B", &comparison.only_b)]
        .into_iter()
        .filter(|(_, only)| !only.is_empty())
        .map(|(name, only)| format!("only in {name}: {}", only.join(", ")));
    let notes = comparison.notes.iter().map(|note| format!("note: {note}"));
    only.chain(notes).collect()
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
