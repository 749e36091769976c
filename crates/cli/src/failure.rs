//! Failures of commands, and their exit codes.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use thalweg_units::file::{self, MAX_FILE_BYTES};
use thalweg_units::{Faults, excerpt, printable, printable_json, printable_lines};

use crate::journal;

/// Whether programs are in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// They are attached.
    Yes,
    /// Nothing is attached.
    No,
    /// This user may not inspect it.
    Unknown,
}

/// Failures with an exit code of their own; all others have code 1.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Options that contradict each other, or a missing confirmation.
    #[error("{0}")]
    Usage(String),
    /// `doctor` found that a requirement is missing.
    #[error("this machine lacks something that the agent needs")]
    Requirement,
    /// This machine or user cannot have a link, or a stack.
    #[error("{0}")]
    Missing(String),
    /// The command of `link` or `stack` cannot be started.
    #[error("cannot start {program}: {why}")]
    Start {
        /// The program.
        program: String,
        /// The error.
        why: String,
        /// It exists, but cannot be run.
        found: bool,
    },
    /// The command of `link` or `stack` ended with this code: not a failure of ours.
    #[error("the command ended with exit code {0}")]
    Command(u8),
    /// The agent cannot use its configuration, however often it is started.
    #[error("{0}")]
    Configuration(String),
    /// `status --check` has said what is wrong in its line.
    #[error("the check ended with exit code {0}")]
    Check(u8),
    /// Nobody listens on the socket.
    #[error("{}", agent_down(.socket, .pin, *.pinned))]
    AgentDown {
        /// The socket.
        socket: PathBuf,
        /// The directory of pins.
        pin: PathBuf,
        /// Whether programs are pinned.
        pinned: Pinned,
    },
    /// The laboratory missed an expectation.
    #[error("an expectation was not met")]
    Expectation,
    /// The laboratory found a run worse than another.
    #[error("B is worse than A")]
    Worse,
    /// `policy check` or `config check` found faults, or warnings that count as faults.
    #[error("{0}")]
    Faults(String),
    /// `model check` found files that are not models.
    #[error("{0}")]
    Model(String),
    /// The reader of our output has stopped: not a failure.
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
            // As in env(1) and the shells.
            Self::Start { found: true, .. } => 126,
            Self::Start { found: false, .. } => 127,
            Self::Command(code) | Self::Check(code) => *code,
            Self::Worse => 6,
            // EX_CONFIG of sysexits(3): systemd shows its name, and the unit does not start again.
            Self::Configuration(_) => 78,
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

/// Reports an error on standard error, as one object if output is JSON; returns the exit code.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    let failure = error.downcast_ref::<Failure>();
    let code = failure.map_or(1, Failure::code);
    if code != 0 && !matches!(failure, Some(Failure::Command(_) | Failure::Check(_))) {
        let message = match scenario_faults(error) {
            Some(faults) if !json => with_excerpts(faults),
            _ => format!("{error:#}"),
        };
        let line = if json {
            as_json(&message, code)
        } else {
            format!("thalweg: {}", printable_lines(&message))
        };
        // The level of an error, for the journal (sd-daemon(3)).
        let level = if journal::is_standard_error() {
            "<3>"
        } else {
            ""
        };
        // If standard error is closed, nothing can be done.
        let _ = writeln!(std::io::stderr(), "{level}{line}");
    }
    ExitCode::from(code)
}

/// Warns on standard error, beside a command's answer; as one object if output is JSON.
pub fn warn(message: &str, json: bool) {
    tell("warning", message, json);
}

/// As [`warn`], of what is no fault.
pub fn note(message: &str, json: bool) {
    tell("note", message, json);
}

fn tell(kind: &str, message: &str, json: bool) {
    let line = match json {
        true => serde_json::json!({ kind: message }).to_string(),
        false => format!("thalweg: {kind}: {message}"),
    };
    // If standard error is closed, nothing can be done.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The faults of a scenario, if they are the error.
fn scenario_faults(error: &anyhow::Error) -> Option<&Faults> {
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(thalweg_lab::Error::Scenario(faults)), _)
        | (_, Some(thalweg_sim::scenario::LoadError::Scenario(faults))) => Some(faults),
        _ => None,
    }
}

/// Faults, each with its line of the file.
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

/// Reports arguments that cannot be parsed; prints `--help` and `--version`.
pub fn report_usage(error: &clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(2);
    let arguments: Vec<_> = std::env::args_os()
        .skip(1)
        .take_while(|argument| argument != "--")
        .collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let json = has("--json") || has("--json-lines");
    // For a monitoring system, 2 would be CRITICAL.
    if error.use_stderr() && has("status") && has("--check") {
        let line = printable(&usage_line(error)).replace('|', "/");
        let _ = writeln!(std::io::stdout(), "THALWEG UNKNOWN - {line}");
        return ExitCode::from(3);
    }
    let lacks_command = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || (lacks_command && !json) {
        let _ = error.print();
    } else if json {
        let _ = writeln!(std::io::stderr(), "{}", as_json(&usage_line(error), code));
    } else {
        let line = printable(&usage_line(error));
        let _ = writeln!(std::io::stderr(), "thalweg: {line}");
    }
    ExitCode::from(code)
}

/// clap's message in one line: the fault, its suggestions, and the command whose help to read.
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
    let document = serde_json::json!({ "error": message, "code": code }).to_string();
    printable_json(&document).into_owned()
}
