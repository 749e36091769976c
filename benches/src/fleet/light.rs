//! An agent of a fleet without a kernel: the client of the real one, and knowledge of its own on disk.
//! The soak kills many of them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use thalweg_fleet::keys::PublicKey;
use thalweg_fleet::wire::{Arm, Measured, Network, Priors};
use thalweg_fleet::{Fleet, Identity, Incoming, Name, Outgoing, Settings};
use thalweg_units::file::Draft;

/// Between two measurements.
const MEASURES: Duration = Duration::from_secs(1);

/// Who it is, and whom it obeys.
#[derive(Clone, Args)]
pub struct Options {
    /// Directory of `thalweg fleet init`.
    pub fleet: PathBuf,
    /// Its name.
    pub agent: String,
    /// Its file of what it knows.
    pub state: PathBuf,
    /// The key that signs policies.
    pub key: String,
    /// Servers.
    pub servers: Vec<String>,
}

/// What it knows by itself, and the policy that it obeys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// Measurements so far: what it tells says how many.
    pub measured: u32,
    /// Number of the policy in force.
    pub policy: u64,
}

impl Own {
    /// What is on disk.
    pub fn read(file: &Path) -> Result<Self> {
        match fs::read(file) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{}: not what was written", file.display())),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(why) => Err(why.into()),
        }
    }

    fn write(self, file: &Path) -> Result<()> {
        Ok(Draft::new(file, 0o600)?.replace(&serde_json::to_vec(&self)?)?)
    }
}

/// Where it writes what its client says is wrong.
pub fn log_of(state: &Path) -> PathBuf {
    state.with_extension("log")
}

/// The network of which an agent tells.
pub fn network(agent: &str) -> Network {
    Network::Named(agent.to_owned())
}

/// What it tells after so many measurements.
pub fn told(agent: &Name, measured: u32) -> Priors {
    let network = network(agent.as_str());
    let arm = |name: &str, cost_q16: i32| Arm {
        name: name.to_owned(),
        cost_q16,
        evidence_q16: 4 << 16,
        log_rate_q16: -cost_q16,
        deviation_q16: 1 << 14,
        segments: measured,
        retransmitted: 0,
    };
    Priors {
        agent: agent.clone(),
        shard: network.shard(),
        rule: thalweg_bpf_types::raw::THALWEG_RULE,
        networks: vec![Measured {
            network,
            age_s: 0,
            queue_q16: 0,
            arms: vec![arm("cubic", 0), arm("bbr", -(1 << 16))],
        }],
    }
}

/// Settings of a client with the files of `thalweg fleet init`, which asks and tells every second.
pub fn settings(fleet: &Path, agent: &str, servers: &[String]) -> Result<Settings> {
    let name = Name::new(agent)?;
    let key = Identity::Nkey(fleet.join("agents").join(agent).join("agent.nk"));
    let mut settings = Settings::new(servers.to_vec(), name, key);
    settings.ca = Some(fleet.join("ca.pem"));
    settings.pace.priors = MEASURES;
    Ok(settings)
}

/// Runs until it is killed. Says what it knows when it begins, and each change once it is on disk.
pub fn run(options: &Options) -> Result<()> {
    let mut own = Own::read(&options.state)?;
    let mut settings = settings(&options.fleet, &options.agent, &options.servers)?;
    settings.keys = vec![PublicKey::parse(&options.key)?];
    if own.policy > 0 {
        settings.policies.insert(Name::all(), own.policy);
    }
    let agent = settings.agent.clone();
    say("began", own)?;
    let client = Fleet::start(&settings)?;
    let mut log = fs::File::options()
        .create(true)
        .append(true)
        .open(log_of(&options.state))?;
    let mut fault = None;
    let mut next = Instant::now();
    loop {
        let last = client.state().last;
        if last.as_ref().map(|told| told.at) != fault
            && let Some(told) = last
        {
            fault = Some(told.at);
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
            writeln!(
                log,
                "{now:.1} {}: {}",
                told.fault.kind.name(),
                told.fault.text
            )?;
        }
        if Instant::now() >= next {
            next = Instant::now() + MEASURES;
            own.measured += 1;
            own.write(&options.state)?;
            client.offer_message(&Outgoing::Priors(told(&agent, own.measured)))?;
            say("measured", own)?;
        }
        for incoming in client.take_messages(next.saturating_duration_since(Instant::now())) {
            if let Incoming::Policy(policy) = incoming {
                own.policy = policy.number;
                own.write(&options.state)?;
                say("policy", own)?;
            }
        }
    }
}

fn say(what: &str, own: Own) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{what} {} {}", own.measured, own.policy)?;
    // Whoever listens is gone: so is this.
    Ok(output.flush()?)
}
