//! `thalweg`: the agent, the commands that query it, and the laboratory.

use std::process::ExitCode;

mod client;
mod commands;
mod failure;
mod groups;
mod journal;
mod kinds;
mod options;
mod output;
mod watch;

use clap::FromArgMatches as _;
use options::{Cli, Command};

fn main() -> ExitCode {
    thalweg_control::object::silence_libbpf();
    let parsed = groups::command().try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, watch::interval(&matches)))
    });
    let (mut cli, interval) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return failure::report_usage(&error),
    };
    output::choose(match (cli.global.json_lines, interval) {
        (true, _) => output::Json::Lines,
        (false, Some(_)) => output::Json::Line,
        (false, None) => output::Json::Pretty,
    });
    cli.global.json |= cli.global.json_lines;
    let ended = match interval {
        Some(interval) => watch::run(&cli.global, interval, || dispatch(&cli)),
        None => dispatch(&cli),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error, cli.global.json),
    }
}

fn dispatch(cli: &Cli) -> anyhow::Result<()> {
    let global = &cli.global;
    match &cli.command {
        Command::Run(options) => commands::run::run(global, options),
        Command::Status(options) => commands::status::run(global, options),
        Command::Top(options) => commands::top::run(global, options),
        Command::Metrics(options) => commands::metrics::run(global, options),
        Command::Web(options) => commands::web::run(global, options),
        Command::Reload => commands::reload::run(global),
        Command::Arms => commands::arms::run(global),
        Command::Hosts(options) => commands::hosts::run(global, options),
        Command::Networks(options) => commands::networks::run(global, options),
        Command::Windows(options) => commands::windows::run(global, options),
        Command::Clamps(options) => commands::clamps::run(global, options),
        Command::Explain(options) => commands::explain::run(global, options),
        Command::Events(options) => commands::events::run(global, options),
        Command::Replay(options) => commands::replay::run(global, options),
        Command::Gain(options) => commands::gain::run(global, options),
        Command::Advise(options) => commands::advise::run(global, options),
        Command::Reset(options) => commands::reset::run(global, options),
        Command::Export(options) => commands::export::run(global, options),
        Command::Import(options) => commands::import::run(global, options),
        Command::Detach => commands::detach::run(global),
        Command::RemoveAll(options) => commands::remove_all::run(global, options),
        Command::Config(what) => commands::config::run(global, what),
        Command::Doctor => commands::doctor::run(global),
        Command::Lab(options) => commands::lab::run(global, options),
        Command::Policy(options) => commands::policy::run(global, options),
        Command::Fleet(what) => commands::fleet::run(global, what),
        Command::Model(what) => commands::model::run(global, what),
        Command::Link(options) => commands::link::run(global, options),
        Command::Stack(options) => commands::stack::run(global, options),
        Command::Limit(options) => commands::limit::run(options),
        Command::Sim(what) => commands::sim::run(global, what),
        Command::Cc(options) => commands::cc::run(global, options),
        Command::Sockops(options) => commands::sockops::run(global, options),
        Command::Schema(options) => commands::schema::run(options),
        Command::Completions(options) => commands::completions::run(options),
        Command::Manual(options) => commands::manual::run(options),
    }
}
