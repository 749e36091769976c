//! Address translation by nftables, from hosts behind a device to the machine's network. No setting
//! of the machine changes.
//!
//! Packets from the device are forwarded, as it may forward, and masqueraded. Answers
//! arrive on a device of the machine that may not forward and must not: a host accepts redirects
//! and router advertisements that a router ignores, and others could send through a router. So
//! answers are not forwarded. Once their destination is translated back, they are duplicated
//! towards the device as packets of this machine, and dropped.
//!
//! The tables belong to a process `nft`, which waits for input. When it ends, at the latest with
//! this process, the system removes them (`flags owner`, Linux 5.12).

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStderr, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use thalweg_process::Process;
use thalweg_process::interrupt::OnSignal;
use thalweg_process::tool;

use crate::error::Error;

/// Flags of a table that goes with the process that made it.
pub const OWNED: &str = "{ flags owner; }";

/// A table that does not exist. Asked for it, `nft` complains at once on standard error, which is
/// unbuffered: all earlier commands are then done.
const NOWHERE: &str = "thalweg-is-done";
/// Time that `nft` gets to end after its input.
const NFT_TIMEOUT: Duration = Duration::from_secs(2);

/// Translation in force; dropped, it is removed.
#[derive(Debug)]
pub struct Nat {
    process: Process,
    /// `nft` ends when this closes.
    input: Option<ChildStdin>,
    /// If this were closed, `nft` would end, too, and its complaints be lost.
    _answers: ChildStderr,
}

impl Nat {
    /// Executes commands and keeps the tables of these that are [`OWNED`].
    ///
    /// # Errors
    /// [`Error::Missing`] if the machine cannot translate addresses.
    pub fn create_tables(commands: &[String]) -> Result<Self, Error> {
        let (process, mut input, mut answers) = start_nft(nft_command(&["-i"]))?;
        let mut commands = commands.join("\n");
        commands += &format!("\nlist table ip {NOWHERE}\n");
        // If `nft` has ended before it read everything, its output says why.
        let _ = input.write_all(commands.as_bytes());
        await_end(&mut answers)?;
        Ok(Self {
            process,
            input: Some(input),
            _answers: answers,
        })
    }
}

impl Drop for Nat {
    fn drop(&mut self) {
        self.input = None;
        let deadline = Instant::now() + NFT_TIMEOUT;
        let _ = self.process.wait_until(deadline, OnSignal::KeepWaiting);
    }
}

/// Waits until all commands are done; fails with the first complaint.
fn await_end(answers: impl Read) -> Result<(), Error> {
    let mut complaints: Vec<String> = Vec::new();
    for line in BufReader::new(answers).lines() {
        let line = line.map_err(Error::system("cannot read what nft says"))?;
        if line.contains(NOWHERE) {
            // The last complaint is about the table that does not exist.
            complaints.pop();
            return complaints
                .into_iter()
                .next()
                .map_or(Ok(()), |said| Err(nft_error(said)));
        }
        if line.starts_with("Error:") {
            complaints.push(line);
        }
    }
    let first = complaints.into_iter().next();
    Err(nft_error(
        first.unwrap_or_else(|| "nothing, and ended".to_owned()),
    ))
}

fn nft_error(said: String) -> Error {
    Error::Missing(format!(
        "the machine cannot translate addresses: nft says {said:?}; its kernel needs nf_tables, \
         nft_masq and nft_dup_ipv4 (Linux 5.12 or newer), and nft_fib and nft_reject for \
         published ports"
    ))
}

fn nft_command(arguments: &[&str]) -> Command {
    let mut command = tool::program_command("nft");
    command.args(arguments);
    command
}

/// Starts `nft`, which reads commands.
fn start_nft(mut nft: Command) -> Result<(Process, ChildStdin, ChildStderr), Error> {
    let mut process = Process::spawn(
        nft.stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped()),
    )?;
    let child = process.child_mut();
    match (child.stdin.take(), child.stderr.take()) {
        (Some(input), Some(answers)) => Ok((process, input, answers)),
        _ => unreachable!("both were asked for"),
    }
}

/// Executes commands, all or none.
///
/// # Errors
/// As [`Nat::create_tables`].
pub fn run_commands(commands: &[String]) -> Result<(), Error> {
    run_by(nft_command(&["-f", "-"]), commands)
}

fn run_by(nft: Command, commands: &[String]) -> Result<(), Error> {
    let (mut process, mut input, mut answers) = start_nft(nft)?;
    let written = input.write_all((commands.join("\n") + "\n").as_bytes());
    drop(input);
    let mut said = Vec::new();
    let read = answers.read_to_end(&mut said);
    read.map_err(Error::system("cannot read what nft says"))?;
    let deadline = Instant::now() + NFT_TIMEOUT;
    match process.wait_until(deadline, OnSignal::KeepWaiting)? {
        // If it ended before it read everything, its status does not count.
        Some(status) if status.success() => written.map_err(Error::system("cannot write to nft")),
        status => {
            let said = String::from_utf8_lossy(&said);
            let mut lines = said.lines().filter(|line| !line.trim().is_empty());
            let complaint = lines.clone().find(|line| line.contains("Error:"));
            let why = complaint.or_else(|| lines.next_back()).map(str::to_owned);
            Err(nft_error(why.unwrap_or_else(|| match status {
                Some(status) => format!("nothing, and ended with {status}"),
                None => "nothing, and does not end".to_owned(),
            })))
        }
    }
}

/// Commands that fill a device's table of a family, `ip` or `ip6`, for one address behind it.
pub fn table_commands(family: &str, device: &str, inside: &str) -> Vec<String> {
    // Neighbours are resolved under addresses that are not forwarded.
    let own = match family {
        "ip" => inside.to_owned(),
        _ => format!("{{ {inside}, fe80::/10, :: }}"),
    };
    vec![
        format!("add chain {family} {device} out {{ type nat hook postrouting priority srcnat; }}"),
        format!(
            "add rule {family} {device} out {family} saddr {inside} oifname != \"{device}\" masquerade"
        ),
        // Packets from inside must have the kernel's address.
        format!("add chain {family} {device} from {{ type filter hook prerouting priority raw; }}"),
        format!(
            "add rule {family} {device} from iifname \"{device}\" {family} saddr != {own} drop"
        ),
        // After the translation back, which is at -100.
        format!("add chain {family} {device} back {{ type filter hook prerouting priority -50; }}"),
        format!(
            "add rule {family} {device} back iifname != \"{device}\" {family} daddr {inside} \
             dup to {inside} device \"{device}\" drop"
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_an_error_and_the_mark_is_none() {
        let done = format!(
            "Error: No such file or directory\nlist table ip {NOWHERE}\n              ^^^^^\n"
        );
        assert!(await_end(done.as_bytes()).is_ok());
        let why = "Error: Could not process rule: No such file or directory";
        let refused = format!("{why}\nadd x\n^^^\n{done}");
        let said = await_end(refused.as_bytes()).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
        assert!(await_end(&b""[..]).is_err());
    }

    #[test]
    fn run_fails_where_the_status_does() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run_by(command, &["add table ip x".to_owned()])
        };
        let why = |script: &str| run(script).unwrap_err().to_string();
        // What it says beside is no failure.
        assert!(run("cat >/dev/null; echo some warning >&2").is_ok());
        let said = why("cat >/dev/null; echo line 1: Error: no >&2; echo '^^^' >&2; exit 1");
        assert!(said.contains("line 1: Error: no"), "{said}");
        let said = why("cat >/dev/null; echo first >&2; echo netlink: busy >&2; exit 1");
        assert!(said.contains("netlink: busy"), "{said}");
        let said = why("cat >/dev/null; exit 3");
        assert!(said.contains("exit status: 3"), "{said}");
    }
}
