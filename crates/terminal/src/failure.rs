//! Failures of commands, and their exit codes.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;
use thalweg_units::file::{self, MAX_FILE_BYTES};
use thalweg_units::{Faults, excerpt, printable, printable_json, printable_lines};

use crate::{journal, program_name};

/// Failures with an exit code of their own; all others have code 1.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Options that contradict each other, or a missing confirmation.
    #[error("{0}")]
    Usage(String),
    /// The machine or user lacks something that the command needs.
    #[error("{0}")]
    Missing(String),
    /// A file has faults, or warnings that count as faults; each has been shown.
    #[error("{0}")]
    Faults(String),
    /// A failure with its own exit code.
    #[error("{message}")]
    Coded {
        /// The exit code.
        code: u8,
        /// The message.
        message: String,
    },
    /// Another program's exit code, or that of a check: everything has been said.
    #[error("exit code {0}")]
    Silent(u8),
    /// The reader of our output has stopped: not a failure.
    #[error("the reader of the output has gone")]
    OutputClosed,
}

impl Failure {
    /// A failure with its own exit code.
    pub fn with_code(code: u8, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::Coded { code, message }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Faults(_) => 1,
            Self::Usage(_) => 2,
            Self::Missing(_) => 3,
            Self::Coded { code, .. } | Self::Silent(code) => *code,
        }
    }
}

/// Reports an error on standard error, as one object if output is JSON; returns the exit code.
pub fn report_error(error: &anyhow::Error, json: bool) -> ExitCode {
    report_with(error, json, |_| None)
}

/// As [`report_error`]; faults that `faults` finds in the error are shown with their lines of the file.
pub fn report_with(
    error: &anyhow::Error,
    json: bool,
    faults: impl Fn(&anyhow::Error) -> Option<&Faults>,
) -> ExitCode {
    let failure = error.downcast_ref::<Failure>();
    let code = failure.map_or(1, Failure::exit_code);
    if code != 0 && !matches!(failure, Some(Failure::Silent(_))) {
        let message = match faults(error) {
            Some(faults) if !json => with_excerpts(faults),
            _ => format!("{error:#}"),
        };
        let line = if json {
            as_json(&message, code)
        } else {
            format!("{}: {}", program_name(), printable_lines(&message))
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
pub fn print_warning(message: &str, json: bool) {
    print_message("warning", message, json);
}

/// As [`print_warning`], of what is no fault.
pub fn print_note(message: &str, json: bool) {
    print_message("note", message, json);
}

fn print_message(kind: &str, message: &str, json: bool) {
    let line = match json {
        true => serde_json::json!({ kind: message }).to_string(),
        false => format!("{}: {kind}: {message}", program_name()),
    };
    // If standard error is closed, nothing can be done.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Faults, each with its line of the file.
fn with_excerpts(faults: &Faults) -> String {
    let mut texts = BTreeMap::new();
    let told = faults.0.iter().map(|fault| {
        let text = (texts.entry(&fault.file)).or_insert_with(|| {
            file::read_bytes(&fault.file, MAX_FILE_BYTES).map_or(String::new(), |bytes| {
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
    let json = has_argument("--json") || has_argument("--json-lines");
    let lacks_command = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || (lacks_command && !json) {
        let _ = error.print();
    } else if json {
        let _ = writeln!(std::io::stderr(), "{}", as_json(&usage_line(error), code));
    } else {
        let line = usage_line(error);
        let _ = writeln!(std::io::stderr(), "{}: {line}", program_name());
    }
    ExitCode::from(code)
}

/// Whether a word is among the arguments before `--`.
pub fn has_argument(word: &str) -> bool {
    let mut arguments = std::env::args_os().skip(1).take_while(|it| it != "--");
    arguments.any(|argument| argument == word)
}

/// clap's message in one line, what a reader would not see escaped: the fault, its suggestions, and the command whose help to read.
pub fn usage_line(error: &clap::Error) -> String {
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
    printable(&format!("{}; see {help}", parts.join("; ")))
}

fn as_json(message: &str, code: u8) -> String {
    let document = serde_json::json!({ "error": message, "code": code }).to_string();
    printable_json(&document).into_owned()
}
