//! What a run measured. This is also the layout of `results.json`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thalweg_report::Verdict;
use thalweg_report::sample::{self, Weighted};
use thalweg_units::prefix::Prefix;

use crate::agent::LearnedHost;
use crate::host::loss::LossCounters;
use crate::mode::Mode;
use crate::options::Place;
use crate::scenario::{Expectation, INCUMBENT, Scenario};
use crate::ticks::Timers;

/// Version of the layout of `results.json`. It grows when a reader would break.
pub const FORMAT: u32 = 1;
/// What the layout is called, with its version: docs/reference/lab-results.schema.json.
pub const SCHEMA: &str = "thalweg/lab-results/1";

/// Everything that one call of [`crate::run`] measured.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The machine and the command.
    pub environment: Environment,
    /// One entry per scenario, in the order given.
    pub scenarios: Vec<ScenarioOutcome>,
}

impl Outcome {
    /// Whether no expectation was missed. One that was not checked is no miss.
    pub fn passed(&self) -> bool {
        self.scenarios.iter().all(ScenarioOutcome::passed)
    }
}

/// Where the run took place.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    /// Version of this crate.
    pub version: String,
    /// `uname -r` and `uname -m`.
    pub kernel: String,
    /// Ticks a second of the kernel.
    pub hz: u32,
    /// When its timers expire.
    pub timers: Timers,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The congestion controls that the kernel offers.
    pub congestion_controls: Vec<String>,
    /// First line of `iperf3 --version`.
    pub iperf3: String,
    /// The command line.
    pub command: String,
    /// When the run began, UTC, RFC 3339.
    pub started: String,
    /// The kernel that was used, and why that one.
    pub backend: Place,
    /// The kernel of ends that are stacks, where a scenario has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
}

/// What one scenario gave.
#[derive(Debug, Serialize)]
pub struct ScenarioOutcome {
    /// The scenario as it ran.
    pub scenario: Scenario,
    /// How often the modes without an agent were run: every n-th round.
    pub reference_every: u32,
    /// One entry per mode, in the order given.
    pub modes: Vec<ModeOutcome>,
    /// The expectations and what became of them.
    pub checks: Vec<Check>,
    /// Wall time of the whole scenario, seconds.
    pub wall_s: f64,
    /// Where the files of this scenario are.
    pub report: PathBuf,
}

impl ScenarioOutcome {
    /// Whether no expectation was missed.
    pub fn passed(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.verdict != Verdict::Missed)
    }

    /// The outcome of a mode.
    pub fn mode(&self, mode: &Mode) -> Option<&ModeOutcome> {
        self.modes.iter().find(|outcome| outcome.mode == *mode)
    }

    /// The outcome towards each of several hosts, as of a scenario of its own;
    /// empty where there is but one. Expectations stay with the whole.
    pub fn by_host(&self) -> Vec<Self> {
        self.scenario
            .hosts
            .iter()
            .map(|host| {
                let mut scenario = self.scenario.clone();
                scenario.name.clone_from(&host.name);
                scenario.path = host.path.clone();
                scenario.hosts.clear();
                scenario.changes.retain(|change| change.host == host.name);
                Self {
                    scenario,
                    reference_every: self.reference_every,
                    modes: self
                        .modes
                        .iter()
                        .filter_map(|mode| mode.towards(&host.name))
                        .collect(),
                    checks: Vec::new(),
                    wall_s: self.wall_s,
                    report: self.report.clone(),
                }
            })
            .collect()
    }
}

/// An expectation and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// The expectation.
    pub expectation: Expectation,
    /// The expectation in words.
    pub text: String,
    /// What became of it.
    pub verdict: Verdict,
    /// The value that was compared (ratio, or in the statistic's unit).
    pub value: Option<f64>,
    /// The mode that the reference turned out to be.
    pub reference: Option<Mode>,
    /// Why it was not checked.
    pub reason: Option<String>,
}

/// What one mode gave.
#[derive(Debug, Serialize)]
pub struct ModeOutcome {
    /// The mode.
    pub mode: Mode,
    /// Rounds in the scenario; a reference may have skipped some.
    pub rounds: u32,
    /// Its connections, in order.
    pub connections: Vec<Connection>,
    /// Packets in the data direction.
    pub forward: LossCounters,
    /// Packets in the direction of the acknowledgements.
    pub reverse: LossCounters,
    /// What the agent had learned at the end; empty without an agent.
    pub hosts: Vec<LearnedHost>,
    /// The least round-trip time that any connection of the scenario saw, in any
    /// mode, µs: what queue delay is counted from.
    pub least_rtt_us: Option<f64>,
    /// The round, counted from 0, at which the path changed last.
    pub last_change: Option<u32>,
    /// The remote hosts, where there are several; `forward` and `reverse` are then
    /// their sums.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remotes: Vec<RemoteOutcome>,
}

/// What of a mode is about one of several remote hosts, beside its connections.
#[derive(Debug, Clone, Serialize)]
pub struct RemoteOutcome {
    /// Its name in the scenario.
    pub name: String,
    /// Its address.
    pub address: std::net::IpAddr,
    /// Packets in the data direction.
    pub forward: LossCounters,
    /// Packets in the direction of the acknowledgements.
    pub reverse: LossCounters,
    /// The least round-trip time that any connection to it saw, in any mode, µs.
    pub least_rtt_us: Option<f64>,
    /// The round, counted from 0, at which its path changed last.
    pub last_change: Option<u32>,
}

impl RemoteOutcome {
    /// Whether an address, or a prefix such as "fd00::/64", is this host's.
    pub fn is_at(&self, address: &str) -> bool {
        Prefix::parse(address).is_ok_and(|prefix| prefix.contains(self.address))
    }
}

/// One connection. Fields that a kind of traffic does not have are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// The round, counted from 0.
    pub round: u32,
    /// What the receiver got, bit/s. 0 where the connection failed.
    pub goodput_bps: f64,
    /// What it adds to the goodput of its round, bit/s: what the receiver got within the
    /// round's time, over that time. Absent where a round has no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_bps: Option<f64>,
    /// Which flow of the round it was, where a round has several sorts.
    #[serde(default)]
    pub class: String,
    /// Which of several remote hosts it went to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Segments that TCP retransmitted.
    pub retransmits: u64,
    /// Data segments sent, retransmissions included.
    #[serde(default)]
    pub sent_segments: Option<u64>,
    /// The congestion control at the end of the connection.
    pub arm: String,
    /// Mean smoothed round-trip time that the sender saw, µs.
    pub mean_rtt_us: Option<f64>,
    /// Samples of the sender's smoothed round-trip time, every 100 ms, µs.
    #[serde(default)]
    pub srtt_us: Vec<u32>,
    /// Single round-trip times of its data: the time, µs, and how often it was
    /// measured, to a sixteenth of it.
    #[serde(default)]
    pub rtt_us: Vec<Weighted>,
    /// The least round-trip time that it saw, µs.
    #[serde(default)]
    pub min_rtt_us: Option<f64>,
    /// Bytes to send, where that and not a time was given.
    #[serde(default)]
    pub flow_bytes: Option<u64>,
    /// From the call of connect until the receiver has the last byte, µs; of a
    /// flow of known size that did not fail.
    #[serde(default)]
    pub fct_us: Option<f64>,
    /// Wall time of the client from start to exit, seconds.
    pub wall_s: f64,
    /// Processor time meanwhile; absent where the clock is not the machine's, and where
    /// connections run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Why it failed.
    pub error: Option<String>,
}

/// Processor time, seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Of the whole machine: what its processors were not idle, whoever used them.
    pub machine_s: f64,
    /// Of the kernel of an end that is a stack, with all that runs on it; the client's where
    /// both ends are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack_s: Option<f64>,
}

impl Connection {
    /// Segments retransmitted, of all data segments sent (0 to 1).
    pub fn retransmission_share(&self) -> Option<f64> {
        let sent = self.sent_segments.filter(|sent| *sent > 0)?;
        Some((self.retransmits as f64 / sent as f64).min(1.0))
    }
}

impl ModeOutcome {
    /// The connections that the mode is judged by: all but incumbents.
    pub fn measured(&self) -> impl Iterator<Item = &Connection> {
        self.connections
            .iter()
            .filter(|connection| connection.class != INCUMBENT)
    }

    /// What the mode gave towards one of several hosts, as if that were the only
    /// one; none where it has no such host.
    pub fn towards(&self, host: &str) -> Option<Self> {
        let remote = self.remotes.iter().find(|remote| remote.name == host)?;
        Some(Self {
            mode: self.mode.clone(),
            rounds: self.rounds,
            connections: self
                .connections
                .iter()
                .filter(|connection| connection.host == host)
                .cloned()
                .collect(),
            forward: remote.forward,
            reverse: remote.reverse,
            hosts: self
                .hosts
                .iter()
                .filter(|learned| remote.is_at(&learned.address))
                .cloned()
                .collect(),
            least_rtt_us: remote.least_rtt_us,
            last_change: remote.last_change,
            remotes: Vec::new(),
        })
    }

    /// The classes of its connections, in alphabetical order.
    pub fn classes(&self) -> Vec<&str> {
        let classes: std::collections::BTreeSet<&str> = self
            .connections
            .iter()
            .map(|connection| connection.class.as_str())
            .collect();
        classes.into_iter().collect()
    }

    /// Goodput of every measured connection, bit/s. Failed ones are there as 0.
    pub fn goodputs_bps(&self) -> Vec<f64> {
        self.measured()
            .map(|connection| connection.goodput_bps)
            .collect()
    }

    /// The measured connections of the last half of the rounds.
    pub fn last_half(&self) -> impl Iterator<Item = &Connection> {
        let first = self.rounds / 2;
        self.measured()
            .filter(move |connection| connection.round >= first)
    }

    /// Goodput of the connections of the last half of the rounds, bit/s.
    pub fn last_half_goodputs_bps(&self) -> Vec<f64> {
        self.last_half()
            .map(|connection| connection.goodput_bps)
            .collect()
    }

    /// How many connections failed.
    pub fn failures(&self) -> usize {
        self.connections
            .iter()
            .filter(|connection| connection.error.is_some())
            .count()
    }

    /// The arms that were used and how often, most frequent first.
    pub fn arms(&self) -> Vec<(String, usize)> {
        count_arms(self.measured())
    }

    /// The same of the last half of the rounds.
    pub fn last_half_arms(&self) -> Vec<(String, usize)> {
        count_arms(self.last_half())
    }

    /// The shares of the arms over the run, cut into so many parts of as many
    /// rounds, as far as that goes. Parts without a connection are left out.
    pub fn arm_shares(&self, parts: u32) -> Vec<ArmShares> {
        let parts = parts.clamp(1, self.rounds.max(1));
        let bound =
            |part: u32| (u64::from(part) * u64::from(self.rounds) / u64::from(parts)) as u32;
        (0..parts)
            .filter_map(|part| {
                let (first, end) = (bound(part), bound(part + 1));
                let within = |one: &&Connection| (first..end).contains(&one.round);
                let counts = count_arms(self.measured().filter(within));
                let total: usize = counts.iter().map(|(_, count)| count).sum();
                (total > 0).then(|| ArmShares {
                    first,
                    last: end - 1,
                    shares: counts
                        .into_iter()
                        .map(|(arm, count)| (arm, count as f64 / total as f64))
                        .collect(),
                })
            })
            .collect()
    }

    /// Share (0 to 1) of the connections of the last half on the arm that is
    /// most frequent among them; `None` where there were none.
    pub fn converged_share(&self) -> Option<f64> {
        let total = self.last_half().count();
        let most = count_arms(self.last_half())
            .first()
            .map_or(0, |(_, count)| *count);
        (total > 0).then(|| most as f64 / total as f64)
    }

    /// The figures of the summary table; `None` where nothing was measured.
    pub fn summary(&self) -> Option<Summary> {
        let all = self.goodputs_bps();
        Some(Summary {
            median_bps: sample::median(&all)?,
            median_last_half_bps: sample::median(&self.last_half_goodputs_bps()),
            mean_bps: sample::mean(&all)?,
            lower_quartile_bps: sample::quantile(&all, 0.25)?,
            upper_quartile_bps: sample::quantile(&all, 0.75)?,
            least_bps: sample::quantile(&all, 0.0)?,
            most_bps: sample::quantile(&all, 1.0)?,
            retransmits: self
                .measured()
                .map(|connection| connection.retransmits)
                .sum(),
        })
    }
}

/// Which arms a part of a run used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArmShares {
    /// The first round of the part, counted from 0.
    pub first: u32,
    /// The last round of the part.
    pub last: u32,
    /// Share (0 to 1) of its connections on each arm that it used.
    pub shares: std::collections::BTreeMap<String, f64>,
}

/// The figures of one mode, goodput in bit/s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Median of all connections.
    pub median_bps: f64,
    /// Median of the last half of the rounds.
    pub median_last_half_bps: Option<f64>,
    /// Mean of all connections.
    pub mean_bps: f64,
    /// First quartile.
    pub lower_quartile_bps: f64,
    /// Third quartile.
    pub upper_quartile_bps: f64,
    /// Smallest.
    pub least_bps: f64,
    /// Largest.
    pub most_bps: f64,
    /// Segments retransmitted, over all connections.
    pub retransmits: u64,
}

fn count_arms<'a>(connections: impl Iterator<Item = &'a Connection>) -> Vec<(String, usize)> {
    let mut counts: std::collections::BTreeMap<&str, usize> = Default::default();
    for connection in connections.filter(|connection| !connection.arm.is_empty()) {
        *counts.entry(&connection.arm).or_default() += 1;
    }
    let mut arms: Vec<_> = counts
        .into_iter()
        .map(|(arm, count)| (arm.to_owned(), count))
        .collect();
    arms.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    arms
}
