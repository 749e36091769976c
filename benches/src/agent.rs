//! Memory and CPU of the agent, idle and under 10,000 connections a second.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use thalweg_lab::host::{Pair, Side};

use crate::bed::{self, Agent, Worker};
use crate::kernel;
use crate::table::{Target, line, spread};

const IDLE: Duration = Duration::from_secs(10);
const SECONDS: f64 = 10.0;
/// Two clients, so that two CPUs can generate the load.
const CLIENTS: u64 = 2;
const RATE: u64 = 10_000;

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Runs the measurement; returns whether the targets are met.
pub fn run(binary: &Path) -> Result<bool> {
    let pair = bed::pair("agent")?;
    let agent = Agent::start(binary, &pair, "agent")?;

    kernel::fill_hosts(&agent, 1)?;
    // One scored transfer: a record to save, and a decision for each later connection.
    bed::transfer(&pair, 4_000_000, None)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while agent.status()?["snapshot_age_s"].is_null() {
        anyhow::ensure!(Instant::now() < deadline, "no snapshot was saved");
        std::thread::sleep(Duration::from_millis(100));
    }

    let (before, start) = (cpu_seconds(agent.pid())?, Instant::now());
    std::thread::sleep(IDLE);
    let idle = (cpu_seconds(agent.pid())? - before) / start.elapsed().as_secs_f64() * 100.0;
    let resident = mib(agent.figure("/resident_bytes")?);
    let maps = mib(agent.figure("/map_bytes")?);
    println!(
        "agent, idle, {} hosts known and saved; its maps hold {maps:.1} MiB of kernel memory",
        agent.figure("/hosts")?
    );
    let mut met = line(
        "resident memory, idle",
        "MiB",
        &spread(&[resident]),
        &Target::AtMost(32.0),
    );
    met &= line("CPU, idle", "%", &spread(&[idle]), &Target::AtMost(0.5));

    Ok(met & under_load(&agent, &pair)?)
}

/// Measures the agent while connections come and go; returns whether the targets are met.
fn under_load(agent: &Agent, pair: &Pair) -> Result<bool> {
    let mut server = Worker::start(pair, Side::Server, &["greet".to_string()])?;
    server.line()?;
    let address = pair.first_address(Side::Server).to_string();
    let arguments = [
        "loop",
        &address,
        &SECONDS.to_string(),
        &(RATE / CLIENTS).to_string(),
    ]
    .map(String::from);
    let mut clients = (0..CLIENTS)
        .map(|_| Worker::start(pair, Side::Client, &arguments))
        .collect::<Result<Vec<_>>>()?;
    let before = cpu_seconds(agent.pid())?;
    for client in &mut clients {
        client.go_on()?;
    }
    let mut connections = 0.0;
    for client in &mut clients {
        let line = client.line()?;
        connections += line
            .split_once(' ')
            .context("two numbers")?
            .0
            .parse::<f64>()?;
    }
    let busy = (cpu_seconds(agent.pid())? - before) / SECONDS * 100.0;
    // The transfer is extra; both ends see each connection.
    let expected = 2 * (connections as u64 + 1);
    let deadline = Instant::now() + Duration::from_secs(20);
    while agent.figure("/counters/closed")? < expected && Instant::now() < deadline {}
    let count = |name: &str| agent.figure(&format!("/counters/{name}"));
    let handed = count("events")?;
    let dropped = count("events_dropped")?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while agent.figure("/events_stored")? < handed && Instant::now() < deadline {}
    println!(
        "under load: {:.0} connections/s, agent at {busy:.0} % of a CPU, {:.1} MiB resident",
        connections / SECONDS,
        mib(agent.figure("/resident_bytes")?)
    );
    println!(
        "  {} of {expected} ends established, {} closed; {handed} events handed over, {} stored, {dropped} dropped",
        count("established")?,
        count("closed")?,
        agent.figure("/events_stored")?,
    );
    // The connecting end of each makes a decision, and the transfer was scored. Each of these
    // events was delivered or counted as dropped.
    let accounted = (handed + dropped) as f64 / (connections + 1.0);
    let mut met = line(
        "events accounted for",
        "",
        &spread(&[accounted]),
        &Target::AtLeast(1.0),
    );
    let stored = agent.figure("/events_stored")? as f64 / handed as f64;
    met &= line(
        "events stored of those handed over",
        "",
        &spread(&[stored]),
        &Target::AtLeast(1.0),
    );
    let rate = connections / SECONDS;
    met &= line(
        "load reached",
        "conn/s",
        &spread(&[rate]),
        &Target::AtLeast(0.99 * RATE as f64),
    );
    Ok(met)
}

/// User and system time of a process, seconds.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may contain spaces and brackets, so fields are counted after it (proc_pid_stat(5)).
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .context("stat")?
        .split_whitespace()
        .collect();
    let ticks = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    // SAFETY: sysconf has no preconditions.
    Ok(ticks / unsafe { nix::libc::sysconf(nix::libc::_SC_CLK_TCK) } as f64)
}
