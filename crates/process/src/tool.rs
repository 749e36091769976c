//! Programs of the system, wherever they are, and checked commands of iproute2.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::error::Error;

pub use thalweg_units::program::{AGENT, find_agent, find_program, program_command};

/// Runs `ip` or `tc` with the words of one string.
///
/// # Errors
/// [`Error::Command`] with its standard error if it fails.
pub fn run_tool(program: &str, words: &str) -> Result<(), Error> {
    read_tool(program, words).map(drop)
}

/// As [`run_tool`]; returns the output.
///
/// # Errors
/// As [`run_tool`].
pub fn read_tool(program: &str, words: &str) -> Result<String, Error> {
    let arguments: Vec<&str> = words.split_ascii_whitespace().collect();
    let shown = format!("{program} {}", arguments.join(" "));
    let output = program_command(program)
        .args(&arguments)
        .output()
        .map_err(Error::system(format!("cannot start `{shown}`")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(command_error(shown, &output))
}

/// Runs several `ip` commands in a namespace, in one process.
///
/// # Errors
/// [`Error::Command`] for the first that fails; later ones are not run.
pub fn run_batch(namespace: &str, commands: &[String]) -> Result<(), Error> {
    batch_by(&["-n", namespace], commands)
}

/// As [`run_batch`], in the calling thread's namespace.
pub fn batch_here(commands: &[String]) -> Result<(), Error> {
    batch_by(&[], commands)
}

fn batch_by(words: &[&str], commands: &[String]) -> Result<(), Error> {
    let program = [&["ip"], words].concat().join(" ");
    let start = |error| Error::system(format!("cannot start `{program} -batch -`"))(error);
    let mut child = program_command("ip")
        .args(words)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    if let Some(mut input) = child.stdin.take() {
        // If it ended before it read everything, its own message says why.
        let _ = input.write_all((commands.join("\n") + "\n").as_bytes());
    }
    let output = child.wait_with_output().map_err(start)?;
    if output.status.success() {
        return Ok(());
    }
    let which = failed_line(&String::from_utf8_lossy(&output.stderr));
    let command = which.and_then(|number| commands.get(number.checked_sub(1)?));
    Err(command_error(
        command.map_or(program.clone(), |words| format!("{program} {words}")),
        &output,
    ))
}

/// The line that `ip -batch -` reports, counted from 1.
fn failed_line(stderr: &str) -> Option<usize> {
    let (_, number) = stderr.trim().rsplit_once("Command failed -:")?;
    number.parse().ok()
}

/// A word quoted for a shell.
pub fn quote_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn command_error(command: String, output: &Output) -> Error {
    Error::Command {
        command,
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_says_which_line_failed() {
        let text = "Error: Device not found.\nCommand failed -:12\n";
        assert_eq!(failed_line(text), Some(12));
        assert_eq!(failed_line("something else"), None);
    }
}
