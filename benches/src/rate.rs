//! Connections per second of a connect/close loop, with the agent and without.

use std::path::Path;

use anyhow::{Context, Result};
use thalweg_lab::host::{Pair, Side};

use crate::bed::{self, Agent, Worker};
use crate::table::{Target, line, spread};

const ROUNDS: usize = 21;
const SECONDS: f64 = 1.0;

/// A transfer of this size is scored: from then on there is something to decide.
const BULK: usize = 4_000_000;

struct Lane {
    _server: Worker,
    client: Worker,
}

impl Lane {
    fn new(pair: &Pair) -> Result<Self> {
        let mut server = Worker::start(pair, Side::Server, &["greet".to_string()])?;
        server.line()?;
        let address = pair.address(Side::Server).to_string();
        let arguments = ["loop", &address, &SECONDS.to_string(), "0"].map(String::from);
        let client = Worker::start(pair, Side::Client, &arguments)?;
        Ok(Self {
            _server: server,
            client,
        })
    }

    /// Connections per second of one round.
    fn round(&mut self) -> Result<f64> {
        self.client.go_on()?;
        let line = self.client.line()?;
        let (number, seconds) = line.split_once(' ').context("two numbers")?;
        Ok(number.parse::<f64>()? / seconds.parse::<f64>()?)
    }
}

/// Runs the measurement; returns whether the target is met.
pub fn run(binary: &Path) -> Result<bool> {
    let with = bed::pair("with")?;
    let without = bed::pair("without")?;
    let agent = Agent::start(binary, &with, "rate")?;
    let unknown = compare(&agent, "nothing known of the host", &with, &without)?;
    bed::transfer(&with, BULK)?;
    bed::transfer(&without, BULK)?;
    let learned = compare(&agent, "a decision for each connection", &with, &without)?;
    Ok(unknown && learned)
}

fn compare(agent: &Agent, what: &str, with: &Pair, without: &Pair) -> Result<bool> {
    let address = with.address(Side::Server).to_string();
    let mut with = Lane::new(with)?;
    let mut without = Lane::new(without)?;
    let before = agent.figure("/counters/events")?;
    let mut ratios = Vec::new();
    let (mut fast, mut slow) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        // Turn about, so that neither always comes first.
        let (with, without) = if round % 2 == 0 {
            let with = with.round()?;
            (with, without.round()?)
        } else {
            let without = without.round()?;
            (with.round()?, without)
        };
        // The first round warms caches up.
        if round > 0 {
            ratios.push(with / without);
            fast.push(with);
            slow.push(without);
        }
    }
    println!(
        "connect/close loop to {address}, both ends on this machine, {what}: {:.0} connections/s \
         with the agent, {:.0} without; {} events, {} dropped",
        spread(&fast).median,
        spread(&slow).median,
        agent.figure("/counters/events")? - before,
        agent.figure("/counters/events_dropped")?,
    );
    let name = format!("connections/s, with / without ({what})");
    Ok(line(&name, "", &spread(&ratios), &Target::AtLeast(0.98)))
}
