//! Address translation by nftables, from the kernel's address to the machine's. No setting of the
//! machine changes.
//!
//! Packets from the kernel are forwarded, as its own device may forward, and masqueraded. Answers
//! arrive on a device of the machine that may not forward and must not: a host accepts redirects
//! and router advertisements that a router ignores, and others could send through a router. So
//! answers are not forwarded. Once their destination is translated back, they are duplicated
//! towards the kernel as packets of this machine, and dropped.
//!
//! The tables belong to a process `nft`, which waits for input. When it ends, at the latest with
//! this process, the system removes them (`flags owner`, Linux 5.12).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{ChildStderr, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use thalweg_process::Process;
use thalweg_process::interrupt::OnSignal;
use thalweg_process::tool;

use crate::control::Ends;
use crate::error::Error;
use crate::publish::Ports;

/// A table that does not exist. Asked for it, `nft` complains at once on standard error, which is
/// unbuffered: all earlier commands are then done.
const NOWHERE: &str = "thalweg-is-done";
/// Time that `nft` gets to end after its input.
const PATIENCE: Duration = Duration::from_secs(2);

/// Translation in force; dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Nat {
    process: Process,
    /// `nft` ends when this closes.
    input: Option<ChildStdin>,
    /// If this were closed, `nft` would end, too, and its complaints be lost.
    _answers: ChildStderr,
}

impl Nat {
    /// Puts translation in force for the hosts behind a device, and for ports of IPv4 and IPv6 that
    /// lead there.
    pub(crate) fn create(
        device: &str,
        ends: &Ends,
        published: &[Option<Ports>; 2],
    ) -> Result<Self, Error> {
        let (process, mut input, mut answers) = start(&["-i"])?;
        let mut commands = rules(device, ends, published, "{ flags owner; }").join("\n");
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
        let deadline = Instant::now() + PATIENCE;
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
         nft_masq and nft_dup_ipv4 (Linux 5.12 or newer), and nft_fib and nft_reject for --publish"
    ))
}

/// The commands, one a line.
fn rules(device: &str, ends: &Ends, published: &[Option<Ports>; 2], flags: &str) -> Vec<String> {
    let [v4, v6] = published;
    let mut rules = vec![format!("add table ip {device} {flags}")];
    rules.extend(table("ip", device, &ends.inside.to_string(), v4.as_ref()));
    if let Some(ends) = ends.v6.filter(|it| it.is_gateway) {
        let inside = ends.inside.to_string();
        rules.push(format!("add table ip6 {device} {flags}"));
        rules.extend(table("ip6", device, &inside, v6.as_ref()));
    }
    rules
}

/// Puts translation in force until it is [removed](forget). DNS questions to the machine's end of
/// the wire go to this resolver.
pub(crate) fn prepare(device: &str, ends: &Ends, resolver: Option<Ipv4Addr>) -> Result<(), Error> {
    let mut ends = *ends;
    if let Some(v6) = &mut ends.v6 {
        // Whether the machine forwards packets may change later.
        v6.is_gateway = true;
    }
    let mut commands = rules(device, &ends, &[None, None], "");
    if let Some(resolver) = resolver {
        commands.push(format!(
            "add chain ip {device} names {{ type nat hook prerouting priority dstnat; }}"
        ));
        for protocol in ["udp", "tcp"] {
            commands.push(format!(
                "add rule ip {device} names iifname \"{device}\" ip daddr {} {protocol} dport 53 \
                 dnat to {resolver}",
                ends.machine
            ));
        }
        let others = "ip daddr 127.0.0.0/8 drop";
        commands.push(format!(
            "add rule ip {device} from iifname \"{device}\" {others}"
        ));
    }
    // Tables of that name are left over from a device that was removed.
    forget(device)?;
    run(&commands)
}

/// Removes the tables of a device, if there are any.
pub(crate) fn forget(device: &str) -> Result<(), Error> {
    let families = ["ip", "ip6"];
    let there = families
        .iter()
        .filter(|family| tool::read("nft", &format!("list table {family} {device}")).is_ok());
    let commands: Vec<String> = there
        .map(|family| format!("delete table {family} {device}"))
        .collect();
    run(&commands)
}

/// Starts `nft`, which reads commands.
fn start(arguments: &[&str]) -> Result<(Process, ChildStdin, ChildStderr), Error> {
    let mut process = Process::spawn(
        tool::command("nft")
            .args(arguments)
            .stdin(Stdio::piped())
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
fn run(commands: &[String]) -> Result<(), Error> {
    let (_process, mut input, mut answers) = start(&["-f", "-"])?;
    let _ = input.write_all((commands.join("\n") + "\n").as_bytes());
    drop(input);
    let mut said = String::new();
    let read = answers.read_to_string(&mut said);
    read.map_err(Error::system("cannot read what nft says"))?;
    match said.lines().find(|line| line.contains("Error:")) {
        Some(line) => Err(failed(line.to_owned())),
        None => Ok(()),
    }
}

fn table(family: &str, device: &str, inside: &str, published: Option<&Ports>) -> Vec<String> {
    // Neighbours are resolved under addresses that are not forwarded.
    let own = match family {
        "ip" => inside.to_owned(),
        _ => format!("{{ {inside}, fe80::/10, :: }}"),
    };
    let mut rules = vec![
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
    ];
    if let Some(ports) = published {
        rules.extend(inbound(family, device, inside, ports));
    }
    rules
}

/// The rules for ports that lead inside.
///
/// A connection is translated to an address of this machine. It is then tracked like one to a
/// server here; connection tracking does not know packets that are dropped before their end. A
/// duplicate goes inside after the machine's firewall. The translation of answers is taken back
/// before they are tracked.
fn inbound(family: &str, device: &str, inside: &str, ports: &Ports) -> Vec<String> {
    let Ports {
        target,
        machine,
        taken,
        pairs,
    } = ports;
    let chain = |name: &str, kind: &str, hook: &str, priority: i32| {
        format!(
            "add chain {family} {device} {name} \
             {{ type {kind} hook {hook} priority {priority}; }}"
        )
    };
    let rule = |chain: &str, words: String| format!("add rule {family} {device} {chain} {words}");
    let loopback = match target {
        IpAddr::V4(_) => "127.0.0.0/8",
        IpAddr::V6(_) => "::1",
    };
    let mut rules = vec![
        chain("arriving", "nat", "prerouting", -100),
        chain("own", "nat", "output", -100),
        chain("inwards", "filter", "input", 200),
    ];
    for (address, port) in taken {
        let to = address.map_or("fib daddr type local".to_owned(), |it| {
            format!("{family} daddr {it}")
        });
        let translate = format!("{to} tcp dport {port} dnat to {target}");
        rules.push(rule(
            "arriving",
            format!("iifname != \"{device}\" {translate}"),
        ));
        if target.is_ipv4() {
            rules.push(rule("own", translate));
        } else {
            // The system takes no packet for ::1 from a device, so clients are refused and try
            // another address at once.
            rules.push(rule("own", format!("ip6 daddr != {loopback} {translate}")));
            let refuse = format!("ip6 daddr {loopback} tcp dport {port} reject with tcp reset");
            rules.push(rule("inwards", refuse));
        }
    }
    if target.is_ipv4() {
        // For clients at 127.0.0.1, whose answers the device must accept. It accepts nothing else
        // for that address.
        let device = format!("iifname \"{device}\"");
        rules.push(rule("from", format!("{device} ip daddr {loopback} drop")));
        let source = format!("{family} saddr {loopback} {family} daddr {target} snat to {machine}");
        rules.push(rule("out", source));
    }
    for (outside, port) in pairs {
        rules.push(rule(
            "from",
            format!(
                "iifname \"{device}\" {family} saddr {inside} tcp sport {port} \
                 {family} saddr set {target} tcp sport set {outside}"
            ),
        ));
        rules.push(rule(
            "inwards",
            format!(
                "{family} daddr {target} tcp dport {outside} ct status dnat \
                 {family} daddr set {inside} tcp dport set {port} \
                 dup to {inside} device \"{device}\" \
                 {family} daddr set {target} tcp dport set {outside}"
            ),
        ));
    }
    rules
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
