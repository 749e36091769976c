//! Connections per second of a connect/close loop, with the agent and without.

use std::path::Path;

use anyhow::{Context, Result};
use thalweg_lab::host::{Pair, Side};

use crate::bed::{self, Agent, Worker};
use crate::table::{Target, line, spread};

const ROUNDS: usize = 21;
const SECONDS: f64 = 1.0;

struct Lane {
    _pair: Pair,
    _server: Worker,
    client: Worker,
}

impl Lane {
    fn new(label: &str) -> Result<Self> {
        let pair = bed::pair(label)?;
        let mut server = Worker::start(&pair, Side::Server, &["greet".to_string()])?;
        server.line()?;
        let address = pair.address(Side::Server).to_string();
        let arguments = ["loop", &address, &SECONDS.to_string(), "0"].map(String::from);
        let client = Worker::start(&pair, Side::Client, &arguments)?;
        Ok(Self { _pair: pair, _server: server, client })
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
    let mut with = Lane::new("with")?;
    let mut without = Lane::new("without")?;
    let agent = Agent::start(binary, &with._pair, "rate")?;
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
        "connect/close loop: {:.0} connections/s with the agent, {:.0} without; {} seen, {} events dropped",
        spread(&fast).median,
        spread(&slow).median,
        agent.figure("/counters/established")?,
        agent.figure("/counters/events_dropped")?,
    );
    Ok(line("connections per second, with / without", "", &spread(&ratios), &Target::AtLeast(0.98)))
}
