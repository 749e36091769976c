//! The files of a run: `results.json`, `report.html`, and iperf3's own output.

mod html;
mod svg;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::Error;
use crate::outcome::{Environment, FORMAT, ModeOutcome, Outcome, ScenarioOutcome};
use crate::scenario::Scenario;

/// Where reports go unless the caller says otherwise.
pub(crate) const DEFAULT: &str = "lab-results";

/// The directory of each scenario's report.
pub(crate) fn directories(
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
        // A fresh one by default, and never two scenarios in one.
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
/// [`Error::System`] where a figure cannot be written as JSON.
pub fn json(outcome: &Outcome) -> Result<Value, Error> {
    let scenarios = outcome
        .scenarios
        .iter()
        .map(scenario_json)
        .collect::<Result<Vec<_>, _>>()?;
    Ok(json!({
        "format": outcome.format,
        "passed": outcome.passed(),
        "environment": value(&outcome.environment)?,
        "scenarios": scenarios,
    }))
}

fn scenario_json(outcome: &ScenarioOutcome) -> Result<Value, Error> {
    let mut document = value(outcome)?;
    document["passed"] = outcome.passed().into();
    document["best_fixed"] = value(outcome.best_fixed().map(|best| &best.mode))?;
    for (index, mode) in outcome.modes.iter().enumerate() {
        document["modes"][index]["summary"] = summary_json(mode)?;
    }
    Ok(document)
}

fn summary_json(mode: &ModeOutcome) -> Result<Value, Error> {
    let mut summary = value(mode.summary())?;
    if summary.is_object() {
        summary["failures"] = mode.failures().into();
        summary["arms"] = mode.arms().into_iter().collect();
    }
    Ok(summary)
}

fn value(item: impl serde::Serialize) -> Result<Value, Error> {
    serde_json::to_value(item).map_err(|error| Error::system("cannot write as JSON")(error.into()))
}

/// Writes a scenario's `results.json` and `report.html` into its directory.
pub(crate) fn write(environment: &Environment, outcome: &ScenarioOutcome) -> Result<(), Error> {
    let document = json!({
        "format": FORMAT,
        "passed": outcome.passed(),
        "environment": value(environment)?,
        "scenarios": [scenario_json(outcome)?],
    });
    let file = outcome.report.join("results.json");
    fs::write(&file, format!("{document:#}\n")).map_err(Error::io("cannot write", file))?;
    let file = outcome.report.join("report.html");
    fs::write(&file, html::page(environment, outcome)).map_err(Error::io("cannot write", file))
}
