//! `thalweg run`.

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use thalweg_agent::config::Config;
use thalweg_learner::Mode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::options::{Global, cgroup};

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
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    thalweg_agent::store::parse_mode(text).ok_or_else(|| "expected thalweg or classic".to_owned())
}

impl Options {
    /// The configuration, with what the command line sets in effect.
    fn config(&self, global: &Global) -> Result<Config> {
        let mut config = global.config()?;
        match &self.cgroup {
            Some(path) if path.as_os_str() == "auto" => config.cgroup = None,
            Some(path) => {
                let directory = cgroup(path).context("--cgroup")?;
                config.cgroup = Some(std::path::absolute(directory)?);
            }
            None => {}
        }
        if let Some(mode) = self.mode {
            config.mode = mode;
        }
        config.dry_run |= self.dry_run;
        Ok(config)
    }
}

/// Runs the agent in the foreground.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let config = options.config(global)?;
    log();
    let (global, options) = (global.clone(), options.clone());
    thalweg_agent::run::run(config, Box::new(move || options.config(&global)))
}

/// Logs to the journal, with fields and levels, where standard error goes there anyway; else to
/// standard error. `RUST_LOG` sets the filter, by default `info` and above.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let journal = is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref())
        // A container may have the stream and not the socket.
        .then(|| tracing_journald::layer().ok())
        .flatten()
        .map(|journal| journal.with_field_prefix(Some("THALWEG".to_owned())));
    let standard_error = journal.is_none().then(|| {
        tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
    });
    tracing_subscriber::registry()
        .with(filter)
        .with(journal)
        .with(standard_error)
        .init();
}

/// Whether standard error is the stream that the journal gave this process, named by device and
/// inode (systemd.exec(5), `JOURNAL_STREAM`).
fn is_journal(stream: Option<&str>) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else {
        return false;
    };
    let Ok(descriptor) = std::io::stderr().as_fd().try_clone_to_owned() else {
        return false;
    };
    let found = File::from(descriptor);
    found
        .metadata()
        .is_ok_and(|found| device.parse() == Ok(found.dev()) && inode.parse() == Ok(found.ino()))
}
