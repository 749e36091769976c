//! How commands fail, and what the shell learns of it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use thalweg_units::file::{self, MAX_FILE_BYTES};
use thalweg_units::{Faults, excerpt};

/// State of the programs in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// They are attached.
    Yes,
    /// Nothing is attached.
    No,
    /// This user may not look.
    Unknown,
}

/// Failures that have an exit code of their own; every other is code 1.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Options that contradict each other, or a confirmation that is missing.
    #[error("{0}")]
    Usage(String),
    /// `doctor` found that something required is missing.
    #[error("this machine lacks something that the agent needs")]
    Requirement,
    /// This machine or user may not have a link, or a stack.
    #[error("{0}")]
    Missing(String),
    /// The command of `link` or `stack` cannot be started.
    #[error("cannot start {program}: {why}")]
    Start {
        /// The program.
        program: String,
        /// The system's answer.
        why: String,
        /// It exists, but cannot be run.
        found: bool,
    },
    /// The command of `link` or `stack` ended with this code: not our failure.
    #[error("the command ended with exit code {0}")]
    Command(u8),
    /// Nobody listens on the socket.
    #[error("{}", agent_down(.socket, .pin, *.pinned))]
    AgentDown {
        /// The socket.
        socket: PathBuf,
        /// Where programs are pinned.
        pin: PathBuf,
        /// Whether they are.
        pinned: Pinned,
    },
    /// The laboratory missed an expectation.
    #[error("an expectation was not met")]
    Expectation,
    /// The laboratory found a run worse than another.
    #[error("B is worse than A")]
    Worse,
    /// `policy check` or `config check` found faults, or warnings that were not to be.
    #[error("{0}")]
    Faults(String),
    /// `model check` found files that are no models.
    #[error("{0}")]
    Model(String),
    /// Whoever read our output has stopped: no failure at all.
    #[error("the reader of the output has gone")]
    OutputClosed,
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Usage(_) => 2,
            Self::Requirement | Self::Missing(_) => 3,
            Self::AgentDown { .. } => 4,
            Self::Expectation => 5,
            // As env(1) and the shells do.
            Self::Start { found: true, .. } => 126,
            Self::Start { found: false, .. } => 127,
            Self::Command(code) => *code,
            Self::Worse => 6,
            Self::Faults(_) | Self::Model(_) => 1,
        }
    }
}

fn agent_down(socket: &std::path::Path, pin: &std::path::Path, pinned: Pinned) -> String {
    let socket = socket.display();
    let pin = pin.display();
    let state = match pinned {
        Pinned::Yes => format!(
            "its programs are still attached (pinned in {pin}) and go on choosing; start it with \
             `thalweg run`, or remove them with `thalweg detach`"
        ),
        Pinned::No => {
            format!("no programs are pinned in {pin}; start it with `thalweg run`")
        }
        Pinned::Unknown => format!(
            "this user may not see whether programs are pinned in {pin}; start it with \
             `thalweg run` as root"
        ),
    };
    format!("the agent is not running (nobody answers on {socket}); {state}")
}

/// Says on standard error what went wrong, as one object where answers are JSON; returns the exit code.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    let failure = error.downcast_ref::<Failure>();
    let code = failure.map_or(1, Failure::code);
    if code != 0 && !matches!(failure, Some(Failure::Command(_))) {
        let message = match scenario_faults(error) {
            Some(faults) if !json => with_excerpts(faults),
            _ => format!("{error:#}"),
        };
        let line = if json {
            as_json(&message, code)
        } else {
            format!("thalweg: {message}")
        };
        // Nothing is left to do where standard error is closed too.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    ExitCode::from(code)
}

/// The faults of a scenario, if that is what went wrong.
fn scenario_faults(error: &anyhow::Error) -> Option<&Faults> {
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(thalweg_lab::Error::Scenario(faults)), _)
        | (_, Some(thalweg_sim::scenario::LoadError::Scenario(faults))) => Some(faults),
        _ => None,
    }
}

/// Faults, each with the line that it is in.
fn with_excerpts(faults: &Faults) -> String {
    let mut texts = BTreeMap::new();
    let told = faults.0.iter().map(|fault| {
        let text = (texts.entry(&fault.file)).or_insert_with(|| {
            file::read(&fault.file, MAX_FILE_BYTES).map_or(String::new(), |bytes| {
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        format!("{fault}\n{}", excerpt(text, fault.at))
    });
    let told: String = told.collect();
    let told = told.trim_end();
    match faults.0.len() {
        1 => told.to_owned(),
        count => format!("found {count} faults\n{told}"),
    }
}

/// The same for arguments that cannot be understood; prints `--help` and `--version`.
pub fn report_usage(error: &clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(2);
    let json = std::env::args_os()
        .skip(1)
        .take_while(|argument| argument != "--")
        .any(|argument| argument == "--json");
    let lacks_command = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || (lacks_command && !json) {
        let _ = error.print();
    } else if json {
        let _ = writeln!(std::io::stderr(), "{}", as_json(&usage_line(error), code));
    } else {
        let _ = writeln!(std::io::stderr(), "thalweg: {}", usage_line(error));
    }
    ExitCode::from(code)
}

/// clap's message in one line: the fault, its suggestions, and whose help to read.
fn usage_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command is missing; see --help".to_owned();
    }
    let mut parts = Vec::new();
    let mut help = "--help".to_owned();
    for paragraph in error.to_string().split("\n\n") {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        match words.as_slice() {
            ["Usage:", usage @ ..] => {
                let command = usage
                    .iter()
                    .take_while(|word| !word.starts_with(['[', '<', '-']));
                let command: Vec<&str> = command.copied().collect();
                help = format!("`{} --help`", command.join(" "));
            }
            ["For", "more", "information,", ..] | [] => {}
            ["error:" | "tip:", words @ ..] => parts.push(words.join(" ")),
            words => parts.push(words.join(" ")),
        }
    }
    format!("{}; see {help}", parts.join("; "))
}

fn as_json(message: &str, code: u8) -> String {
    serde_json::json!({ "error": message, "code": code }).to_string()
}
