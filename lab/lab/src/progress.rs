//! Progress of a run: a bar on a terminal, or messages to the process that started the kernel.

use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use thalweg_guest::Channel;

use crate::error::Error;

/// A message from a run in a kernel of its own to the process that started it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(crate) enum Step {
    /// A scenario begins.
    Scenario {
        /// Name of the scenario.
        name: String,
        /// Number of its connections.
        connections: u64,
    },
    /// A connection begins.
    Connection {
        /// Number of connections before it.
        made: u64,
        /// Mode of the connection.
        mode: String,
    },
}

/// Shows the progress of a scenario.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    channel: Option<Channel>,
}

impl Progress {
    /// A bar on standard error, if wanted and if that is a terminal; messages if there is a
    /// channel.
    pub(crate) fn new(
        wanted: bool,
        channel: Option<&Path>,
        name: &str,
        connections: u64,
    ) -> Result<Self, Error> {
        let channel = channel.map(Channel::open).transpose()?;
        let progress = Self {
            bar: progress_bar(wanted, name, connections),
            channel,
        };
        let name = name.to_owned();
        progress.report_step(&Step::Scenario { name, connections });
        Ok(progress)
    }

    /// A connection of a mode begins, after `made` others.
    pub(crate) fn begin_connection(&self, made: u64, mode: String) {
        self.bar.set_position(made);
        self.bar.set_message(mode.clone());
        self.report_step(&Step::Connection { made, mode });
    }

    /// Removes the bar.
    pub(crate) fn remove_bar(&self) {
        self.bar.finish_and_clear();
    }

    fn report_step(&self, step: &Step) {
        if let Some(channel) = &self.channel
            && let Err(error) = channel.send_message(step)
        {
            tracing::warn!("cannot report progress: {error}");
        }
    }
}

/// A bar on standard error; hidden if that is no terminal.
pub(crate) fn progress_bar(wanted: bool, name: &str, length: u64) -> ProgressBar {
    if !wanted {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    let style = "{prefix} [{bar:32}] {pos}/{len} {eta} left  {msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(name.to_owned());
    bar
}
