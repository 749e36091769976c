//! A running kernel and its messages.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use thalweg_process::Process;
use thalweg_process::interrupt::{self, OnSignal};

use crate::channel::{CHANNEL, Message};
use crate::error::Error;
use crate::{KernelKind, console};

/// The console's file, in the work directory.
pub const CONSOLE: &str = "console";
/// Interval between looks for messages.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// A running kernel; dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Running {
    kind: KernelKind,
    process: Process,
    messages: File,
    received: Vec<u8>,
    work: PathBuf,
}

impl Running {
    /// Starts a kernel in its work directory. The process's output goes to the file [`CONSOLE`]
    /// there.
    pub(crate) fn start_kernel(
        kind: KernelKind,
        command: &mut Command,
        work: &Path,
    ) -> Result<Self, Error> {
        let path = work.join(CONSOLE);
        let failed = |path: &Path| Error::io("cannot create", path.to_owned());
        let console = File::create(&path).map_err(failed(&path))?;
        let errors = console.try_clone().map_err(failed(&path))?;
        let messages = channel_in(work)?;
        let process = Process::spawn(
            command
                .current_dir(work)
                .stdin(Stdio::null())
                .stdout(console)
                .stderr(errors),
        )?;
        Ok(Self {
            kind,
            process,
            messages,
            received: Vec::new(),
            work: work.to_owned(),
        })
    }

    pub(crate) fn kind(&self) -> KernelKind {
        self.kind
    }

    /// The next message, awaited until the deadline. `overdue` describes a missed deadline.
    pub(crate) fn next_message(
        &mut self,
        deadline: Instant,
        overdue: &str,
    ) -> Result<Message, Error> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.received[searched..]
                .iter()
                .position(|&byte| byte == b'\n')
            {
                let line: Vec<u8> = self.received.drain(..=searched + end).collect();
                let line = String::from_utf8_lossy(&line);
                let message = serde_json::from_str(line.trim());
                return message.map_err(|error| self.no_message(&line, error));
            }
            searched = self.received.len();
            self.receive_bytes(deadline, overdue)?;
        }
    }

    /// The error for output that is no message.
    pub(crate) fn no_message(&self, sent: &str, why: impl Display) -> Error {
        let kind = self.kind;
        self.message_error(format!("{kind} sent {sent:?}, which is no message: {why}"))
    }

    /// Keeps the bytes that follow a [`Message::File`] in the work directory.
    pub(crate) fn keep_file(
        &mut self,
        path: &Path,
        bytes: u64,
        deadline: Instant,
        overdue: &str,
    ) -> Result<(), Error> {
        let plain = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !plain || path.file_name().is_none() {
            return Err(self.message_error(format!("{} sent a file {path:?}", self.kind)));
        }
        while (self.received.len() as u64) < bytes {
            self.receive_bytes(deadline, overdue)?;
        }
        let content: Vec<u8> = self.received.drain(..bytes as usize).collect();
        let file = self.work.join(path);
        let directory = file.parent().unwrap_or(&self.work);
        fs::create_dir_all(directory).map_err(Error::io("cannot create", directory))?;
        fs::write(&file, content).map_err(Error::io("cannot write", file))
    }

    /// Reads more of the messages.
    fn receive_bytes(&mut self, deadline: Instant, overdue: &str) -> Result<(), Error> {
        let mut bytes = [0; READ_BYTES];
        loop {
            interrupt::check_interrupt()?;
            // The end is checked first, so that nothing written before it is missed.
            let ended = self.process.exit_status()?;
            let count = self
                .messages
                .read(&mut bytes)
                .map_err(Error::system(format!("cannot read from {}", self.kind)))?;
            if count > 0 {
                self.received.extend_from_slice(&bytes[..count]);
                return Ok(());
            }
            if let Some(status) = ended {
                return Err(console::kernel_ended_error(
                    self.kind,
                    status,
                    &self.console_text(),
                ));
            }
            if Instant::now() >= deadline {
                self.process.kill();
                return Err(self.message_error(format!("{overdue} and was ended")));
            }
            let look = deadline.min(Instant::now() + POLL_INTERVAL);
            self.process.wait_until(look, OnSignal::Fail)?;
        }
    }

    /// Waits until the kernel has stopped by itself.
    pub(crate) fn await_stop(&mut self, deadline: Instant) -> Result<(), Error> {
        match self.process.wait_until(deadline, OnSignal::Fail)? {
            Some(_) => Ok(()),
            None => Err(self.message_error(format!("{} did not stop", self.kind))),
        }
    }

    /// Adds the console's cause to an error from inside, which alone may not explain the failure.
    pub(crate) fn explain_error(&self, error: Error) -> Error {
        match error {
            Error::Inside { why, .. } if why.is_empty() => {
                self.message_error(format!("the run in {} ended without a result", self.kind))
            }
            Error::Inside { kind, why } => match console::out_of_memory(&self.console_text()) {
                Some(line) => Error::Inside {
                    kind,
                    why: format!("{why}; its kernel said {line:?}: {}", console::MORE_MEMORY),
                },
                None => Error::Inside { kind, why },
            },
            other => other,
        }
    }

    fn message_error(&self, what: String) -> Error {
        Error::Kernel {
            what,
            console: console::last_lines(&self.console_text()),
        }
    }

    fn console_text(&self) -> String {
        let bytes = fs::read(self.work.join(CONSOLE)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Creates the file of a kernel's messages.
fn channel_in(work: &Path) -> Result<File, Error> {
    let path = work.join(CHANNEL);
    let failed = |path: &Path| Error::io("cannot create", path.to_owned());
    File::create(&path).map_err(failed(&path))?;
    File::open(&path).map_err(failed(&path))
}
