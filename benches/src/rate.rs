//! Connections per second of a connect/close loop, with the agent and without.

use std::path::Path;

use anyhow::{Context, Result};
use thalweg_lab::host::{Pair, Side};

use crate::bed::{self, Agent, Worker};
use crate::table::{Target, line, spread};

const ROUNDS: usize = 80;
const SECONDS: f64 = 0.25;

/// A transfer of this size is scored: from then on connections have decisions.
const BULK: usize = 4_000_000;

/// A client that connects and closes in a loop, and its server.
pub struct Lane {
    _server: Worker,
    client: Worker,
}

impl Lane {
    /// Starts both.
    pub fn new(pair: &Pair, server_cgroup: &Path) -> Result<Self> {
        let arguments = ["greet".to_string()];
        let mut server = Worker::start_in(pair, Side::Server, server_cgroup, &arguments)?;
        server.line()?;
        let address = pair.first_address(Side::Server).to_string();
        let arguments = ["loop", &address, &SECONDS.to_string(), "0"].map(String::from);
        let client = Worker::start(pair, Side::Client, &arguments)?;
        Ok(Self {
            _server: server,
            client,
        })
    }

    /// Connections per second of one round.
    pub fn round(&mut self) -> Result<f64> {
        let (number, seconds) = self.run()?;
        Ok(number / seconds)
    }

    /// Connections of one round.
    pub fn connections(&mut self) -> Result<f64> {
        Ok(self.run()?.0)
    }

    fn run(&mut self) -> Result<(f64, f64)> {
        self.client.go_on()?;
        let line = self.client.line()?;
        let (number, seconds) = line.split_once(' ').context("two numbers")?;
        Ok((number.parse()?, seconds.parse()?))
    }
}

/// Connections per second of each round with something and without it. They alternate, so that
/// neither always comes first. The first round warms caches up and does not count.
pub fn in_turn(rounds: usize, with: &mut Lane, without: &mut Lane) -> Result<Vec<(f64, f64)>> {
    let round = |round: usize| {
        Ok(if round.is_multiple_of(2) {
            let with = with.round()?;
            (with, without.round()?)
        } else {
            let without = without.round()?;
            (with.round()?, without)
        })
    };
    let all: Result<Vec<_>> = (0..=rounds).map(round).collect();
    Ok(all?.split_off(1))
}

/// The ends of the connections that the agent sees.
#[derive(Clone, Copy)]
enum Reach {
    /// The client's: as on a network, where the other end is another machine.
    Client,
    /// Both: each connection costs twice.
    Both,
}

/// Runs the measurement; returns whether all targets are met.
pub fn run(binary: &Path) -> Result<bool> {
    let with = bed::pair("with")?;
    let without = bed::pair("without")?;
    let agent = Agent::start(binary, &with, "rate")?;
    let mut met = true;
    for what in ["nothing known of the host", "a decision for each"] {
        for reach in [Reach::Client, Reach::Both] {
            met &= compare(&agent, what, reach, &with, &without)?;
        }
        bed::transfer(&with, BULK, None)?;
        bed::transfer(&without, BULK, None)?;
    }
    Ok(met)
}

fn compare(agent: &Agent, what: &str, reach: Reach, with: &Pair, without: &Pair) -> Result<bool> {
    let (ends, cgroup) = match reach {
        Reach::Client => ("client's end", without.cgroup_path()),
        Reach::Both => ("both ends", with.cgroup_path()),
    };
    let mut with = Lane::new(with, cgroup)?;
    let mut without = Lane::new(without, without.cgroup_path())?;
    let before = agent.figure("/counters/events")?;
    let rounds = in_turn(ROUNDS, &mut with, &mut without)?;
    let ratios: Vec<f64> = rounds.iter().map(|(fast, slow)| fast / slow).collect();
    let (fast, slow): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
    println!(
        "connect/close loop, agent at {ends}, {what}: {:.0} connections/s with the agent, {:.0} \
         without; {} events, {} dropped",
        spread(&fast).median,
        spread(&slow).median,
        agent.figure("/counters/events")? - before,
        agent.figure("/counters/events_dropped")?,
    );
    let name = format!("connections/s, with / without ({ends}, {what})");
    Ok(line(&name, "", &spread(&ratios), &Target::AtLeast(0.98)))
}
