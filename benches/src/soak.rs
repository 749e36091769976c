//! A long time of connections while policies are swapped and the agent is reloaded and restarted:
//! memory, open files, pins, kernel memory and disk must not grow, and no connection may be missed.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde::Serialize;
use thalweg_lab::host::{Pair, Side};

use crate::bed::{self, Agent, Worker};
use crate::kernel::{program_count, route};
use crate::table::{Target, line, spread};

/// Time between two looks at the agent.
const TICK: Duration = Duration::from_secs(5);
/// Ticks between two policies, two reloads, and two readings of everything.
const POLICY: usize = 4;
const RELOAD: usize = 6;
const READ: usize = 2;
/// Ticks between two restarts, all in the first third: what is judged is of one process.
const RESTART: usize = 12;
/// Hosts that are visited at a time, and how many a second are new: the table is always full.
const VISITED: u32 = 8192;
const DRIFT: f64 = 2.0;
/// A table and a store that are full before the first third is over.
const KEYS: &str = "[hosts]\nmax = 4096\n[events]\nlog = \"none\"\nretention_max = 20000\n\
                    [snapshot]\ninterval = \"5s\"\n";

/// A look at the agent and at what it left.
#[derive(Serialize, Clone)]
struct Look {
    /// Since the beginning, s.
    seconds: f64,
    /// How often the agent was started anew.
    restarts: usize,
    /// Reloads and policies so far.
    reloads: usize,
    policies: usize,
    /// Memory of the agent's own, and with pages of files, KiB.
    anonymous_kib: u64,
    resident_kib: u64,
    files: usize,
    threads: usize,
    /// Pinned objects, those of the policy included.
    pins: usize,
    /// Kernel memory of the agent's maps, bytes.
    map_bytes: u64,
    /// BPF programs of the whole machine.
    programs: usize,
    /// The store with its journal, bytes.
    disk_bytes: u64,
    hosts: u64,
    events_dropped: u64,
    /// Connections that ended and that failed, and bytes sent, so far.
    ended: u64,
    failed: u64,
    bytes: u64,
}

/// The bed, the load and what was done to them.
struct Soak {
    agent: Agent,
    load: Worker,
    start: Instant,
    restarts: usize,
    reloads: usize,
    policies: usize,
}

/// Runs it; returns whether the targets are met.
pub fn run(binary: &Path, minutes: f64, rate: f64, out: &Path) -> Result<bool> {
    let ticks = (minutes * 60.0 / TICK.as_secs_f64()).round() as usize;
    ensure!(ticks >= 24, "expected at least 2 minutes, found {minutes}");
    let mut file = File::create(out).with_context(|| format!("creating {}", out.display()))?;
    let pair = bed::pair("soak")?;
    route(&pair)?;
    let agent = Agent::start_with(binary, &pair, "soak", KEYS)?;
    let mut server = Worker::start(&pair, Side::Server, &["drain".to_string()])?;
    server.line()?;
    let load = load(&pair, rate)?;
    let mut soak = Soak {
        agent,
        load,
        start: Instant::now(),
        restarts: 0,
        reloads: 0,
        policies: 0,
    };
    let mut looks = Vec::with_capacity(ticks);
    for tick in 1..=ticks {
        let due = TICK * tick as u32;
        std::thread::sleep(due.saturating_sub(soak.start.elapsed()));
        soak.disturb(tick, tick <= ticks / 3)?;
        let look = soak.look()?;
        writeln!(file, "{}", serde_json::to_string(&look)?)?;
        if tick.is_multiple_of(12) {
            let left = minutes - look.seconds / 60.0;
            eprintln!(
                "{:.0} min: {} connections, {} failed, {} KiB, {} files; {left:.0} min left",
                look.seconds / 60.0,
                look.ended,
                look.failed,
                look.anonymous_kib,
                look.files
            );
        }
        looks.push(look);
    }
    let missed = soak.missed()?;
    Ok(verdict(&looks, missed))
}

fn load(pair: &Pair, rate: f64) -> Result<Worker> {
    let arguments = [
        "mix",
        "10.99.1.0",
        &VISITED.to_string(),
        &DRIFT.to_string(),
        &rate.to_string(),
    ];
    Worker::start(pair, Side::Client, &arguments.map(String::from))
}

impl Drop for Soak {
    fn drop(&mut self) {
        // There may be none.
        let _ = self.agent.command(&["policy", "remove"]);
    }
}

impl Soak {
    /// What an operator and the machine do to an agent.
    fn disturb(&mut self, tick: usize, restarts: bool) -> Result<()> {
        if tick.is_multiple_of(POLICY) {
            self.policy()?;
        }
        if tick.is_multiple_of(RELOAD) {
            self.reloads += 1;
            let memory = 8 + self.reloads % 2;
            let keys = format!("{KEYS}[learning]\nmemory = {memory}.0\n");
            self.agent.configure(&keys)?;
            self.agent.command(&["reload"])?;
        }
        if tick.is_multiple_of(READ) {
            self.agent.answer("hosts")?;
            self.agent.answer("events")?;
            self.agent.command(&["metrics"])?;
        }
        if restarts && tick.is_multiple_of(RESTART) {
            self.restarts += 1;
            let signals = [Signal::SIGTERM, Signal::SIGKILL];
            self.agent.restart(signals[self.restarts % 2])?;
        }
        Ok(())
    }

    /// Another policy, or the one before, or none.
    fn policy(&mut self) -> Result<()> {
        self.policies += 1;
        match self.policies % 4 {
            0 => self.agent.command(&["policy", "remove"]),
            3 => self.agent.command(&["policy", "rollback"]),
            number => {
                let file = self.agent.state().with_file_name("policy.toml");
                let text = format!(
                    "name = \"soak\"\n[[rule]]\nname = \"far\"\n\
                     match = {{ remote = \"10.99.{}.0/24\" }}\nset = {{ cwnd_clamp = 100 }}\n",
                    number
                );
                fs::write(&file, text)?;
                let file = file.to_str().context("the policy's path is not text")?;
                self.agent.command(&["policy", "apply", file])
            }
        }
    }

    /// Connections that ended and that failed, and bytes sent; `stop` ends the load first.
    fn counts(&mut self, word: &str) -> Result<[u64; 3]> {
        self.load.say(word)?;
        let said = self.load.line()?;
        let numbers: Vec<u64> = (said.split(' ').map(str::parse))
            .collect::<Result<_, _>>()
            .with_context(|| format!("reading {said:?}"))?;
        numbers.try_into().ok().context("three numbers")
    }

    fn look(&mut self) -> Result<Look> {
        let [ended, failed, bytes] = self.counts("go")?;
        let process = format!("/proc/{}", self.agent.pid());
        let status = fs::read_to_string(format!("{process}/status"))?;
        let field = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|rest| rest.split_whitespace().next());
            Ok(word.with_context(|| format!("no {name}"))?.parse()?)
        };
        let told = self.agent.status()?;
        let figure = |name: &str| told.pointer(name).and_then(serde_json::Value::as_u64);
        Ok(Look {
            seconds: self.start.elapsed().as_secs_f64(),
            restarts: self.restarts,
            reloads: self.reloads,
            policies: self.policies,
            anonymous_kib: field("RssAnon:")?,
            resident_kib: field("VmRSS:")?,
            files: fs::read_dir(format!("{process}/fd"))?.count(),
            threads: field("Threads:")? as usize,
            pins: walk(&self.agent.pin)?.0,
            map_bytes: figure("/map_bytes").context("no map_bytes")?,
            programs: program_count(),
            disk_bytes: walk(&self.agent.state())?.1,
            hosts: figure("/hosts").context("no hosts")?,
            events_dropped: figure("/counters/events_dropped").context("no events_dropped")?,
            ended,
            failed,
            bytes,
        })
    }

    /// Connections that the programs have not seen, once the load has ended.
    fn missed(&mut self) -> Result<u64> {
        let [ended, failed, _] = self.counts("stop")?;
        // Both ends of each are this machine's.
        let wanted = 2 * (ended + failed);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let seen = self.agent.figure("/counters/established")?;
            if seen >= wanted || Instant::now() > deadline {
                return Ok(wanted.saturating_sub(seen));
            }
        }
    }
}

/// Number of files under a directory, and their bytes.
fn walk(directory: &Path) -> Result<(usize, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // A journal may end between the two.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() {
            let inner = walk(&entry.path())?;
            (files, bytes) = (files + inner.0, bytes + inner.1);
        } else {
            (files, bytes) = (files + 1, bytes + metadata.len());
        }
    }
    Ok((files, bytes))
}

/// Prints what grew between the first and the last quarter of the second half: the last process has
/// filled its caches (SQLite's, two MB) by then.
fn verdict(looks: &[Look], missed: u64) -> bool {
    let judged = &looks[looks.len() / 2..];
    let quarter = judged.len() / 4;
    let (first, last) = (&judged[..quarter], &judged[judged.len() - quarter..]);
    let end = &looks[looks.len() - 1];
    println!(
        "{:.0} minutes: {} connections, {:.1} GB, {} restarts, {} reloads, {} changes of policy, \
         {} events dropped",
        end.seconds / 60.0,
        end.ended,
        end.bytes as f64 / 1e9,
        end.restarts,
        end.reloads,
        end.policies,
        end.events_dropped
    );
    let one = |value: f64| spread(&[value]);
    let mut met = line(
        "connections failed",
        "",
        &one(end.failed as f64),
        &Target::AtMost(0.0),
    );
    let name = "ends of connections that the programs did not see";
    met &= line(name, "", &one(missed as f64), &Target::AtMost(0.0));
    type Figure = fn(&Look) -> f64;
    let figures: [(&str, &str, Figure, f64); 6] = [
        (
            "memory of its own",
            "KiB",
            |look| look.anonymous_kib as f64,
            256.0,
        ),
        ("open files", "", |look| look.files as f64, 0.0),
        // Those of the API come and go.
        ("threads", "", |look| look.threads as f64, 2.0),
        ("pins", "", |look| look.pins as f64, 0.0),
        (
            "kernel memory of its maps",
            "KiB",
            |look| look.map_bytes as f64 / 1024.0,
            0.0,
        ),
        ("disk", "KiB", |look| look.disk_bytes as f64 / 1024.0, 256.0),
    ];
    for (name, unit, figure, most) in figures {
        let of = |looks: &[Look]| spread(&looks.iter().map(figure).collect::<Vec<_>>());
        let (before, after) = (of(first), of(last));
        println!(
            "{name}: {:.0} {unit} [{:.0} … {:.0}], then {:.0} [{:.0} … {:.0}]",
            before.median, before.low, before.high, after.median, after.low, after.high
        );
        let growth = one(after.median - before.median);
        met &= line(
            &format!("  growth, {name}"),
            unit,
            &growth,
            &Target::AtMost(most),
        );
    }
    met
}
