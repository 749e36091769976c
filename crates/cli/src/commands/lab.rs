//! `thalweg lab`.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use thalweg_lab::Mode;

use crate::failure::Failure;
use crate::options::Global;
use crate::output;

/// What to do in the laboratory.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    command: Lab,
}

#[derive(Debug, Subcommand)]
enum Lab {
    /// Run scenarios; exit code 5 if one of their expectations is not met.
    ///
    /// Each mode gets a pair of network namespaces of its own, so that neither the machine's
    /// connections nor its agent are touched. Needs root, iproute2 and iperf3.
    Run(Run),
    /// Repeat the published results and write them beside ours.
    ///
    /// Results are kept: an interrupted call goes on where it stopped.
    Tables(Tables),
}

#[derive(Debug, Args)]
struct Tables {
    /// List of the tables.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "scenarios/published/tables.toml"
    )]
    tables: PathBuf,
    /// Where results are kept.
    #[arg(long, value_name = "DIR", default_value = "lab-results/published")]
    cache: PathBuf,
    /// Page to write.
    #[arg(long, value_name = "FILE", default_value = "docs/results.md")]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct Run {
    /// Scenario files, run one after the other.
    #[arg(required = true, value_name = "FILE")]
    scenarios: Vec<PathBuf>,
    /// What to measure: baseline, fixed (each congestion control on its own), fixed:NAME,
    /// classic, thalweg; may be given several times. Default: baseline, fixed, classic, thalweg.
    #[arg(long, value_name = "MODE")]
    mode: Vec<Mode>,
    /// Connections a mode. Default: as the scenario says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    connections: Option<u32>,
    /// Modes without an agent run in every Nth round only.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    reference_every: u32,
    /// Directory of the report. Default: a new one below lab-results.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Measures congestion controls on this machine's own TCP stack.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    match &options.command {
        Lab::Run(run) => run_scenarios(global, run),
        Lab::Tables(tables) => make_tables(tables),
    }
}

fn make_tables(tables: &Tables) -> Result<()> {
    let failures = thalweg_lab::published::make(&thalweg_lab::published::Options {
        tables: tables.tables.clone(),
        cache: tables.cache.clone(),
        page: tables.out.clone(),
        binary: std::env::current_exe().context("cannot tell where this program is")?,
        progress: std::io::stderr().is_terminal(),
    })?;
    output::print(&format!("{}\n", tables.out.display()))?;
    if failures > 0 {
        bail!(
            "{failures} runs could not be made; {} says why",
            tables.out.display()
        );
    }
    Ok(())
}

fn run_scenarios(global: &Global, run: &Run) -> Result<()> {
    let defaults = thalweg_lab::Options::default();
    let settings = thalweg_lab::Options {
        scenarios: run.scenarios.clone(),
        modes: if run.mode.is_empty() {
            defaults.modes.clone()
        } else {
            run.mode.clone()
        },
        connections: run.connections,
        reference_every: run.reference_every,
        out: run.out.clone(),
        agent_binary: std::env::current_exe().context("cannot tell where this program is")?,
        progress: std::io::stderr().is_terminal(),
        ..defaults
    };
    let outcome = thalweg_lab::run(&settings)?;
    if global.json {
        output::print_json(&thalweg_lab::report::json(&outcome)?)?;
    } else {
        let texts: Vec<String> = outcome
            .scenarios
            .iter()
            .map(thalweg_lab::table::scenario)
            .collect();
        output::print(&(texts.join("\n") + "\n"))?;
    }
    if outcome.passed() {
        Ok(())
    } else {
        Err(Failure::Expectation.into())
    }
}
