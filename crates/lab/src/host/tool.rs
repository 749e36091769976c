//! The commands of iproute2, each checked.

use std::process::Command;

use crate::error::Error;

/// Where the tools are even if the caller's PATH leaves out the system
/// directories, as Debian's does for ordinary logins.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The full path of a program, looked for on PATH and in the system directories.
pub(crate) fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_DIRECTORIES.iter().map(Into::into))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// A command for a program, found as [`find`] does.
pub(crate) fn command(program: &str) -> Command {
    Command::new(find(program).unwrap_or_else(|| program.into()))
}

/// Runs `ip` or `tc` with the words of one string and then further arguments.
///
/// # Errors
/// [`Error::Command`] with its standard error where it fails.
pub(crate) fn run(program: &str, words: &str) -> Result<(), Error> {
    let arguments: Vec<&str> = words.split_ascii_whitespace().collect();
    let shown = format!("{program} {}", arguments.join(" "));
    let output = command(program)
        .args(&arguments)
        .output()
        .map_err(Error::system(format!("cannot start `{shown}`")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Command {
        command: shown,
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}
