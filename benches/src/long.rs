//! What looks at long connections cost: processor time for each open socket, and for each stretch
//! that is scored.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit};
use serde_json::Value;
use thalweg_lab::host::Side;

use crate::bed::{self, Agent, Worker};
use crate::kernel;
use crate::table::{Target, line, spread};

/// Connections of `run`, both ends of which are on the machine: 100,000 sockets; fewer where a process
/// may not have so many files open.
const CONNECTIONS: usize = 50_000;
/// Connections of `instructions`: as many as a guest has memory for.
pub const FEW: usize = 10_000;
/// The first address; there are at most 65,000.
const FIRST: &str = "10.99.1.0";
/// Data on each connection, bytes: enough with [`KEYS`].
const BYTES: usize = 2000;
/// Looks follow each other as fast as they may, and score what had hardly anything to send.
const KEYS: &str = "[events]\nlog = \"none\"\n\
    [learning]\nstretch = \"1s\"\nscore_min = \"1KiB\"\nscore_full = \"1KiB\"\n";
/// The default interval of looks, s.
const INTERVAL_S: f64 = 30.0;
const PATIENCE: Duration = Duration::from_secs(300);

/// Costs of looks.
pub struct Cost {
    /// Sockets seen by each look.
    sockets: f64,
    /// Per socket without a stretch to score, ns.
    pub socket_ns: f64,
    /// Per stretch scored beside, ns.
    pub stretch_ns: f64,
}

/// Runs the measurement; returns whether the target is met.
pub fn run(binary: &Path) -> Result<bool> {
    // Both ends' processes, and some files beside.
    let (_, files) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let connections = CONNECTIONS.min((files as usize).saturating_sub(200));
    let cost = measure(binary, connections)?;
    println!(
        "{:.0} sockets: {:.0} ns for each, {:.0} ns more for a stretch that is scored",
        cost.sockets, cost.socket_ns, cost.stretch_ns
    );
    let share = |ns: f64| 100_000.0 * ns / 1e9 / INTERVAL_S * 100.0;
    let idle = line(
        "CPU of looks with 100,000 open connections",
        "%",
        &spread(&[share(cost.socket_ns)]),
        &Target::AtMost(1.0),
    );
    // Beyond 1 % looks become rarer. It takes 28 Gbit/s, 1 MiB for each in 30 s.
    println!(
        "the same with a stretch of each scored: {:.2} %",
        share(cost.socket_ns + cost.stretch_ns)
    );
    Ok(idle)
}

/// Figures of looks.
struct Figures {
    number: f64,
    cpu_ns: f64,
    visited: f64,
    stretches: f64,
}

impl Figures {
    fn read(agent: &Agent) -> Result<Self> {
        let status = agent.status()?;
        let figure = |pointer: &str| {
            let value = status.pointer(pointer).and_then(Value::as_f64);
            value.with_context(|| format!("no {pointer} in {status}"))
        };
        ensure!(
            figure("/counters/events_dropped")? == 0.0,
            "events were lost: {status}"
        );
        Ok(Self {
            number: figure("/looks/number")?,
            cpu_ns: figure("/looks/cpu_us")? * 1000.0,
            visited: figure("/counters/visited")?,
            stretches: figure("/counters/stretches")?,
        })
    }

    /// Waits until they fulfil a condition.
    fn when(agent: &Agent, what: &str, holds: impl Fn(&Self) -> bool) -> Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = Self::read(agent)?;
            if holds(&now) {
                return Ok(now);
            }
            ensure!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Opens connections, has the agent look at them, and then sends on each.
pub fn measure(binary: &Path, connections: usize) -> Result<Cost> {
    let pair = bed::pair("long")?;
    kernel::route(&pair)?;
    let agent = Agent::start_with(binary, &pair, "long", KEYS)?;
    let mut server = Worker::start(&pair, Side::Server, &["keep".to_owned()])?;
    server.line()?;
    let arguments = [FIRST, &connections.to_string(), &BYTES.to_string()].map(String::from);
    let mut client = Worker::start(
        &pair,
        Side::Client,
        &[&["open".to_owned()], &arguments[..]].concat(),
    )?;
    client.go_on()?;
    client.line()?;
    let sockets = 2.0 * connections as f64;
    // A look that was under way as the last one was opened counts for nothing.
    let open = Figures::read(&agent)?;
    let before = Figures::when(&agent, "a look", |now| now.number >= open.number + 2.0)?;
    let after = Figures::when(&agent, "looks", |now| now.number >= before.number + 3.0)?;
    let looks = after.number - before.number;
    let seen = (after.visited - before.visited) / looks;
    ensure!(
        (sockets..1.1 * sockets).contains(&seen),
        "a look saw {seen} of {sockets} sockets"
    );
    ensure!(after.stretches == 0.0, "nothing was sent yet");
    let look_ns = (after.cpu_ns - before.cpu_ns) / looks;
    client.go_on()?;
    client.line()?;
    let all = connections as f64;
    let scored = Figures::when(&agent, "stretches", |now| now.stretches >= 0.9 * all)?;
    // The look at the last of them is over.
    let scored = Figures::when(&agent, "a look", |now| now.number >= scored.number + 1.0)?;
    let idle_ns = (scored.number - after.number) * look_ns;
    Ok(Cost {
        sockets: seen,
        socket_ns: look_ns / seen,
        stretch_ns: (scored.cpu_ns - after.cpu_ns - idle_ns) / scored.stretches,
    })
}
