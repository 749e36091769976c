//! `thalweg-lab sim run`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use thalweg_sim::Scenario;
use thalweg_sim::scenario::Setting;
use thalweg_terminal::kinds::{self, Kind};
use thalweg_terminal::{Failure, Format, output};
use thalweg_units::file::replace_file;

use super::batch::{Batch, Common, Runs, run_batch};
use super::{document, report};

#[derive(Debug, Args)]
pub struct Options {
    /// Scenario files.
    #[arg(required = true, value_name = "FILE")]
    scenarios: Vec<PathBuf>,
    /// A key of all scenario files with another value, such as hosts.linux.offload=false;
    /// repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    #[command(flatten)]
    common: Common,
    /// Directory for results.json and report.html; several scenarios have one each below it.
    /// Default: none.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(format: &Format, options: &Options) -> Result<()> {
    let scenarios = (options.scenarios.iter())
        .map(|file| {
            kinds::expect_kind(file, Kind::SimScenario)?;
            let scenario = Scenario::load_with(file, &options.settings)?;
            Ok(as_expected(scenario, &options.settings))
        })
        .collect::<Result<Vec<_>>>()?;
    for (place, scenario) in scenarios.iter().enumerate() {
        if scenarios[..place]
            .iter()
            .any(|other| other.name == scenario.name)
        {
            bail!("two of the scenarios are called {:?}", scenario.name);
        }
    }
    // Directories are created before the runs: an error after hours would be too late.
    let directories = match &options.out {
        None => Vec::new(),
        Some(out) => report_directories(out, &scenarios)?,
    };
    let batch = run_batch(scenarios, &options.common, options.out.is_some())?;
    for (runs, directory) in batch.scenarios.iter().zip(&directories) {
        let only = std::slice::from_ref(runs);
        let results = serde_json::to_string_pretty(&document::results_document(only, batch.done)?)?;
        write_file(&directory.join("results.json"), &(results + "\n"))?;
        write_file(&directory.join("report.html"), &report::report_page(runs))?;
    }
    if format.json {
        output::print_json(&document::results_document(&batch.scenarios, batch.done)?)?;
    } else {
        output::print(&batch_text(&batch, &directories))?;
    }
    let (done, total) = batch.done;
    if done < total {
        bail!("interrupted: {done} of {total} runs were done");
    }
    if !batch.scenarios.iter().all(document::all_passed) {
        return Err(Failure::with_code(5, "an expectation was not met").into());
    }
    Ok(())
}

/// The scenario without expectations where settings made another one of it: they are of the file as it is.
fn as_expected(mut scenario: Scenario, settings: &[Setting]) -> Scenario {
    if !settings.is_empty() && !scenario.expect.is_empty() {
        scenario.expect.clear();
        eprintln!(
            "thalweg-lab: note: {}: its expectations are not checked, as --set makes another scenario of it",
            scenario.name
        );
    }
    scenario
}

fn report_directories(out: &Path, scenarios: &[Scenario]) -> Result<Vec<PathBuf>> {
    (scenarios.iter())
        .map(|scenario| {
            let directory = match scenarios {
                [_] => out.to_owned(),
                _ => out.join(&scenario.name),
            };
            fs::create_dir_all(&directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
            Ok(directory)
        })
        .collect()
}

fn write_file(file: &Path, text: &str) -> Result<()> {
    replace_file(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn batch_text(batch: &Batch, directories: &[PathBuf]) -> String {
    let mut text = String::new();
    for (place, runs) in batch.scenarios.iter().enumerate() {
        if place > 0 {
            text.push('\n');
        }
        text.push_str(&scenario_text(runs));
        if let Some(directory) = directories.get(place) {
            let file = directory.join("report.html");
            text.push_str(&format!("{}\n", file.display()));
        }
    }
    text
}

fn scenario_text(runs: &Runs) -> String {
    let scenario = &runs.scenario;
    let mut text = format!("{}: {}\n", scenario.name, scenario.description);
    for table in document::result_tables(runs) {
        let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
        let numbers: Vec<usize> = (1..header.len()).collect();
        text.push_str(&format!("\n{}\n", table.title));
        text.push_str(&output::table(&header, &numbers, table.rows));
    }
    for check in document::check_expectations(runs) {
        text.push_str(&format!("{}\n", check.as_sentence()));
    }
    if let Some(sentence) = document::null_sentence(runs) {
        text.push_str(&format!("{sentence}\n"));
    }
    text
}
