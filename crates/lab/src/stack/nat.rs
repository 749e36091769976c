//! The machine translates the kernel's address into its own (nftables), and nothing of its
//! settings changes.
//!
//! What the kernel sends is forwarded because its own device may forward, and masqueraded. What
//! comes back arrives on a device of the machine, which may not forward and shall not: as a host
//! it accepts redirects and router advertisements that a router ignores, and others could send
//! through it. So answers are not forwarded: once their destination is translated back, they are
//! duplicated towards the kernel as packets of this machine, and dropped.
//!
//! The tables belong to one process `nft`, which waits for more. When it ends, and it ends with
//! this process, the system removes them (`flags owner`, Linux 5.12).

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStderr, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use super::control::Ends;
use crate::error::Error;
use crate::host::tool;
use crate::interrupt::OnSignal;
use crate::process::Process;

/// A table that is nowhere: asked for it, `nft` answers at once on standard error, which it does
/// not buffer, and so says that what came before is done.
const NOWHERE: &str = "thalweg-is-done";
/// How long it may take to end when nothing more comes.
const PATIENCE: Duration = Duration::from_secs(2);

/// Translation that is in force; dropped, it is gone.
#[derive(Debug)]
pub(super) struct Nat {
    process: Process,
    /// Closed, it ends the process.
    input: Option<ChildStdin>,
    /// Closed, it would end the process as well, which may still have to complain.
    _answers: ChildStderr,
}

impl Nat {
    /// Puts it in force for what is behind a device.
    pub(super) fn create(device: &str, ends: &Ends) -> Result<Self, Error> {
        let mut process = Process::spawn(
            tool::command("nft")
                .arg("-i")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped()),
        )?;
        let child = process.child_mut();
        let (Some(mut input), Some(mut answers)) = (child.stdin.take(), child.stderr.take()) else {
            unreachable!("both were asked for");
        };
        let mut commands = rules(device, ends).join("\n");
        commands += &format!("\nlist table ip {NOWHERE}\n");
        // Where it has ended before it read all, its own words say why.
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
        let deadline = Instant::now() + PATIENCE;
        let _ = self.process.wait_until(deadline, OnSignal::KeepWaiting);
    }
}

/// Waits until all commands were executed; fails with the first complaint.
fn await_end(answers: impl Read) -> Result<(), Error> {
    let mut complaints: Vec<String> = Vec::new();
    for line in BufReader::new(answers).lines() {
        let line = line.map_err(Error::system("cannot read what nft says"))?;
        if line.contains(NOWHERE) {
            // The last complaint is about this.
            complaints.pop();
            return complaints
                .into_iter()
                .next()
                .map_or(Ok(()), |said| Err(failed(said)));
        }
        if line.starts_with("Error:") {
            complaints.push(line);
        }
    }
    let first = complaints.into_iter().next();
    Err(failed(
        first.unwrap_or_else(|| "nothing, and ended".to_owned()),
    ))
}

fn failed(said: String) -> Error {
    Error::Missing(format!(
        "the machine cannot translate addresses: nft says {said:?}; its kernel needs nf_tables, \
         nft_masq and nft_dup_ipv4 (Linux 5.12 or newer)"
    ))
}

/// The commands, one a line.
fn rules(device: &str, ends: &Ends) -> Vec<String> {
    let mut rules = table("ip", "ip", device, &ends.inside.to_string());
    if let Some(v6) = ends.v6.filter(|v6| v6.is_gateway) {
        rules.extend(table("ip6", "ip6", device, &v6.inside.to_string()));
    }
    rules
}

fn table(family: &str, header: &str, device: &str, inside: &str) -> Vec<String> {
    vec![
        format!("add table {family} {device} {{ flags owner; }}"),
        format!("add chain {family} {device} out {{ type nat hook postrouting priority srcnat; }}"),
        format!(
            "add rule {family} {device} out {header} saddr {inside} oifname != \"{device}\" masquerade"
        ),
        // After the translation back, which is at -100.
        format!("add chain {family} {device} back {{ type filter hook prerouting priority -50; }}"),
        format!(
            "add rule {family} {device} back iifname != \"{device}\" {header} daddr {inside} \
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
}
