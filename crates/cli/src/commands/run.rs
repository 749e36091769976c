//! `thalweg run`.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use thalweg_agent::config::{Config, ConfigError};
use thalweg_learner::Mode;
use thalweg_terminal::{Failure, journal};
use thalweg_units::printable;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::options::{Global, cgroup_directory};

/// Options that override the configuration.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// cgroup whose connections are reached: system.slice, or its directory; "auto": the whole
    /// machine.
    ///
    /// Overrides `cgroup` of the configuration.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// The algorithm: thalweg or classic.
    ///
    /// Overrides `mode` of the configuration.
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<Mode>,
    /// Decide, log and score, but set nothing on any connection.
    ///
    /// Overrides `dry_run` of the configuration.
    #[arg(long)]
    dry_run: bool,
    /// Give advice only: measure what runs, and set nothing but trials on this share of the hosts,
    /// drawn anew each hour (0 to 1; 0: none).
    ///
    /// Overrides `advise.only` of the configuration, and with FRACTION `advise.trials`. `thalweg
    /// advise` shows what was found.
    #[arg(long, value_name = "FRACTION", num_args = 0..=1, value_parser = parse_fraction)]
    #[arg(conflicts_with = "dry_run")]
    advise: Option<Option<f64>>,
}

fn parse_fraction(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|it| (0.0..=1.0).contains(it));
    number.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    thalweg_agent::store::parse_mode(text).ok_or_else(|| "expected thalweg or classic".to_owned())
}

impl Options {
    /// The configuration, with what the command line sets in effect.
    fn effective_config(&self, global: &Global) -> Result<Config> {
        let mut config = global.effective_config().map_err(|error| {
            match error.downcast_ref::<ConfigError>() {
                Some(fault) if fault.may_pass() => error,
                _ => unusable_configuration(format!("{error:#}")),
            }
        })?;
        match &self.cgroup {
            Some(path) if path.as_os_str() == "auto" => config.cgroup = None,
            Some(path) => {
                let directory = cgroup_directory(path).context("--cgroup")?;
                config.cgroup = Some(std::path::absolute(directory)?);
            }
            None => {}
        }
        if let Some(mode) = self.mode {
            config.mode = mode;
        }
        config.dry_run |= self.dry_run;
        if let Some(trials) = self.advise {
            config.advise.only = true;
            config.advise.trials = trials.unwrap_or(config.advise.trials);
        }
        let checked = config.advise.check(config.mode, config.dry_run);
        checked.map_err(|(found, expected)| {
            unusable_configuration(format!("advise.only: found {found}, expected {expected}"))
        })?;
        Ok(config)
    }
}

/// A configuration that the agent cannot use, however often it is started: EX_CONFIG of sysexits(3).
/// systemd shows its name, and the unit does not start again.
fn unusable_configuration(why: String) -> anyhow::Error {
    Failure::with_code(78, why).into()
}

/// Runs the agent in the foreground.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let config = options.effective_config(global)?;
    start_logging();
    let (global, options) = (global.clone(), options.clone());
    let ran = thalweg_agent::run::run(config, Box::new(move || options.effective_config(&global)));
    ran.map_err(|error| match error.downcast_ref::<ConfigError>() {
        None => error,
        Some(fault) if fault.may_pass() => error,
        _ => unusable_configuration(format!("{error:#}")),
    })
}

/// The filter of a text; `None`: it has faults. Spans and fields, in brackets, would be part of a
/// target's name.
fn parse_filter(text: &str) -> Option<Targets> {
    text.parse().ok().filter(|_| !text.contains(['[', '{']))
}

/// Logs to the journal, with fields and levels, where standard error goes there anyway; else to
/// standard error. `RUST_LOG` sets the filter, by default `info` and above, but nothing of the NATS client:
/// the agent tells of its faults.
fn start_logging() {
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    let default = "info,async_nats=off";
    let text = if asked.is_empty() { default } else { &asked };
    let parsed = parse_filter(text);
    let is_faulty = parsed.is_none();
    let filter: Targets = parsed.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let journal = journal::is_standard_error()
        // A container may have the stream and not the socket.
        .then(|| tracing_journald::layer().ok())
        .flatten()
        .map(|journal| journal.with_field_prefix(Some("THALWEG".to_owned())));
    let standard_error = journal.is_none().then(|| {
        tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            // Messages have in words what the journal has in fields, too.
            .fmt_fields(debug_fn(|writer, field, value| match field.name() {
                "message" => writer.write_str(&printable(&format!("{value:?}"))),
                _ => Ok(()),
            }))
    });
    tracing_subscriber::registry()
        .with(filter)
        .with(journal)
        .with(standard_error)
        .init();
    if is_faulty {
        thalweg_terminal::output::print_warning(&format!(
            "RUST_LOG: found {asked:?}, expected levels by target, such as {default}"
        ));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn filter_has_targets_and_levels_alone() {
        assert!(super::parse_filter("info,thalweg_agent::discovery=debug").is_some());
        for faulty in ["a=inof", "info[", "a[span]=debug", "[{host=x}]"] {
            assert!(super::parse_filter(faulty).is_none(), "{faulty}");
        }
    }
}
