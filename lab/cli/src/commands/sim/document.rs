//! Results of a batch of runs: tables for readers, JSON for programs.

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};
use thalweg_report::Table;
use thalweg_sim::expect::{self, Expectation, Verdict};
use thalweg_sim::metrics::{Slowdown, Summary};
use thalweg_sim::{Outcome, Statistic};

use super::batch::{ControllerRuns, Runs};

/// Version of the document; raised for incompatible changes.
const FORMAT: u32 = 1;
/// Name and version of the document: docs/reference/sim-results.schema.json.
const SCHEMA: &str = "thalweg/sim-results/1";

/// An expectation and its verdict.
#[derive(Serialize)]
pub struct Check {
    /// The expectation.
    pub expectation: Expectation,
    /// In words.
    pub text: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The measured value; none if nothing was measured.
    pub measured: Option<Summary>,
    /// Number of seeds that were run.
    #[serde(skip)]
    seeds: usize,
}

impl Check {
    pub fn as_sentence(&self) -> String {
        let measured = match self.measured_text(self.expectation.statistic.unit_suffix()) {
            Some(measured) => format!(", measured {measured}"),
            None => String::new(),
        };
        format!("{}: {}{measured}", self.verdict, self.text)
    }

    /// The measured value for readers, with the unit; none if nothing was measured.
    pub fn measured_text(&self, unit: &str) -> Option<String> {
        let summary = self.measured.as_ref()?;
        let coverage = seed_coverage(summary, self.seeds);
        Some(format!("{}{unit}{coverage}", summary_cell(summary)))
    }
}

/// The scenario's expectations against its runs.
pub fn check_expectations(runs: &Runs) -> Vec<Check> {
    (runs.scenario.expect.iter())
        .map(|expectation| check_one(expectation, runs_of(runs, &expectation.cc)))
        .collect()
}

/// The expectations of the others against the runs of the controller that does nothing; none unless
/// that one ran.
pub fn null_checks(runs: &Runs) -> Vec<Check> {
    let Some(null) = runs_of(runs, expect::NULL) else {
        return Vec::new();
    };
    let expectations = runs.scenario.expect.iter();
    (expectations.filter(|expectation| expectation.cc != expect::NULL))
        .map(|expectation| check_one(expectation, Some(null)))
        .collect()
}

fn runs_of<'a>(runs: &'a Runs, controller: &str) -> Option<&'a ControllerRuns> {
    let mut complete = runs.controllers.iter().filter(|one| one.complete);
    complete.find(|one| one.controller.to_string() == controller)
}

fn check_one(expectation: &Expectation, found: Option<&ControllerRuns>) -> Check {
    let measured = found.map(|one| one.statistic_summary(expectation.statistic));
    let runs = found.map(|one| one.runs.as_slice()).unwrap_or_default();
    let verdict = if runs.iter().any(|run| did_worst(expectation.statistic, run)) {
        // The mean of the other seeds keeps no bound.
        Verdict::Missed
    } else {
        expectation.judge_summary(measured.as_ref().map(Option::as_ref))
    };
    Check {
        text: expectation.to_string(),
        verdict,
        measured: measured.flatten(),
        seeds: runs.len(),
        expectation: expectation.clone(),
    }
}

/// Whether a run lacks the statistic because it did worst. A run may also lack it by chance: no
/// interruption ended early enough, no flow came.
fn did_worst(statistic: Statistic, run: &Outcome) -> bool {
    let is_worst = match statistic {
        Statistic::Recovery => run.long_short.is_some_and(|one| one.not_recovered > 0),
        Statistic::SlowdownP50 | Statistic::SlowdownP99 => {
            run.offered.is_none_or(|one| one.unfinished > 0)
        }
        _ => true,
    };
    is_worst && statistic.value_in(run).is_none()
}

/// A sentence about the bounds that a controller that does nothing misses; none unless that one ran.
pub fn null_sentence(runs: &Runs) -> Option<String> {
    let checks = null_checks(runs);
    let met = met_by_null(runs, &checks);
    if !met.is_empty() {
        let (null, met) = (expect::NULL, met.join(", "));
        return Some(format!(
            "FAILED: {null}, which does nothing, meets every bound of {met}."
        ));
    }
    let missed = checks
        .iter()
        .filter(|check| check.verdict == Verdict::Missed);
    let (missed, all) = (missed.count(), checks.len());
    (all > 0).then(|| {
        let null = expect::NULL;
        format!("{null}, which does nothing, misses {missed} of {all} bounds of others.")
    })
}

/// Controllers of which no bound tells that they do more than nothing, unless the scenario claims no
/// more.
fn met_by_null<'a>(runs: &Runs, checks: &'a [Check]) -> Vec<&'a str> {
    if runs.scenario.only_bounds_harm {
        return Vec::new();
    }
    let verdicts = checks.iter();
    let verdicts: Vec<_> = verdicts
        .map(|check| (&check.expectation, check.verdict))
        .collect();
    expect::met_by_null(&verdicts)
}

/// Whether no expectation was missed, and each controller with some is told from one that does
/// nothing.
pub fn all_passed(runs: &Runs) -> bool {
    (check_expectations(runs).iter()).all(|check| check.verdict != Verdict::Missed)
        && met_by_null(runs, &null_checks(runs)).is_empty()
}

/// The statistics that a scenario's runs have.
pub fn measured_statistics(runs: &Runs) -> Vec<Statistic> {
    (Statistic::ALL.iter().copied())
        .filter(|statistic| runs.scenario.gives(*statistic))
        .collect()
}

/// Mean and, for several runs, standard deviation. The mean has three digits, the deviation the
/// same decimals.
fn summary_cell(summary: &Summary) -> String {
    let mean = format_number(summary.mean);
    if summary.runs == 1 {
        return mean;
    }
    match decimals_for(summary.mean) {
        Some(decimals) if summary.mean != 0.0 => {
            format!("{mean} ± {:.*}", decimals.max(1), summary.deviation)
        }
        _ => format!("{mean} ± {}", format_number(summary.deviation)),
    }
}

fn format_number(value: f64) -> String {
    match decimals_for(value) {
        _ if value == 0.0 => "0".into(),
        Some(decimals) => format!("{value:.decimals$}"),
        None => format!("{value:.1e}"),
    }
}

/// Number of decimals for three digits; none if a power of ten is written instead.
fn decimals_for(value: f64) -> Option<usize> {
    match value.abs() {
        v if v > 0.0 && v < 1e-3 => None,
        v if v < 0.0995 => Some(4),
        v if v < 9.95 => Some(2),
        v if v < 99.95 => Some(1),
        _ => Some(0),
    }
}

/// How many of the seeds have a statistic, in words behind it; empty where all do.
fn seed_coverage(summary: &Summary, seeds: usize) -> String {
    if summary.runs == seeds {
        return String::new();
    }
    format!(" ({} of {seeds} seeds)", summary.runs)
}

/// Figures by controller, and slowdowns by size if flows end.
pub fn result_tables(runs: &Runs) -> Vec<Table> {
    let statistics = measured_statistics(runs);
    let mut header = vec!["controller".to_owned()];
    header.extend(
        statistics
            .iter()
            .map(|statistic| statistic.column_heading().to_owned()),
    );
    let rows = (runs.controllers.iter())
        .map(|one| {
            let mut row = vec![one.controller.to_string()];
            row.extend(statistics.iter().map(
                |statistic| match one.statistic_summary(*statistic) {
                    None => "–".to_owned(),
                    Some(summary) => {
                        summary_cell(&summary) + &seed_coverage(&summary, one.runs.len())
                    }
                },
            ));
            row
        })
        .collect();
    let mut tables = vec![Table {
        title: "Mean ± standard deviation over the seeds".into(),
        header,
        rows,
    }];
    if runs.scenario.workload.gives(Statistic::SlowdownP50) {
        tables.push(slowdown_table(runs));
    }
    tables
}

fn slowdown_table(runs: &Runs) -> Table {
    let mut rows = Vec::new();
    for one in &runs.controllers {
        for (key, buckets) in by_size(&one.runs) {
            let flows: u64 = buckets.iter().map(|bucket| bucket.flows).sum();
            let mean = |of: fn(&Slowdown) -> f64| {
                let values: Vec<f64> = buckets.iter().map(|bucket| of(bucket)).collect();
                Summary::from_values(&values)
                    .map_or_else(String::new, |summary| summary_cell(&summary))
            };
            rows.push(vec![
                one.controller.to_string(),
                key,
                flows.to_string(),
                mean(|bucket| bucket.p50),
                mean(|bucket| bucket.p95),
                mean(|bucket| bucket.p99),
                mean(|bucket| bucket.p999),
            ]);
        }
    }
    Table {
        title: "Slowdown of flows by size: completion time over that of the flow alone".into(),
        header: ["controller", "size", "flows", "p50", "p95", "p99", "p99.9"]
            .map(str::to_owned)
            .into(),
        rows,
    }
}

/// The runs' slowdowns grouped by size, in order; those of all flows last.
fn by_size(runs: &[Outcome]) -> Vec<(String, Vec<&Slowdown>)> {
    let mut sizes: Vec<(u64, Option<u64>)> = (runs.iter())
        .flat_map(|run| &run.slowdowns)
        .map(|one| (one.above_bytes, one.up_to_bytes))
        .collect();
    // All flows are (0, none): sorted to the end.
    sizes.sort_unstable_by_key(|(above, up_to)| (*above == 0 && up_to.is_none(), *above));
    sizes.dedup();
    (sizes.into_iter())
        .map(|size| {
            let same = (runs.iter())
                .flat_map(|run| &run.slowdowns)
                .filter(|one| (one.above_bytes, one.up_to_bytes) == size)
                .collect();
            (size_name(size), same)
        })
        .collect()
}

fn size_name((above, up_to): (u64, Option<u64>)) -> String {
    let short = |bytes: u64| match bytes {
        0..1_000_000 => format!("{} kB", bytes / 1_000),
        _ => format!("{} MB", bytes / 1_000_000),
    };
    match (above, up_to) {
        (0, None) => "all".into(),
        (_, Some(bytes)) => format!("≤ {}", short(bytes)),
        (above, None) => format!("> {}", short(above)),
    }
}

/// The machine-readable document. It has no data on this machine or on time, so that the same runs
/// give the same bytes.
pub fn results_document(scenarios: &[Runs], (done, total): (usize, usize)) -> Result<Value> {
    let statistics: Map<String, Value> = (Statistic::ALL.iter())
        .map(|one| {
            let definition = json!({
                "title": one.column_heading(), "unit": one.unit_suffix().trim(), "description": one.description(),
            });
            (one.key().to_owned(), definition)
        })
        .collect();
    Ok(json!({
        "schema": SCHEMA,
        "format": FORMAT,
        "passed": done == total && scenarios.iter().all(all_passed),
        "interrupted": done < total,
        "statistics": statistics,
        "scenarios": scenarios.iter().map(scenario_document).collect::<Result<Vec<_>>>()?,
    }))
}

fn scenario_document(runs: &Runs) -> Result<Value> {
    let controllers = (runs.controllers.iter())
        .map(|one| controller_document(runs, one))
        .collect::<Result<Vec<_>>>()?;
    let mut value = json!({
        "scenario": runs.scenario,
        "checks": check_expectations(runs),
        "controllers": controllers,
    });
    let null = null_checks(runs);
    if !null.is_empty() {
        value["null_checks"] = serde_json::to_value(null)?;
    }
    Ok(value)
}

fn controller_document(runs: &Runs, one: &ControllerRuns) -> Result<Value> {
    let summary: Map<String, Value> = measured_statistics(runs)
        .into_iter()
        .map(|statistic| {
            Ok((
                statistic.key().to_owned(),
                serde_json::to_value(one.statistic_summary(statistic))?,
            ))
        })
        .collect::<Result<_>>()?;
    let outcomes = (one.runs.iter())
        .map(|run| {
            let mut value = serde_json::to_value(run)?;
            if let Some(object) = value.as_object_mut() {
                // There may be millions of entries; `slowdowns` sums them up.
                object.remove("completions");
                if runs.scenario.series.is_none() {
                    object.remove("series");
                }
            }
            Ok(value)
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(json!({
        "controller": one.controller.to_string(),
        "parameters": one.controller.parameters(),
        "summary": summary,
        "runs": outcomes,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_as_fine_as_their_means() {
        let summary = |mean, deviation| Summary {
            mean,
            deviation,
            least: mean,
            most: mean,
            runs: 5,
        };
        assert_eq!(summary_cell(&summary(99.99, 3.7e-6)), "100 ± 0.0");
        assert_eq!(summary_cell(&summary(83.27, 1.449)), "83.3 ± 1.4");
        assert_eq!(summary_cell(&summary(0.6123, 3.2e-7)), "0.61 ± 0.00");
        assert_eq!(summary_cell(&summary(8e-7, 1.25e-8)), "8.0e-7 ± 1.2e-8");
        assert_eq!(summary_cell(&summary(0.0, 0.0)), "0 ± 0");
        let one = Summary {
            runs: 1,
            ..summary(12.34, 0.0)
        };
        assert_eq!(summary_cell(&one), "12.3");
    }
}
