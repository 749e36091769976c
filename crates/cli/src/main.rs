//! `thalweg`: the agent, and the commands that query it and act on the kernel.

use std::process::ExitCode;

mod cli;
mod client;
mod commands;
mod options;
mod watch;

use clap::FromArgMatches as _;
use cli::{Cli, Command};
use thalweg_terminal::{completions, failure, manual, output};

fn main() -> ExitCode {
    thalweg_terminal::set_program("thalweg");
    thalweg_control::object::silence_libbpf();
    let parsed = cli::command_line().try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, watch::watch_interval(&matches)))
    });
    let (mut cli, interval) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return report_usage(&error),
    };
    cli.global.format.apply(interval.is_some());
    let ended = match interval {
        Some(interval) => watch::run_rounds(&cli.global, interval, || run_command(&cli)),
        None => run_command(&cli),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A command that is no more here does not parse its options.
            let json = cli.global.format.json || failure::has_argument("--json");
            failure::report_error(&error, json)
        }
    }
}

/// Reports arguments that cannot be parsed. For a monitoring system, exit code 2 of `status --check`
/// would be CRITICAL.
fn report_usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && failure::has_argument("status") && failure::has_argument("--check") {
        let line = failure::usage_line(error).replace('|', "/");
        // If standard output is closed, nobody can be told.
        let _ = output::print(&format!("THALWEG UNKNOWN - {line}\n"));
        return ExitCode::from(3);
    }
    failure::report_usage(error)
}

fn run_command(cli: &Cli) -> anyhow::Result<()> {
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
        Command::Feature(list) => commands::feature::run(global, list),
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
        Command::Policy(options) => commands::policy::run(global, options),
        Command::Fleet(what) => commands::fleet::run(global, what),
        Command::Limit(_) => commands::moved::report_limit(),
        Command::Lab(_) => commands::moved::report_laboratory("lab"),
        Command::Sim(_) => commands::moved::report_laboratory("sim"),
        Command::Link(_) => commands::moved::report_laboratory("link"),
        Command::Stack(_) => commands::moved::report_laboratory("stack"),
        Command::Model(_) => commands::moved::report_laboratory("model"),
        Command::Cc(options) => commands::cc::run(global, options),
        Command::Sockops(options) => commands::sockops::run(global, options),
        Command::Schema(options) => commands::schema::run(options),
        Command::Completions(options) => completions::run(options, cli::command_line()),
        Command::Manual(options) => manual::run(options, cli::command_line(), &cli::PAGES),
    }
}
