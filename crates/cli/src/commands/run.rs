//! `thalweg run`.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use thalweg_learner::Mode;
use tracing_subscriber::EnvFilter;

use crate::options::{Global, cgroup};

/// Options that override the configuration.
#[derive(Debug, Args)]
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
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    thalweg_agent::store::parse_mode(text).ok_or_else(|| "expected thalweg or classic".to_owned())
}

/// Runs the agent in the foreground.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let mut config = global.config()?;
    match &options.cgroup {
        Some(path) if path.as_os_str() == "auto" => config.cgroup = None,
        Some(path) => {
            let directory = cgroup(path).context("--cgroup")?;
            config.cgroup = Some(std::path::absolute(directory)?);
        }
        None => {}
    }
    if let Some(mode) = options.mode {
        config.mode = mode;
    }
    config.dry_run |= options.dry_run;
    log();
    thalweg_agent::run::run(config)
}

/// Logs to standard error; `RUST_LOG` sets the filter, by default `info` and above.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
