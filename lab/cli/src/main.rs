//! `thalweg-lab`: the laboratory, the simulator, emulated paths and stacks.

use std::process::ExitCode;

mod cli;
mod commands;

use clap::FromArgMatches as _;
use cli::{Cli, Command};
use thalweg_terminal::{Format, completions, failure, manual};
use thalweg_units::Faults;

fn main() -> ExitCode {
    thalweg_terminal::set_program("thalweg-lab");
    let parsed = cli::command_line().try_get_matches();
    let mut cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return failure::report_usage(&error),
    };
    cli.format.apply(false);
    match dispatch_command(&cli.format, &cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report_with(&error, cli.format.json, scenario_faults),
    }
}

/// The faults of a scenario, if they are the error.
fn scenario_faults(error: &anyhow::Error) -> Option<&Faults> {
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(thalweg_lab::Error::Scenario(faults)), _)
        | (_, Some(thalweg_sim::scenario::LoadError::Scenario(faults))) => Some(faults),
        _ => None,
    }
}

fn dispatch_command(format: &Format, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Run(options) => commands::run::run(format, options),
        Command::List(options) => commands::list::run(format, options),
        Command::Compare(options) => commands::compare::run(format, options),
        Command::Kernels(what) => commands::kernels::run(format, what),
        Command::BuildKernel(options) => commands::build_kernel::run(format, options),
        Command::Sim(what) => commands::sim::run(format, what),
        Command::Model(what) => commands::model::run(format, what),
        Command::Link(options) => commands::link::run(format, options),
        Command::Stack(options) => commands::stack::run(format, options),
        Command::Doctor => commands::doctor::run(format),
        Command::Schema(options) => commands::schema::run(options),
        Command::Completions(options) => completions::run(options, cli::command_line()),
        Command::Guest { work } => Ok(thalweg_lab::backend::run_inside(work)?),
        Command::Timers(options) => commands::timers::run(options),
        Command::Worker(what) => commands::worker::run(what),
        Command::RemoveAll => commands::remove_all::run(),
        Command::Manual(options) => manual::run(options, cli::command_line(), &cli::PAGES),
    }
}
