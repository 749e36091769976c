//! What membership costs an agent: memory and CPU in a fleet of 200 agents that told of 1,000 networks
//! each, against the same agent alone. Runs with and without take turns.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use thalweg_bpf_types::raw::THALWEG_RULE;
use thalweg_fleet::traffic::Load;
use thalweg_fleet::wire::{Arm, Measured, Network, Priors, Shard};
use thalweg_fleet::{Fleet, Identity, Limits, Name, Operator, Outgoing, Settings};
use thalweg_process::interrupt;
use thalweg_units::random::Random;

use super::server::{self, Server, free_port, wait_for, wait_within};
use crate::agent::cpu_seconds;
use crate::bed::{self, Agent};
use crate::table::{Target, line, spread};

const ARMS: [&str; 3] = ["cubic", "reno", "bbr"];
/// The agent is looked at so long after all is in force.
const REST: Duration = Duration::from_secs(30);
/// Longest wait until all is.
const PATIENCE: Duration = Duration::from_secs(300);
/// Agents that tell at a time.
const TELLERS: usize = 8;
/// Room of the bucket.
const BUCKET: u64 = 256 << 20;

/// A fleet.
#[derive(Clone, Copy)]
pub struct Size {
    /// Agents that tell.
    pub agents: usize,
    /// Networks of which each tells.
    pub networks: usize,
}

/// What one run of an agent costs.
struct Cost {
    /// Memory of its own at rest, and the most on the way, MiB.
    rest_mib: f64,
    peak_mib: f64,
    /// Processor time from its start until the end of the rest, and that of the rest alone, s.
    all_s: f64,
    rest_s: f64,
    /// Time until all was in force, s.
    settled_s: f64,
}

/// Runs it; returns whether the targets are met.
pub fn run(binary: &Path, runs: usize, size: Size) -> Result<bool> {
    ensure!(runs > 0, "expected at least one run");
    let Size { agents, networks } = size;
    ensure!(networks <= 65_536, "expected 65536 networks at most");
    let _guard = interrupt::Guard::install_handlers()?;
    let pair = bed::pair("fleet-cost")?;
    let directory = tempfile::tempdir()?;
    let (mut server, url) = serve(binary, directory.path())?;
    let begun = Instant::now();
    tell(&url, size)?;
    println!(
        "{agents} agents told of {networks} networks and {} arms each, in {:.0} s",
        ARMS.len(),
        begun.elapsed().as_secs_f64()
    );
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for run in 0..runs {
        without.push(cost(binary, &pair, None, size)?);
        with.push(cost(binary, &pair, Some(&url), size)?);
        server.check()?;
        let last = &with[run];
        eprintln!(
            "run {}: {:.1} MiB at rest, {:.1} at most, all in force after {:.0} s",
            run + 1,
            last.rest_mib,
            last.peak_mib,
            last.settled_s
        );
    }
    Ok(verdict(&with, &without, size))
}

/// A server with buckets which anybody on this machine may use.
fn serve(binary: &Path, directory: &Path) -> Result<(Server, String)> {
    let port = free_port()?;
    let file = directory.join("nats-server.conf");
    let store = directory.join("store");
    let text = format!("listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {store:?} }}\n");
    fs::write(&file, text)?;
    let mut server = Server::new(&server::program(binary)?, file, None);
    server.start()?;
    let url = format!("nats://127.0.0.1:{port}");
    let limits = Limits {
        bytes: BUCKET,
        ..Limits::default()
    };
    wait_for("nats-server", || {
        server.check()?;
        let operator = Operator::connect(&settings(&url, "operator")?);
        Ok(operator.and_then(|mut it| it.make_all(&limits)).ok())
    })?;
    Ok((server, url))
}

fn settings(url: &str, agent: &str) -> Result<Settings> {
    let mut settings = Settings::new(vec![url.to_owned()], Name::new(agent)?, Identity::None);
    settings.take = false;
    Ok(settings)
}

/// The networks, by shard.
fn networks(count: usize) -> Vec<(Shard, Vec<Network>)> {
    let all = (0..count)
        .filter_map(|it| Network::parse(&format!("prefix:10.{}.{}.0/24", it / 256, it % 256)));
    let mut shards: Vec<(Shard, Vec<Network>)> = Shard::all().map(|it| (it, Vec::new())).collect();
    for network in all {
        shards[usize::from(network.shard().number())]
            .1
            .push(network);
    }
    shards
}

/// All agents tell, some at a time.
fn tell(url: &str, size: Size) -> Result<()> {
    let shards = networks(size.networks);
    std::thread::scope(|scope| {
        let tellers: Vec<_> = (0..TELLERS)
            .map(|teller| {
                let shards = &shards;
                scope.spawn(move || -> Result<()> {
                    for agent in (teller..size.agents).step_by(TELLERS) {
                        tell_one(url, agent, shards)?;
                    }
                    Ok(())
                })
            })
            .collect();
        tellers.into_iter().try_for_each(|teller| {
            let told = teller.join();
            told.map_err(|_| anyhow::anyhow!("a teller panicked"))?
        })
    })
}

fn tell_one(url: &str, agent: usize, shards: &[(Shard, Vec<Network>)]) -> Result<()> {
    let settings = settings(url, &format!("agent-{agent}"))?;
    let client = Fleet::start(&settings)?;
    let mut random = Random::new(agent as u64);
    // A quarter of a bit around the mean, and all numbers as long as they are in earnest.
    let mut arm = |name: &str| {
        let relative = if name == ARMS[0] { 0 } else { -(1 << 16) };
        let around = |random: &mut Random| random.below(1 << 15) as i32 - (1 << 14);
        Arm {
            name: name.to_owned(),
            cost_q16: relative + around(&mut random),
            evidence_q16: (4 << 16) + random.below(1 << 18) as u32,
            log_rate_q16: -relative + around(&mut random),
            deviation_q16: (1 << 14) + random.below(1 << 13) as u32,
            segments: 100_000 + random.below(100_000) as u32,
            retransmitted: random.below(1000) as u32,
        }
    };
    for (shard, networks) in shards {
        let mut measured = |network: &Network| Measured {
            network: network.clone(),
            age_s: 12_345,
            queue_q16: 23_456,
            arms: ARMS.iter().map(|name| arm(name)).collect(),
        };
        client.offer_message(&Outgoing::Priors(Priors {
            agent: settings.agent.clone(),
            shard: *shard,
            rule: THALWEG_RULE,
            networks: networks.iter().map(&mut measured).collect(),
        }))?;
    }
    wait_for("the server to have it", || {
        Ok((client.state().published >= shards.len() as u64).then_some(()))
    })
}

/// One agent, until it is at rest, and a while.
fn cost(
    binary: &Path,
    pair: &thalweg_lab::host::Pair,
    url: Option<&String>,
    size: Size,
) -> Result<Cost> {
    let fleet = url.map(|url| format!("[fleet]\nname = \"measured\"\nservers = [{url:?}]\n"));
    let keys = format!(
        "[arms]\nallow = {ARMS:?}\n[events]\nlog = \"none\"\n{}",
        fleet.unwrap_or_default()
    );
    let agent = Agent::start_with(binary, pair, "fleet-cost", &keys)?;
    let begun = Instant::now();
    let mut peak_mib: f64 = 0.0;
    let mut look = || -> Result<f64> {
        let mib = own_mib(agent.pid())?;
        peak_mib = peak_mib.max(mib);
        Ok(mib)
    };
    if url.is_some() {
        wait_within(PATIENCE, "all to be in force", || {
            look()?;
            let place = agent.answers(&["fleet", "status"])?;
            let count = |key: &str| place[key].as_u64();
            let is_all = count("agents") == Some(size.agents as u64)
                && count("networks") == Some(size.networks as u64)
                && count("in_force") >= Some(size.networks as u64);
            ensure!(
                count("unheard") == Some(0),
                "reports were not heard: {place}"
            );
            Ok(is_all.then_some(()))
        })?;
    }
    let settled_s = begun.elapsed().as_secs_f64();
    let before = cpu_seconds(agent.pid())?;
    let rest = Instant::now();
    while rest.elapsed() < REST {
        interrupt::check_interrupt()?;
        std::thread::sleep(Duration::from_millis(200));
        look()?;
    }
    let all_s = cpu_seconds(agent.pid())?;
    Ok(Cost {
        rest_mib: look()?,
        peak_mib,
        all_s,
        rest_s: all_s - before,
        settled_s,
    })
}

/// Memory of a process that is no file's, MiB.
fn own_mib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next());
    Ok(kib.context("no RssAnon")?.parse::<f64>()? / 1024.0)
}

fn verdict(with: &[Cost], without: &[Cost], size: Size) -> bool {
    let Size { agents, networks } = size;
    let difference = |figure: &dyn Fn(&Cost) -> f64| {
        let pairs = with.iter().zip(without);
        spread(
            &pairs
                .map(|(with, without)| figure(with) - figure(without))
                .collect::<Vec<_>>(),
        )
    };
    let own = spread(&without.iter().map(|it| it.rest_mib).collect::<Vec<_>>());
    println!("the agent alone: {:.1} MiB of its own", own.median);
    let mut met = true;
    for (what, figure) in [
        (
            "at rest",
            &(|it: &Cost| it.rest_mib) as &dyn Fn(&Cost) -> f64,
        ),
        ("while all of it is read", &|it| it.peak_mib),
    ] {
        met &= line(
            &format!("memory for the fleet, {what}"),
            "MiB",
            &difference(figure),
            &Target::AtMost(8e6 / f64::from(1 << 20)),
        );
    }
    met &= line(
        "CPU for the fleet, at rest",
        "%",
        &difference(&|it| it.rest_s / REST.as_secs_f64() * 100.0),
        &Target::AtMost(1.0),
    );
    let read = difference(&|it| it.all_s - it.rest_s);
    println!(
        "reading all that {agents} agents tell of {networks} networks, once, and putting it in force: \
         {:.2} s of CPU",
        read.median
    );
    // As if all changed all they know once an hour.
    let hourly = spread(&[read.median / 3600.0 * 100.0]);
    met &= line(
        "CPU for the fleet, if all tell all anew once an hour",
        "%",
        &hourly,
        &Target::AtMost(1.0),
    );
    let load = Load {
        agents: size.agents as f64,
        networks: size.networks as f64,
        arms: ARMS.len() as f64,
        shards: 0.0,
        status: 2000.0,
    };
    println!(
        "an hour at rest by the formula: {:.0} messages, {:.1} kB",
        load.agent_traffic().messages(),
        load.agent_traffic().bytes() / 1e3
    );
    met
}
