//! `thalweg`: the agent, the questions one can ask it, and the laboratory.

use std::process::ExitCode;

use clap::Parser;

mod client;
mod commands;
mod failure;
mod options;
mod output;

use options::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

fn dispatch(cli: &Cli) -> anyhow::Result<()> {
    let global = &cli.global;
    match &cli.command {
        Command::Run(options) => commands::run::run(global, options),
        Command::Status => commands::status::run(global),
        Command::Arms => commands::arms::run(global),
        Command::Hosts(options) => commands::hosts::run(global, options),
        Command::Explain(options) => commands::explain::run(global, options),
        Command::Events(options) => commands::events::run(global, options),
        Command::Reset(options) => commands::reset::run(global, options),
        Command::Export(options) => commands::export::run(global, options),
        Command::Import(options) => commands::import::run(global, options),
        Command::Detach => commands::detach::run(global),
        Command::Doctor => commands::doctor::run(global),
        Command::Lab(options) => commands::lab::run(global, options),
        Command::Policy(options) => commands::policy::run(global, options),
        Command::Model(what) => commands::model::run(global, what),
        Command::Link(options) => commands::link::run(global, options),
        Command::Stack(options) => commands::stack::run(global, options),
        Command::Limit(options) => commands::limit::run(global, options),
        Command::Sim(what) => commands::sim::run(global, what),
        Command::Cc(options) => commands::cc::run(global, options),
        Command::Sockops(options) => commands::sockops::run(global, options),
        Command::Manual(options) => commands::manual::run(options),
    }
}
