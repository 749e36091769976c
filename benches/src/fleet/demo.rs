//! `make fleet-demo`: a server, three agents that learn, and a new one that begins with what they know.
//!
//! Each agent has namespaces, a cgroup, a store and pins of its own. All measure the same network, whose
//! packets this process delays and loses: the kernel needs no netem. Between the agents there is nothing
//! but the server.

use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use thalweg_fleet::wire::{Measured, Network};
use thalweg_fleet::{Fleet, Identity, Incoming, Name, Settings};
use thalweg_lab::host::{Pair, PairOptions, Side, WireKind};
use thalweg_lab::scenario::PathModel;
use thalweg_process::{Process, interrupt};
use thalweg_units::figures::three_digits;

use super::server::{self, Server, free_port, wait_for, wait_within};
use crate::bed::{Agent, Worker};
use crate::table::spread;

/// The network: delay one way, ms, share of packets that are lost in silence, rate.
const DELAY: &str = "10ms";
const LOSS: f64 = 0.03;
const RATE: &str = "100mbit";
const QUEUE: &str = "500kb";
/// The default, and what does better there.
const DEFAULT: &str = "cubic";
const BETTER: &str = "bbr";
/// Bytes of a transfer: enough for full weight.
const BYTES: usize = 1_100_000;
/// Hosts that an agent visits, at a time, and hosts beyond which the new agents visit.
const HOSTS: u32 = 96;
const AT_A_TIME: u32 = 4;
const FIRSTS: u32 = 16;
/// Longest time until three agents have told; they look at their networks every minute.
const PATIENCE: Duration = Duration::from_secs(100);
/// Who listens to what the agents tell.
const LISTENER: &str = "listener";
const LEARNERS: [&str; 3] = ["web1", "web2", "web3"];
const NEW: &str = "web4";
const ALONE: &str = "alone";

/// What an agent told.
#[derive(Serialize)]
struct Learned {
    agent: String,
    /// Connections that it has measured.
    connections: u64,
    network: String,
    /// Its evidence for the default and for what is better, measurements.
    evidence_default: f64,
    evidence_better: f64,
    /// Cost of the better one above the default, bits: −1 is half the time a byte.
    difference_bits: f64,
    /// Median goodput of its connections with either, bit/s.
    default_bps: f64,
    better_bps: f64,
}

/// What became of a new agent.
#[derive(Serialize)]
struct Begun {
    agent: String,
    in_fleet: bool,
    /// What others told it.
    agents: u64,
    networks: u64,
    /// Its first decision, and what it was made by.
    first_arm: String,
    first_level: String,
    /// Of its first connections, each to a new host, those with the better one; all.
    better: usize,
    connections: usize,
    /// Goodput of the first one, and the median, bit/s.
    first_bps: f64,
    median_bps: f64,
}

#[derive(Serialize)]
struct Report {
    network: String,
    default: &'static str,
    better: &'static str,
    server: String,
    learned: Vec<Learned>,
    begun: Vec<Begun>,
    /// Goodput of the first connections with the fleet, by that without.
    ratio: f64,
    seconds: f64,
    met: bool,
}

/// One connection of a visitor.
struct Visit {
    host: IpAddr,
    bps: f64,
}

/// A place for one agent.
struct Place {
    name: &'static str,
    pair: Pair,
    _drain: Worker,
}

/// Runs it; returns whether the new agent began with what the others know.
pub fn run(binary: &Path, json: bool) -> Result<bool> {
    let begun = Instant::now();
    let missing = missing();
    ensure!(
        missing.is_empty(),
        "cannot run here: {}",
        missing.join("; ")
    );
    let program = server::program(binary)?;
    // Ctrl-C ends a wait, and everything is removed in order.
    let _guard = interrupt::Guard::install_handlers()?;
    let directory = tempfile::tempdir()?;
    let say = |text: &str| {
        if !json {
            println!("{text}");
        }
    };

    let mut fleet = Founded::new(binary, &program, directory.path())?;
    say(&format!(
        "== nats-server at {}, TLS; keys by `thalweg fleet init`",
        fleet.url
    ));
    let mut places = Vec::new();
    for name in LEARNERS.into_iter().chain([NEW, ALONE]) {
        places.push(Place::new(name)?);
    }
    say(&format!(
        "== {} learn alone: a network of {DELAY} each way, {RATE}, {} % of packets lost",
        LEARNERS.join(", "),
        three_digits(LOSS * 100.0)
    ));
    let mut agents = Vec::new();
    for place in &places[..LEARNERS.len()] {
        agents.push(start(binary, place, Some(&fleet))?);
    }
    let learned = learn(&mut fleet, &places[..LEARNERS.len()], &agents)?;
    say(&learned_table(&learned));
    say(&format!(
        "== {NEW} is new and in the fleet; {ALONE} is new and in none. \
         {FIRSTS} connections each, every one to a new host"
    ));
    let news = begin(binary, &fleet, &places[LEARNERS.len()..])?;
    fleet.server.check()?;
    say(&begun_table(&news));

    let [new, alone] = &news[..] else {
        bail!("two agents began")
    };
    let ratio = new.median_bps / alone.median_bps;
    let met = new.first_arm == BETTER
        && new.first_level == "fleet-prefix"
        && alone.first_level == "host"
        && ratio > 1.0;
    let report = Report {
        network: format!("{DELAY} each way, {RATE}, {LOSS} lost"),
        default: DEFAULT,
        better: BETTER,
        server: fleet.url.clone(),
        learned,
        begun: news,
        ratio,
        seconds: begun.elapsed().as_secs_f64(),
        met,
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{}", verdict(&report));
    }
    Ok(met)
}

/// What this machine lacks, one line each.
fn missing() -> Vec<String> {
    let mut missing = thalweg_lab::host::missing_requirements();
    if missing.is_empty() {
        // It may be a module that nobody has used yet.
        let loaded = Command::new("modprobe").arg("tcp_bbr").output();
        drop(loaded);
        let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        let known = known.unwrap_or_default();
        if !known.split_whitespace().any(|name| name == BETTER) {
            missing.push(format!("this kernel has no {BETTER} (CONFIG_TCP_CONG_BBR)"));
        }
        if !Path::new("/dev/net/tun").exists() {
            missing.push("no /dev/net/tun (CONFIG_TUN)".to_owned());
        }
    }
    missing
}

/// A server with keys and buckets.
struct Founded {
    directory: PathBuf,
    url: String,
    server: Server,
    listener: Fleet,
}

impl Founded {
    fn new(binary: &Path, program: &Path, directory: &Path) -> Result<Self> {
        let port = free_port()?;
        let text = port.to_string();
        let of = |path: PathBuf| path.to_string_lossy().into_owned();
        let fleet = directory.join("fleet");
        let (store, at) = (
            of(directory.join("store")),
            of(fleet.join("servers/127.0.0.1")),
        );
        let mut init = vec!["init", fleet.to_str().context("a path that is text")?];
        init.extend([
            "--server",
            "127.0.0.1",
            "--listen",
            "127.0.0.1",
            "--port",
            &text,
        ]);
        init.extend(["--at", &at, "--store", &store, "--store-size", "256MB"]);
        for agent in LEARNERS.iter().chain([&NEW, &LISTENER]) {
            init.extend(["--agent", agent]);
        }
        operate(binary, &init)?;
        let mut server = Server::new(program, Path::new(&at).join("nats-server.conf"), None);
        server.start()?;
        let buckets = ["buckets", init[1], "--port", &text, "--size", "64MB"];
        wait_for("nats-server", || {
            server.check()?;
            Ok(operate(binary, &buckets).ok())
        })?;
        let url = format!("tls://127.0.0.1:{port}");
        let listener = Identity::Nkey(fleet.join("agents").join(LISTENER).join("agent.nk"));
        let name = Name::new(LISTENER).context("a name")?;
        let mut settings = Settings::new(vec![url.clone()], name, listener);
        settings.ca = Some(fleet.join("ca.pem"));
        settings.pace.look = Duration::from_secs(1);
        Ok(Self {
            directory: fleet,
            listener: Fleet::start(&settings)?,
            url,
            server,
        })
    }
}

/// `thalweg fleet ARGUMENTS`.
fn operate(binary: &Path, arguments: &[&str]) -> Result<()> {
    let done = Command::new(binary).arg("fleet").args(arguments).output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "thalweg fleet {}: {said}",
        arguments[0]
    );
    Ok(())
}

impl Place {
    fn new(name: &'static str) -> Result<Self> {
        let path = PathModel {
            delay: DELAY.parse().map_err(anyhow::Error::msg)?,
            rate: Some(RATE.parse().map_err(anyhow::Error::msg)?),
            queue: Some(QUEUE.parse().map_err(anyhow::Error::msg)?),
            loss: thalweg_lab::units::Probability::from_fraction(LOSS),
            ..PathModel::default()
        };
        let pair = Pair::new(&PairOptions {
            label: format!("fleet-{name}"),
            path,
            congestion_control: Some(DEFAULT.to_owned()),
            wire: WireKind::Tun,
            further_addresses: 199,
            ..PairOptions::default()
        })?;
        let mut drain = Worker::start(&pair, Side::Server, &["drain".to_owned()])?;
        drain.line()?;
        Ok(Self {
            name,
            pair,
            _drain: drain,
        })
    }

    /// Its server's host of this number.
    fn host(&self, number: u32) -> Result<IpAddr> {
        let addresses = self.pair.server_addresses();
        let address = addresses.get(number as usize).context("so many hosts")?;
        Ok(*address)
    }

    /// Visits hosts, some at a time, a transfer each.
    fn visit(&self, first: u32, number: u32, at_a_time: u32) -> Result<Visitor> {
        let IpAddr::V4(base) = self.host(first)? else {
            bail!("an IPv4 address is wanted")
        };
        let mut command = self
            .pair
            .command_in(Side::Client, &std::env::current_exe()?.to_string_lossy())?;
        let words = [number, BYTES as u32, at_a_time].map(|number| number.to_string());
        command
            .args(["worker", "visit", &base.to_string()])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Ok(Visitor(Process::spawn_tied(&mut command)?))
    }
}

/// A process that visits.
struct Visitor(Process);

impl Visitor {
    /// Waits for its end.
    fn finish(mut self) -> Result<Vec<Visit>> {
        let output = self.0.child_mut().stdout.take().context("piped")?;
        let reader = std::thread::spawn(move || -> Result<Vec<Visit>> {
            let mut visits = Vec::new();
            for line in BufReader::new(output).lines() {
                let line = line?;
                let (host, seconds) = line.split_once(' ').context("two words")?;
                let bps = BYTES as f64 * 8.0 / seconds.parse::<f64>()?;
                visits.push(Visit {
                    host: host.parse::<Ipv4Addr>()?.into(),
                    bps,
                });
            }
            Ok(visits)
        });
        let status = wait_within(PATIENCE, "the end of transfers", || {
            Ok(self.0.exit_status()?)
        })?;
        ensure!(status.success(), "a transfer failed ({status})");
        reader
            .join()
            .map_err(|_| anyhow::anyhow!("a reader panicked"))?
    }
}

/// Starts an agent at a place.
fn start(binary: &Path, place: &Place, fleet: Option<&Founded>) -> Result<Agent> {
    let keys =
        fleet.map(|it| server::keys(&it.directory, place.name, std::slice::from_ref(&it.url)));
    let settings = format!(
        "[arms]\nallow = [\"{DEFAULT}\", \"{BETTER}\"]\n[events]\nlog = \"all\"\n{}",
        keys.unwrap_or_default()
    );
    Agent::start_with(binary, &place.pair, place.name, &settings)
}

/// Three agents measure until each has told the fleet of it.
fn learn(fleet: &mut Founded, places: &[Place], agents: &[Agent]) -> Result<Vec<Learned>> {
    let deadline = Instant::now() + PATIENCE;
    let mut told: Vec<Option<Measured>> = places.iter().map(|_| None).collect();
    let mut visits: Vec<Vec<Visit>> = places.iter().map(|_| Vec::new()).collect();
    let mut next = 0;
    // An agent looks at its networks when it begins, and tells of a status after that. Had it measured
    // anything by then, it would tell that, and the rest ten minutes later.
    wait_for("the agents to be in the fleet", || {
        let members = fleet.listener.request_statuses(Duration::from_secs(5))?;
        let is_in = |place: &Place| members.iter().any(|it| it.agent.as_str() == place.name);
        Ok(places.iter().all(is_in).then_some(()))
    })?;
    loop {
        fleet.server.check()?;
        if next + FIRSTS <= HOSTS {
            let visitors: Vec<Visitor> = places
                .iter()
                .map(|place| place.visit(next, FIRSTS, AT_A_TIME))
                .collect::<Result<_>>()?;
            for (visitor, visits) in visitors.into_iter().zip(&mut visits) {
                visits.extend(visitor.finish()?);
            }
            next += FIRSTS;
        }
        for incoming in fleet.listener.take_messages(Duration::from_millis(200)) {
            let Incoming::Priors { priors, .. } = incoming else {
                continue;
            };
            let place = places
                .iter()
                .position(|it| it.name == priors.agent.as_str());
            let of_network = |it: &Measured| matches!(it.network, Network::Prefix(_));
            if let (Some(place), Some(measured)) =
                (place, priors.networks.into_iter().find(of_network))
            {
                told[place] = Some(measured);
            }
        }
        interrupt::check_interrupt()?;
        if told.iter().all(Option::is_some) {
            break;
        }
        ensure!(Instant::now() < deadline, "the agents told nothing in time");
    }
    let mut learned = Vec::new();
    for (((place, agent), measured), visits) in places.iter().zip(agents).zip(told).zip(&visits) {
        let measured = measured.context("each has told")?;
        learned.push(learned_of(place, agent, &measured, visits)?);
    }
    Ok(learned)
}

fn learned_of(
    place: &Place,
    agent: &Agent,
    measured: &Measured,
    visits: &[Visit],
) -> Result<Learned> {
    let arm = |name: &str| {
        let found = measured.arms.iter().find(|arm| arm.name == name);
        found.with_context(|| {
            let count = visits.len();
            format!(
                "{} told nothing of {name} after {count} connections",
                place.name
            )
        })
    };
    let (default, better) = (arm(DEFAULT)?, arm(BETTER)?);
    let bits = |q16: i32| f64::from(q16) / 65_536.0;
    let ended = ended(agent, 1)?;
    let median = |name: &str| {
        let of: Vec<f64> = visits
            .iter()
            .filter(|visit| {
                let host = visit.host.to_string();
                ended
                    .iter()
                    .any(|it| it["remote"] == host && it["arm"] == name)
            })
            .map(|visit| visit.bps)
            .collect();
        if of.is_empty() {
            0.0
        } else {
            spread(&of).median
        }
    };
    Ok(Learned {
        agent: place.name.to_owned(),
        connections: agent.figure("/counters/scored")?,
        network: measured.network.to_string(),
        evidence_default: f64::from(default.evidence_q16) / 65_536.0,
        evidence_better: f64::from(better.evidence_q16) / 65_536.0,
        difference_bits: bits(better.cost_q16) - bits(default.cost_q16),
        default_bps: median(DEFAULT),
        better_bps: median(BETTER),
    })
}

/// What the agent says of each connection that has ended, the oldest first, once there are so many. A
/// decision for the default at a host that nothing is known of is no event of its own.
fn ended(agent: &Agent, least: usize) -> Result<Vec<Value>> {
    wait_for("the events of connections", || {
        let events = agent.answers(&["events", "--limit", "10000"])?;
        let mut events = events.as_array().context("a list")?.clone();
        events.retain(|event| event["kind"] == "close" && event["passive"] != true);
        events.sort_by_key(|event| event["id"].as_i64());
        Ok((events.len() >= least).then_some(events))
    })
}

/// Two new agents, with and without the fleet: their first connections, at the same time.
fn begin(binary: &Path, fleet: &Founded, places: &[Place]) -> Result<Vec<Begun>> {
    let [new, alone] = places else {
        bail!("two places")
    };
    let agents = [
        start(binary, new, Some(fleet))?,
        start(binary, alone, None)?,
    ];
    let heard = wait_for("what the others know", || {
        let place = agents[0].answers(&["fleet", "status"])?;
        let count = |key: &str| place[key].as_u64().unwrap_or_default();
        let is_all = count("agents") == LEARNERS.len() as u64 && count("in_force") > 0;
        Ok(is_all.then(|| (count("agents"), count("networks"))))
    })?;
    let visitors = [new.visit(HOSTS, FIRSTS, 1)?, alone.visit(HOSTS, FIRSTS, 1)?];
    let mut begun = Vec::new();
    for ((place, agent), visitor) in places.iter().zip(&agents).zip(visitors) {
        let visits = visitor.finish()?;
        let ended = ended(agent, visits.len())?;
        let rates: Vec<f64> = visits.iter().map(|visit| visit.bps).collect();
        let text = |key: &str| ended[0][key].as_str().unwrap_or("none").to_owned();
        let in_fleet = place.name == NEW;
        begun.push(Begun {
            agent: place.name.to_owned(),
            in_fleet,
            agents: if in_fleet { heard.0 } else { 0 },
            networks: if in_fleet { heard.1 } else { 0 },
            first_arm: text("arm"),
            first_level: text("level"),
            better: ended.iter().filter(|it| it["arm"] == BETTER).count(),
            connections: visits.len(),
            first_bps: rates[0],
            median_bps: spread(&rates).median,
        });
    }
    Ok(begun)
}

fn mbit(bps: f64) -> String {
    format!("{} Mbit/s", three_digits(bps / 1e6))
}

fn learned_table(learned: &[Learned]) -> String {
    let mut text = format!(
        "{:<6} {:>11} {:<22} {:>17} {:>17} {:>14}",
        "agent", "connections", "told the fleet of", DEFAULT, BETTER, "difference"
    );
    for it in learned {
        // Writing to a text cannot fail.
        let _ = write!(
            text,
            "\n{:<6} {:>11} {:<22} {:>17} {:>17} {:>9.2} bits",
            it.agent,
            it.connections,
            it.network,
            mbit(it.default_bps),
            mbit(it.better_bps),
            it.difference_bits
        );
    }
    text
}

fn begun_table(begun: &[Begun]) -> String {
    let mut text = format!(
        "{:<6} {:<34} {:<26} {:>15} {:>15} {:>14}",
        "agent", "knows", "first decision, by", "first", "median", BETTER
    );
    for it in begun {
        let knows = match it.in_fleet {
            true => format!("{} network by {} others", it.networks, it.agents),
            false => "nothing".to_owned(),
        };
        let _ = write!(
            text,
            "\n{:<6} {knows:<34} {:<26} {:>15} {:>15} {:>8} of {:>2}",
            it.agent,
            format!("{}, {}", it.first_arm, it.first_level),
            mbit(it.first_bps),
            mbit(it.median_bps),
            it.better,
            it.connections
        );
    }
    text
}

fn verdict(report: &Report) -> String {
    let seconds = report.seconds.round();
    let ratio = three_digits(report.ratio);
    match report.met {
        true => format!(
            "With the fleet the first connections of a new agent carry {ratio} × what they do without. ({seconds} s)"
        ),
        false => format!(
            "MISSED: the new agent did not begin with what the others know ({ratio} × the goodput; {seconds} s)."
        ),
    }
}
