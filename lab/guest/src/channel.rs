//! Messages from a running kernel to the process that started it: one JSON document a line, in a
//! shared file or on a serial line.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;

/// The file of the messages, in the work directory. A pipe would not do: its reader interrupts the
/// kernel, at another moment in each run.
pub(crate) const CHANNEL: &str = "messages";
/// The messages of a kernel in QEMU: its second serial line.
pub const SERIAL: &str = "/dev/ttyS1";

/// A message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(crate) enum Message {
    /// The kernel has booted and the job begins.
    Ready,
    /// A file of the result. Its bytes follow.
    File {
        /// Path of the file in the result.
        path: PathBuf,
        /// Number of bytes.
        bytes: u64,
    },
    /// The job is over, and the kernel is about to stop.
    End {
        /// Why there is no result; none if there is one.
        error: Option<String>,
    },
    /// A message of the job's own.
    #[serde(untagged)]
    Told(Value),
}

/// The kernel's end of the channel.
#[derive(Debug)]
pub struct Channel(File);

impl Channel {
    /// Opens the channel.
    ///
    /// # Errors
    /// It does not exist.
    pub fn open(path: &Path) -> Result<Self, Error> {
        OpenOptions::new()
            .append(true)
            .open(path)
            .map(Self)
            .map_err(Error::io("cannot open the channel", path))
    }

    /// Sends a message in one piece.
    ///
    /// # Errors
    /// The system's answer.
    pub fn send_message(&self, message: &impl Serialize) -> Result<(), Error> {
        let failed = Error::system("cannot write to the channel");
        serde_json::to_string(message)
            .map_err(std::io::Error::from)
            .and_then(|line| (&self.0).write_all((line + "\n").as_bytes()))
            .map_err(failed)
    }

    /// Sends a file of the result.
    pub(crate) fn send_file(&self, path: PathBuf, content: &[u8]) -> Result<(), Error> {
        let bytes = content.len() as u64;
        self.send_message(&Message::File { path, bytes })?;
        (&self.0)
            .write_all(content)
            .map_err(Error::system("cannot write to the channel"))
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_own_words_pass_as_they_are() {
        let read = |line| serde_json::from_str::<Message>(line).unwrap();
        assert_eq!(read(r#"{"kind":"ready"}"#), Message::Ready);
        let words = r#"{"kind":"connection","made":3,"mode":"bbr"}"#;
        assert_eq!(
            read(words),
            Message::Told(serde_json::from_str(words).unwrap())
        );
        let end = Message::End { error: None };
        assert_eq!(read(&serde_json::to_string(&end).unwrap()), end);
    }
}
