//! A real agent with traffic, which a thread of its own kills and starts again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_lab::host::{Pair, Side};

use crate::bed::{self, Agent, Worker};
use crate::fleet::server;
use crate::kernel::route;

/// Connections a second, and hosts.
const RATE: f64 = 5.0;
const HOSTS: u32 = 32;
/// Between two looks at its policy.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Seen {
    /// Since when it runs.
    began: Option<Instant>,
    /// The number of its policy.
    policy: Option<u64>,
    lost: Vec<String>,
}

/// The agent.
pub struct Real {
    name: String,
    kills: Option<Sender<()>>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
    // Dropped after the thread: first the traffic, then the place.
    _traffic: [Worker; 2],
    _pair: Pair,
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The text of a policy: each differs from the one before.
pub fn policy(number: u64) -> String {
    let segments = 20 + number % 20;
    format!(
        "name = \"soak\"\n[[rule]]\nname = \"soak\"\nmatch = {{ remote = \"10.99.0.0/16\" }}\n\
         set = {{ rwnd_init = {segments} }}\n"
    )
}

impl Real {
    /// Starts an agent in a namespace from which it reaches servers, and traffic elsewhere.
    pub fn start(
        binary: &Path,
        fleet: &Path,
        name: &str,
        servers: &[String],
        namespace: &str,
        key: &str,
    ) -> Result<Self> {
        let pair = bed::pair(name)?;
        route(&pair)?;
        let mut drain = Worker::start(&pair, Side::Server, &["drain".to_owned()])?;
        drain.line()?;
        let words = [
            "mix",
            "10.99.1.0",
            &HOSTS.to_string(),
            "0",
            &RATE.to_string(),
        ];
        let mix = Worker::start(&pair, Side::Client, &words.map(String::from))?;
        let keys = format!(
            "[snapshot]\ninterval = \"2s\"\n{}{}",
            server::keys(fleet, name, servers),
            obeys(key)
        );
        let agent = Agent::start_within(binary, &pair, name, &keys, Some(namespace))?;
        let seen = Arc::new(Mutex::new(Seen {
            began: Some(Instant::now()),
            ..Seen::default()
        }));
        let (kills, orders) = channel();
        let common = Arc::clone(&seen);
        let of = name.to_owned();
        let thread = std::thread::spawn(move || {
            if let Err(why) = attend(agent, &orders, &common) {
                lock(&common).lost.push(format!("{of}: {why:#}"));
            }
        });
        Ok(Self {
            name: name.to_owned(),
            kills: Some(kills),
            seen,
            thread: Some(thread),
            _traffic: [mix, drain],
            _pair: pair,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kills it; it is started again at once.
    pub fn kill(&mut self) {
        lock(&self.seen).began = None;
        if let Some(kills) = &self.kills {
            // A thread that gave up has said so.
            let _ = kills.send(());
        }
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.began().is_some()
    }

    /// Since when it runs.
    pub fn began(&self) -> Option<Instant> {
        lock(&self.seen).began
    }

    /// The number of its policy; none: it obeys none.
    pub fn policy(&self) -> Option<u64> {
        lock(&self.seen).policy
    }

    /// What it lost since the last call.
    pub fn lost(&mut self) -> Vec<String> {
        std::mem::take(&mut lock(&self.seen).lost)
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.kills = None;
        if let Some(thread) = self.thread.take() {
            // If it panicked, that was printed.
            drop(thread.join());
        }
    }
}

fn attend(mut agent: Agent, orders: &Receiver<()>, seen: &Mutex<Seen>) -> Result<()> {
    use std::sync::mpsc::RecvTimeoutError;
    loop {
        match orders.recv_timeout(LOOK) {
            Ok(()) => {
                let before = known(&agent)?;
                agent.restart(Signal::SIGKILL)?;
                let after = known(&agent)?;
                let mut seen = lock(seen);
                for (what, scored) in before {
                    let now = after.get(&what).copied().unwrap_or_default();
                    if now < scored {
                        seen.lost
                            .push(format!("{what}: {scored} measurements, then {now}"));
                    }
                }
                seen.began = Some(Instant::now());
            }
            Err(RecvTimeoutError::Timeout) => {
                let has = obeyed(&agent)?;
                lock(seen).policy = has;
            }
            // The policy would stay in force after the agent.
            Err(RecvTimeoutError::Disconnected) => return agent.command(&["policy", "remove"]),
        }
    }
}

/// Measurements of each host and network that the agent has made itself.
fn known(agent: &Agent) -> Result<BTreeMap<String, u64>> {
    let mut known = BTreeMap::new();
    let lists = [
        (
            agent.answers(&["hosts", "--limit", "1000"])?,
            "hosts",
            "address",
        ),
        (agent.answers(&["networks"])?, "networks", "name"),
    ];
    for (answer, list, name) in lists {
        for row in answer[list].as_array().context("a list")? {
            let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
            if text("level").starts_with("fleet") {
                continue;
            }
            let what = format!("{list} {} {} {}", text("level"), text(name), row["netns"]);
            known.insert(what, row["scored"].as_u64().unwrap_or_default());
        }
    }
    Ok(known)
}

/// Keys of an agent that obeys policies.
fn obeys(key: &str) -> String {
    format!("keys = [{key:?}]\n")
}

/// The number of the policy in force; none: it obeys none.
fn obeyed(agent: &Agent) -> Result<Option<u64>> {
    let place: Value = agent.answers(&["fleet", "status"])?;
    let policies = place["policies"].as_array();
    let numbers = policies
        .into_iter()
        .flatten()
        .filter(|it| it["stage"] == "in-force")
        .filter_map(|it| it["number"].as_u64());
    Ok(numbers.max())
}
