//! The files of a run: `results.json`, `report.html`, and iperf3's own output.

mod finished;
mod html;
mod metrics;
mod plots;
mod svg;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thalweg_units::file::replace_file;

pub use finished::Finished;

use crate::error::Error;
use crate::measure::Measure;
use crate::outcome::{Environment, FORMAT, ModeOutcome, Outcome, SCHEMA, ScenarioOutcome};
use crate::query;
use crate::scenario::Scenario;
use crate::statistic::Statistic;
use crate::summary;

/// The default parent of reports.
pub(crate) const DEFAULT: &str = "lab-results";

/// The directory of each scenario's report.
pub(crate) fn report_directories(
    out: Option<&Path>,
    scenarios: &[Scenario],
    started: &str,
) -> Result<Vec<PathBuf>, Error> {
    let stamp: String = started
        .chars()
        .filter(|c| !matches!(c, ':' | '-'))
        .collect();
    let mut directories: Vec<PathBuf> = Vec::new();
    for scenario in scenarios {
        let wanted = match out {
            Some(out) if scenarios.len() == 1 => out.to_owned(),
            Some(out) => out.join(&scenario.name),
            None => Path::new(DEFAULT).join(format!("{}-{stamp}", scenario.name)),
        };
        let mut directory = wanted.clone();
        let mut copies = 1;
        // By default a new one, and never one for two scenarios.
        while directories.contains(&directory) || (out.is_none() && directory.exists()) {
            copies += 1;
            let mut name = wanted.clone().into_os_string();
            name.push(format!(".{copies}"));
            directory = name.into();
        }
        fs::create_dir_all(&directory).map_err(Error::io("cannot create", &directory))?;
        directories.push(directory);
    }
    Ok(directories)
}

/// The machine-readable document of a whole run.
///
/// # Errors
/// [`Error::Process`] if a figure cannot be written as JSON.
pub fn run_document(outcome: &Outcome) -> Result<Value, Error> {
    let scenarios = outcome
        .scenarios
        .iter()
        .map(scenario_json)
        .collect::<Result<Vec<_>, _>>()?;
    build_document(&outcome.environment, outcome.has_passed(), scenarios)
}

fn build_document(
    environment: &Environment,
    passed: bool,
    scenarios: Vec<Value>,
) -> Result<Value, Error> {
    Ok(json!({
        "schema": SCHEMA,
        "format": FORMAT,
        "passed": passed,
        "environment": to_json(environment)?,
        "definitions": statistic_definitions(),
        "scenarios": scenarios,
    }))
}

fn scenario_json(outcome: &ScenarioOutcome) -> Result<Value, Error> {
    let mut document = to_json(outcome)?;
    document["passed"] = outcome.has_passed().into();
    document["sentences"] = summary::scenario_sentences(outcome).into();
    let views = outcome.by_host();
    if views.is_empty() {
        document["best_fixed"] = to_json(outcome.best_fixed().map(|best| &best.mode))?;
    } else {
        let best = views.iter().map(|view| {
            let mode = to_json(view.best_fixed().map(|best| &best.mode))?;
            Ok((view.scenario.name.clone(), mode))
        });
        document["best_fixed_by_host"] = Value::Object(best.collect::<Result<_, Error>>()?);
        let best = query::best_setting(&outcome.modes);
        document["best_fixed"] = to_json(best.map(|(best, _)| &best.mode))?;
    }
    for (index, mode) in outcome.modes.iter().enumerate() {
        document["modes"][index]["summary"] = if views.is_empty() {
            summary_json(outcome, mode)?
        } else {
            hosts_json(outcome, mode, &views)?
        };
    }
    // Figures of several hosts' paths are not mixed.
    if views.is_empty() {
        for (index, of) in metrics::by_round(&outcome.modes).into_iter().enumerate() {
            document["modes"][index]["by_round"] = of.into();
        }
    }
    Ok(document)
}

/// Definitions of the statistics and measures, for readers of the document.
fn statistic_definitions() -> Value {
    let statistics: serde_json::Map<String, Value> = Statistic::ALL
        .into_iter()
        .map(|one| {
            let definition = json!({
                "title": one.reader_name(), "unit": one.unit(), "better": one.better(),
                "description": one.description(),
            });
            (one.key().to_owned(), definition)
        })
        .collect();
    let measures: serde_json::Map<String, Value> = Measure::ALL
        .into_iter()
        .map(|one| {
            let definition = json!({
                "title": one.title(), "unit": one.unit(), "better": one.better(),
                "description": one.description(),
            });
            (one.key().to_owned(), definition)
        })
        .collect();
    json!({ "statistics": statistics, "measures": measures })
}

/// The figures of a mode towards several hosts: a summary each, and what can be said
/// of all together.
fn hosts_json(
    outcome: &ScenarioOutcome,
    mode: &ModeOutcome,
    views: &[ScenarioOutcome],
) -> Result<Value, Error> {
    let mut hosts = serde_json::Map::new();
    for view in views {
        if let Some(here) = view.mode_outcome(&mode.mode) {
            hosts.insert(view.scenario.name.clone(), summary_json(view, here)?);
        }
    }
    Ok(json!({
        "statistics": metrics::mode_statistics(&Statistic::ALL, &outcome.modes, mode, None),
        "failures": mode.failure_count(),
        "hosts": hosts,
    }))
}

fn summary_json(outcome: &ScenarioOutcome, mode: &ModeOutcome) -> Result<Value, Error> {
    let mut summary = to_json(mode.mode_summary())?;
    if summary.is_object() {
        summary["statistics"] =
            metrics::mode_statistics(&Statistic::ALL, &outcome.modes, mode, None);
        let classes = metrics::class_statistics(&Statistic::ALL, &outcome.modes, mode);
        if !classes.is_empty() {
            summary["classes"] = classes.into();
        }
        summary["arm_shares"] = to_json(mode.arm_shares(plots::PARTS))?;
        summary["failures"] = mode.failure_count().into();
        summary["arms"] = mode.arm_counts().into_iter().collect();
    }
    Ok(summary)
}

fn to_json(item: impl serde::Serialize) -> Result<Value, Error> {
    serde_json::to_value(item).map_err(|error| Error::system("cannot write as JSON")(error.into()))
}

/// Writes a scenario's `results.json` and `report.html` into its directory.
pub(crate) fn write_report(
    environment: &Environment,
    outcome: &ScenarioOutcome,
) -> Result<(), Error> {
    let mut scenario = scenario_json(outcome)?;
    // The path must stay right if the file moves.
    scenario["report"] = ".".into();
    let document = build_document(environment, outcome.has_passed(), vec![scenario])?;
    let file = outcome.report.join("results.json");
    replace_file(&file, format!("{document:#}\n")).map_err(Error::io("cannot write", file))?;
    let file = outcome.report.join("report.html");
    replace_file(&file, html::scenario_page(environment, outcome))
        .map_err(Error::io("cannot write", file))
}
