//! Agents, servers and links of a fleet are killed, a thousand times in half an hour: nobody may lose
//! what it knows by itself, and whoever is back has the latest policy within ten seconds.
//!
//! A cluster of three servers, many agents without a kernel (`light.rs`), and two real ones with traffic.
//! Servers and groups of agents are in namespaces, joined by a bridge whose ports are the links.

mod operator;
mod real;
mod verdict;
mod wires;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use thalweg_fleet::Limits;
use thalweg_process::{Process, interrupt};
use thalweg_units::Size;
use thalweg_units::random::Random;

use self::operator::Operations;
use self::real::Real;
use self::verdict::Verdict;
use self::wires::{Wires, address};
use super::light::{self, Own};
use super::server::{self, Server, wait_for, wait_within, within};

/// Whoever is back has the latest policy after this.
const CATCH_UP: Duration = Duration::from_secs(10);
/// Between two looks at what happened.
const TICK: Duration = Duration::from_millis(50);
/// Servers, groups of light agents, and real agents: each has a link.
const SERVERS: usize = 3;
const GROUPS: usize = 4;
const REALS: usize = 2;
/// Ends of links, by number.
const FIRST_GROUP: usize = SERVERS;
const FIRST_REAL: usize = FIRST_GROUP + GROUPS;
const OPERATOR: usize = FIRST_REAL + REALS;
const ENDS: usize = OPERATOR + 1;
/// A cluster gets so long between two disturbances of its own: elections take their time.
const REST: Duration = Duration::from_secs(5);
/// Longest wait for the cluster at the beginning, and for what is true at the end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Places of files as `thalweg fleet init` writes them: three servers are on one machine here.
const AT: &str = "/thalweg-soak-at";
const STORE: &str = "/thalweg-soak-store";

/// Size of the bucket of priors.
const SIZE: &str = "64MB";

/// What is to be done.
pub struct Plan {
    /// How often something is killed.
    pub kills: u32,
    /// In this time, minutes.
    pub minutes: f64,
    /// Agents without a kernel.
    pub agents: usize,
    /// Seed of what is killed when.
    pub seed: u64,
}

/// What can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Light(usize),
    Real(usize),
    Server(usize),
    Link(usize),
}

impl Victim {
    fn kind(self) -> &'static str {
        match self {
            Self::Light(_) => "light agent",
            Self::Real(_) => "agent",
            Self::Server(_) => "server",
            Self::Link(_) => "link",
        }
    }

    fn number(self) -> usize {
        match self {
            Self::Light(it) | Self::Real(it) | Self::Server(it) | Self::Link(it) => it,
        }
    }

    /// Whether the cluster is disturbed.
    fn is_cluster(self) -> bool {
        matches!(self, Self::Server(_)) || matches!(self, Self::Link(it) if it < SERVERS)
    }
}

/// A light agent.
struct Light {
    name: String,
    process: Option<Process>,
    /// Which process of this agent a line is of.
    generation: u64,
    /// When its process said that it began.
    began: Option<Instant>,
    /// What it said last that it knows.
    own: Own,
}

/// A line of a light agent.
struct Line {
    agent: usize,
    generation: u64,
    text: String,
}

/// All of it.
struct Soak {
    random: Random,
    start: Instant,
    out: File,
    directory: PathBuf,
    key: String,
    wires: Wires,
    servers: Vec<Server>,
    /// Since when each link is up; none: it is down.
    links: Vec<Option<Instant>>,
    lights: Vec<Light>,
    reals: Vec<Real>,
    operations: Operations,
    /// What will be there again, and when.
    down: Vec<(Instant, Victim)>,
    /// When the cluster was last whole again.
    whole: Instant,
    lines: (Sender<Line>, Receiver<Line>),
    verdict: Verdict,
}

/// Runs it; returns whether all was as it must be.
pub fn run(binary: &Path, plan: &Plan, out: &Path) -> Result<bool> {
    ensure!(
        plan.kills > 0 && plan.agents > 0,
        "expected kills and agents"
    );
    let missing = thalweg_lab::host::missing_requirements();
    ensure!(
        missing.is_empty(),
        "cannot run here: {}",
        missing.join("; ")
    );
    let program = server::program(binary)?;
    let _guard = interrupt::Guard::install_handlers()?;
    let directory = tempfile::tempdir()?;
    let out = File::create(out).with_context(|| format!("creating {}", out.display()))?;
    let mut soak = Soak::new(binary, &program, plan, directory.path(), out)?;
    let pause = Duration::from_secs_f64(plan.minutes * 60.0 / f64::from(plan.kills));
    soak.start = Instant::now();
    for number in 0..plan.kills {
        soak.until(soak.start + pause * number)?;
        let victim = soak.victim();
        soak.kill(victim)?;
        if (number + 1) % (plan.kills / 10).max(1) == 0 {
            eprintln!(
                "{} of {} kills; {}",
                number + 1,
                plan.kills,
                soak.verdict.brief()
            );
        }
    }
    soak.end()?;
    Ok(soak.verdict.print(plan, soak.start.elapsed()))
}

impl Soak {
    fn new(
        binary: &Path,
        program: &Path,
        plan: &Plan,
        directory: &Path,
        out: File,
    ) -> Result<Self> {
        let wires = Wires::new(ENDS)?;
        let names: Vec<String> = (0..plan.agents).map(|it| format!("light{it}")).collect();
        let real_names: Vec<String> = (0..REALS).map(|it| format!("real{it}")).collect();
        let key = found(binary, directory, names.iter().chain(&real_names))?;
        let mut servers = Vec::new();
        for number in 0..SERVERS {
            let configuration = placed(directory, number)?;
            let namespace = wires.namespace(number).to_owned();
            let mut server = Server::new(program, configuration, Some(namespace));
            server.start()?;
            servers.push(server);
        }
        let urls: Vec<String> = (0..SERVERS).map(url).collect();
        let fleet = directory.join("fleet");
        let buckets = [
            "fleet",
            "buckets",
            &*fleet.to_string_lossy(),
            "--size",
            SIZE,
        ]
        .map(String::from);
        wait_within(PATIENCE, "the cluster", || {
            servers.iter_mut().try_for_each(Server::check)?;
            let mut command = within(Some(wires.namespace(OPERATOR)), binary);
            Ok(command
                .args(&buckets)
                .output()?
                .status
                .success()
                .then_some(()))
        })?;
        let operations = Operations::start(&fleet, &urls, wires.namespace(OPERATOR), limits())?;
        let mut reals = Vec::new();
        for (number, name) in real_names.iter().enumerate() {
            let namespace = wires.namespace(FIRST_REAL + number);
            reals.push(Real::start(binary, &fleet, name, &urls, namespace, &key)?);
        }
        let now = Instant::now();
        let lights = names.into_iter().map(|name| Light {
            name,
            process: None,
            generation: 0,
            began: None,
            own: Own::default(),
        });
        let mut soak = Self {
            random: Random::new(plan.seed),
            start: now,
            out,
            directory: directory.to_owned(),
            key,
            wires,
            servers,
            links: vec![Some(now); ENDS],
            lights: lights.collect(),
            reals,
            operations,
            down: Vec::new(),
            whole: now,
            lines: channel(),
            verdict: Verdict::default(),
        };
        for light in 0..soak.lights.len() {
            soak.start_light(light)?;
        }
        wait_for("all agents to begin", || {
            soak.hear()?;
            Ok(soak
                .lights
                .iter()
                .all(|it| it.began.is_some())
                .then_some(()))
        })?;
        Ok(soak)
    }

    fn start_light(&mut self, number: usize) -> Result<()> {
        let namespace = self.wires.namespace(group_of(number));
        let own = std::env::current_exe()?;
        let mut command = within(Some(namespace), &own);
        let light = &mut self.lights[number];
        command
            .args(["worker", "light"])
            .arg(self.directory.join("fleet"))
            .arg(&light.name)
            .arg(self.directory.join(format!("{}.json", light.name)))
            .arg(&self.key)
            .args((0..SERVERS).map(url))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command)?;
        let output = process.child_mut().stdout.take().context("piped")?;
        light.generation += 1;
        light.began = None;
        light.process = Some(process);
        let (generation, sender) = (light.generation, self.lines.0.clone());
        std::thread::spawn(move || {
            for text in BufReader::new(output).lines().map_while(Result::ok) {
                let line = Line {
                    agent: number,
                    generation,
                    text,
                };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Something to kill. The cluster has at most one server away, and rests between.
    fn victim(&mut self) -> Victim {
        let is_whole = !self.down.iter().any(|(_, victim)| victim.is_cluster());
        let rested = is_whole && self.whole.elapsed() >= REST;
        loop {
            let victim = match self.random.below(100) {
                0..60 => Victim::Light(self.random.below(self.lights.len() as u64) as usize),
                60..66 => Victim::Real(self.random.below(REALS as u64) as usize),
                66..80 => Victim::Server(self.random.below(SERVERS as u64) as usize),
                // The operator's link stays: by it the cluster is watched.
                _ => Victim::Link(self.random.below(OPERATOR as u64) as usize),
            };
            let is_down = self.down.iter().any(|(_, other)| *other == victim);
            let is_busy = matches!(victim, Victim::Real(it) if !self.reals[it].is_up());
            if !is_down && !is_busy && (rested || !victim.is_cluster()) {
                return victim;
            }
        }
    }

    fn kill(&mut self, victim: Victim) -> Result<()> {
        let away = match victim {
            Victim::Light(it) => {
                // What it had said by now is on disk.
                self.hear()?;
                let light = &mut self.lights[it];
                light.process = None;
                light.began = None;
                Duration::from_millis(self.random.below(1000))
            }
            Victim::Real(it) => {
                self.reals[it].kill();
                Duration::ZERO
            }
            Victim::Server(it) => {
                self.servers[it].kill();
                Duration::from_millis(200 + self.random.below(2000))
            }
            Victim::Link(it) => {
                self.wires.set(it, false)?;
                self.links[it] = None;
                Duration::from_millis(1000 + self.random.below(3000))
            }
        };
        self.down.push((Instant::now() + away, victim));
        self.verdict.note_kill(victim.kind());
        self.write(&json!({ "killed": victim.kind(), "number": victim.number() }))
    }

    fn restore(&mut self, victim: Victim) -> Result<()> {
        match victim {
            Victim::Light(it) => self.start_light(it)?,
            Victim::Real(_) => {}
            Victim::Server(it) => self.servers[it].start()?,
            Victim::Link(it) => {
                self.wires.set(it, true)?;
                self.links[it] = Some(Instant::now());
            }
        }
        if victim.is_cluster() {
            self.whole = Instant::now();
        }
        Ok(())
    }

    /// Attends to all until a moment.
    fn until(&mut self, until: Instant) -> Result<()> {
        loop {
            interrupt::check_interrupt()?;
            let now = Instant::now();
            let (due, later) = self.down.drain(..).partition(|(at, _)| *at <= now);
            self.down = later;
            for (_, victim) in Vec::from_iter::<Vec<(Instant, Victim)>>(due) {
                self.restore(victim)?;
            }
            self.hear()?;
            self.judge()?;
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            std::thread::sleep(TICK.min(until - now));
        }
    }

    /// Takes what agents said.
    fn hear(&mut self) -> Result<()> {
        while let Ok(line) = self.lines.1.try_recv() {
            let mut words = line.text.split(' ');
            let what = words.next().unwrap_or_default().to_owned();
            let mut number = || words.next()?.parse::<u64>().ok();
            let (Some(measured), Some(policy)) = (number(), number()) else {
                continue;
            };
            let now = Own {
                measured: measured as u32,
                policy,
            };
            let light = &mut self.lights[line.agent];
            if now.measured < light.own.measured || now.policy < light.own.policy {
                let text = format!("{}: had {:?}, then {now:?}", light.name, light.own);
                self.verdict.note_lost(&text);
                writeln!(self.out, "{}", json!({ "lost": text }))?;
            }
            let light = &mut self.lights[line.agent];
            light.own = now;
            if what == "began" && light.generation == line.generation {
                light.began = Some(Instant::now());
            }
        }
        for real in &mut self.reals {
            for text in real.lost() {
                self.verdict.note_lost(&text);
                writeln!(self.out, "{}", json!({ "lost": text }))?;
            }
        }
        Ok(())
    }

    /// Since when everything that an agent needs is there: its process, its link, and the cluster.
    fn back(&self, began: Option<Instant>, link: usize) -> Option<Instant> {
        let cluster = self.operations.available()?;
        let mut since = began?.max(self.links[link]?).max(cluster);
        for server in 0..SERVERS {
            // An agent may hang on to any server, whose link is gone without a word.
            since = since.max(self.links[server]?);
        }
        Some(since)
    }

    /// Whether everybody who is back has the latest policy.
    fn judge(&mut self) -> Result<()> {
        let now = Instant::now();
        let published = self.operations.published();
        let mut rows = Vec::new();
        for (number, light) in self.lights.iter().enumerate() {
            let back = self.back(light.began, group_of(number));
            rows.push((light.name.clone(), back, Some(light.own.policy)));
        }
        for (number, real) in self.reals.iter().enumerate() {
            let back = self.back(real.began(), FIRST_REAL + number);
            rows.push((real.name().to_owned(), back, real.policy()));
        }
        for (agent, back, has) in rows {
            let Some(has) = has else { continue };
            if let Some(text) = self.verdict.judge(&agent, back, has, &published, now) {
                let last = self.faults(&agent);
                let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
                self.write(&json!({ "late": text, "time": time, "faults": last }))?;
            }
        }
        Ok(())
    }

    /// What an agent's client said last that is wrong.
    fn faults(&self, agent: &str) -> Vec<String> {
        let log = light::log_of(&self.directory.join(format!("{agent}.json")));
        let log = fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(8)..];
        last.iter().map(|line| (*line).to_owned()).collect()
    }

    /// All is there again: nothing may be missing.
    fn end(&mut self) -> Result<()> {
        let due = self.down.iter().map(|(at, _)| *at).max();
        self.until(due.unwrap_or_else(Instant::now))?;
        self.operations.stop_publishing();
        self.until(Instant::now() + CATCH_UP + Duration::from_secs(2))?;
        // What agents told before has reached the bucket, whoever was killed meanwhile.
        let wanted: Vec<(String, u32)> = (self.lights.iter())
            .map(|light| (light.name.clone(), light.own.measured))
            .collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.until(Instant::now() + TICK)?;
            let missing = self.operations.missing(&wanted);
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                for agent in missing {
                    self.verdict.note_untold(&agent);
                    let (last, has) = (self.faults(&agent), self.operations.measured(&agent));
                    self.write(&json!({ "untold": agent, "bucket": has, "faults": last }))?;
                }
                return Ok(());
            }
        }
    }

    fn write(&mut self, what: &serde_json::Value) -> Result<()> {
        let seconds = self.start.elapsed().as_secs_f64();
        writeln!(self.out, "{}", json!({ "seconds": seconds, "what": what }))?;
        Ok(())
    }
}

/// The limits that `thalweg fleet buckets` gives the buckets.
fn limits() -> Limits {
    let size: Size = SIZE.parse().expect("a size");
    Limits {
        bytes: size.bytes(),
        replicas: SERVERS as u8,
        ..Limits::default()
    }
}

/// The end at which a light agent is.
fn group_of(light: usize) -> usize {
    FIRST_GROUP + light % GROUPS
}

fn url(server: usize) -> String {
    format!("tls://{}:4222", address(server))
}

/// Keys and configurations; returns the key of policies.
fn found<'a>(
    binary: &Path,
    directory: &Path,
    agents: impl Iterator<Item = &'a String>,
) -> Result<String> {
    let mut command = Command::new(binary);
    command
        .args(["--json", "fleet", "init"])
        .arg(directory.join("fleet"));
    for server in 0..SERVERS {
        command.args(["--server", &address(server)]);
    }
    for agent in agents.map(String::as_str).chain([operator::LISTENER]) {
        command.args(["--agent", agent]);
    }
    command.args(["--at", AT, "--store", STORE, "--store-size", "512MB"]);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "thalweg fleet init: {said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let key = report["policy_key"].as_str().context("a key")?;
    Ok(key.to_owned())
}

/// A server's configuration with places of its own.
fn placed(directory: &Path, server: usize) -> Result<PathBuf> {
    let at = directory.join("fleet/servers").join(address(server));
    let file = at.join("nats-server.conf");
    let text = fs::read_to_string(&file)?;
    let store = directory.join(format!("store-{server}"));
    let text = text
        .replace(AT, &at.to_string_lossy())
        .replace(STORE, &store.to_string_lossy());
    let own = at.join("soak.conf");
    fs::write(&own, text)?;
    Ok(own)
}
