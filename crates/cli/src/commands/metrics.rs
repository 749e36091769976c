//! `thalweg metrics`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use thalweg_terminal::output;
use thalweg_units::file::Draft;

use crate::options::Global;

/// Where to.
#[derive(Debug, Args)]
pub struct Options {
    /// File to write, whole or not at all, for node_exporter's textfile collector. Default: standard
    /// output.
    file: Option<PathBuf>,
    /// Figures of the whole fleet instead of this agent's. One agent is enough to ask.
    #[arg(long)]
    fleet: bool,
}

/// Writes the agent's figures as OpenMetrics text.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    // Nothing is printed unless it is complete.
    let mut text = Vec::new();
    let resource = match options.fleet {
        true => "/v1/fleet/metrics",
        false => "/metrics",
    };
    global.agent_client()?.get_parts(resource, |part| {
        text.extend_from_slice(part);
        Ok(())
    })?;
    let Some(path) = &options.file else {
        return output::write_bytes(&text);
    };
    let written = Draft::new(path, 0o644).and_then(|draft| draft.replace(&text));
    written.with_context(|| format!("cannot write {}", path.display()))
}
