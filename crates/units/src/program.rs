//! Programs of the system, wherever they are.

use std::path::PathBuf;
use std::process::Command;

/// Directories of system programs. PATH lacks some of them for ordinary logins of Debian, and for what
/// `su` and cron start.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The name of the agent's command.
pub const AGENT: &str = "thalweg";

/// The full path of a program, searched on PATH and in the system directories.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    find_in(program, std::env::split_paths(&path))
}

fn find_in(program: &str, path: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    path.chain(SYSTEM_DIRECTORIES.iter().map(Into::into))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// The agent's command, `thalweg`: beside this program, else found as [`find_program`] does.
pub fn find_agent() -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.map(|own| own.with_file_name(AGENT));
    beside
        .filter(|file| file.is_file())
        .or_else(|| find_program(AGENT))
}

/// A command for a program, found as [`find_program`] does.
pub fn program_command(program: &str) -> Command {
    Command::new(find_program(program).unwrap_or_else(|| program.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use super::*;

    #[test]
    fn program_outside_path_is_found_in_system_directories() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().to_owned();
        let system = find_in("sh", std::iter::once(own.clone())).unwrap();
        assert!(system.ends_with("bin/sh"), "{}", system.display());
        std::fs::write(own.join("sh"), "").unwrap();
        assert_eq!(
            find_in("sh", std::iter::once(own.clone())),
            Some(own.join("sh"))
        );
        assert_eq!(find_in("no-such-program", std::iter::once(own)), None);
    }
}
