//! How far a run has come: a bar on a terminal, or messages to whoever started
//! the kernel that it runs in.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// What a kernel of its own tells those who started it, one JSON document a line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(crate) enum Message {
    /// It has booted and the run begins.
    Ready,
    /// A scenario begins.
    Scenario {
        /// Its name.
        name: String,
        /// How many connections it makes.
        connections: u64,
    },
    /// A connection begins.
    Connection {
        /// How many were made before it.
        made: u64,
        /// Whose it is.
        mode: String,
    },
    /// A file of the result, whose bytes follow.
    File {
        /// Its place among the others.
        path: PathBuf,
        /// How many bytes follow.
        bytes: u64,
    },
    /// The run is over, and the kernel is about to stop.
    End {
        /// Why there is no result; none where there is one.
        error: Option<String>,
    },
}

impl Message {
    /// Writes it to a channel in one piece.
    pub(crate) fn send(&self, mut channel: &File) -> std::io::Result<()> {
        let line = serde_json::to_string(self)? + "\n";
        channel.write_all(line.as_bytes())
    }
}

/// Shows how far a scenario has come.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    channel: Option<File>,
}

impl Progress {
    /// A bar on standard error where it is wanted and that is a terminal; messages
    /// where there is a channel.
    pub(crate) fn new(
        wanted: bool,
        channel: Option<&Path>,
        name: &str,
        connections: u64,
    ) -> Result<Self, Error> {
        let channel = channel.map(open).transpose()?;
        let progress = Self {
            bar: bar(wanted, name, connections),
            channel,
        };
        let name = name.to_owned();
        progress.tell(&Message::Scenario { name, connections });
        Ok(progress)
    }

    /// A connection of a mode begins, after this many others.
    pub(crate) fn begin(&self, made: u64, mode: String) {
        self.bar.set_position(made);
        self.bar.set_message(mode.clone());
        self.tell(&Message::Connection { made, mode });
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn tell(&self, message: &Message) {
        if let Some(channel) = &self.channel
            && let Err(error) = message.send(channel)
        {
            tracing::warn!("cannot report progress: {error}");
        }
    }
}

/// Opens a channel for messages.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .append(true)
        .open(path)
        .map_err(Error::io("cannot open the channel", path))
}

/// A bar on standard error; hidden where that is no terminal.
pub(crate) fn bar(wanted: bool, name: &str, length: u64) -> ProgressBar {
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
