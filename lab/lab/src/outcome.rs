//! The results of a run, in the layout of `results.json`.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thalweg_report::Verdict;
use thalweg_report::sample::{self, Weighted};
use thalweg_units::prefix::Prefix;

use crate::agent::LearnedHost;
use crate::gain::Gain;
use crate::host::loss::LossCounters;
use crate::mode::Mode;
use crate::options::UsedBackend;
use crate::scenario::{Expectation, INCUMBENT, Scenario};
use crate::ticks::Timers;

/// Version of that layout. A change that breaks readers raises it.
pub const FORMAT: u32 = 1;
/// Name of the layout, with its version: docs/reference/lab-results.schema.json.
pub const SCHEMA: &str = "thalweg/lab-results/1";

/// The results of one call of [`crate::run_scenarios`].
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The machine and the command.
    pub environment: Environment,
    /// One entry per scenario, in the order given.
    pub scenarios: Vec<ScenarioOutcome>,
}

impl Outcome {
    /// Whether no expectation was missed. Expectations that were not checked are not missed.
    pub fn has_passed(&self) -> bool {
        self.scenarios.iter().all(ScenarioOutcome::has_passed)
    }
}

/// The machine and the command of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    /// Version of this crate.
    pub version: String,
    /// `uname -r` and `uname -m`.
    pub kernel: String,
    /// Ticks a second of the kernel (HZ).
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
    /// Start of the run, UTC, RFC 3339.
    pub started: String,
    /// The kernel, and why this one.
    pub backend: UsedBackend,
    /// The kernel of the stacks, if a scenario has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
}

/// The results of one scenario.
#[derive(Debug, Serialize)]
pub struct ScenarioOutcome {
    /// The scenario as it ran.
    pub scenario: Scenario,
    /// Modes without an agent ran in every n-th round.
    pub reference_every: u32,
    /// One entry per mode, in the order given.
    pub modes: Vec<ModeOutcome>,
    /// The expectations and their verdicts.
    pub checks: Vec<Check>,
    /// Verdicts on mode `null` by the expectations of modes that learn; empty unless it ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub null_checks: Vec<Check>,
    /// Wall time of the whole scenario, seconds.
    pub wall_s: f64,
    /// Directory of this scenario's files.
    pub report: PathBuf,
}

impl ScenarioOutcome {
    /// Whether no expectation was missed, and one would tell a learner that does nothing.
    pub fn has_passed(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.verdict != Verdict::Missed)
            && !self.passes_null()
    }

    /// Whether a learner that always keeps the default would pass, though the scenario claims more
    /// than to bound harm.
    pub fn passes_null(&self) -> bool {
        let missed = |check: &Check| check.verdict == Verdict::Missed;
        !self.null_checks.is_empty()
            && !self.scenario.only_bounds_harm
            && !self.null_checks.iter().any(missed)
    }

    /// The outcome of a mode.
    pub fn mode_outcome(&self, mode: &Mode) -> Option<&ModeOutcome> {
        self.modes.iter().find(|outcome| outcome.mode == *mode)
    }

    /// The outcome towards each of several hosts, as a scenario of its own; empty if there is only
    /// one host. Expectations stay with the whole.
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
                        .filter_map(|mode| mode.towards_host(&host.name))
                        .collect(),
                    checks: Vec::new(),
                    null_checks: Vec::new(),
                    wall_s: self.wall_s,
                    report: self.report.clone(),
                }
            })
            .collect()
    }
}

/// An expectation and its verdict.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// The expectation.
    pub expectation: Expectation,
    /// The expectation in words.
    pub text: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The compared value: a ratio, or in the statistic's unit.
    pub value: Option<f64>,
    /// The mode that the reference resolved to.
    pub reference: Option<Mode>,
    /// The reason why there is no value.
    pub reason: Option<String>,
}

/// The results of one mode.
#[derive(Debug, Serialize)]
pub struct ModeOutcome {
    /// The mode.
    pub mode: Mode,
    /// Rounds of the scenario. A reference may have skipped some.
    pub rounds: u32,
    /// Connections of the mode, in order.
    pub connections: Vec<Connection>,
    /// Packets in the data direction.
    pub forward: LossCounters,
    /// Packets in the direction of the ACKs.
    pub reverse: LossCounters,
    /// The agent's records at the end; empty without an agent.
    pub hosts: Vec<LearnedHost>,
    /// The least round-trip time of all connections of the scenario, in any mode, µs. Queue delay
    /// is counted from it.
    pub least_rtt_us: Option<f64>,
    /// The round of the last change of the path, counted from 0.
    pub last_change: Option<u32>,
    /// The remote hosts, if there are several. `forward` and `reverse` are then their sums.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remotes: Vec<RemoteOutcome>,
    /// Gain that the agent reports, in mode `gain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<Gain>,
    /// Share of the processors' time that was not idle while flows ran, 0 to 1; none where the
    /// kernel does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor_share: Option<f64>,
}

/// The part of a mode's results that concerns one of several remote hosts, without its connections.
#[derive(Debug, Clone, Serialize)]
pub struct RemoteOutcome {
    /// Name of the host in the scenario.
    pub name: String,
    /// Address of the host.
    pub address: IpAddr,
    /// The addresses of the others of its network, if it stands for several hosts. The counters
    /// are then their sums.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<IpAddr>,
    /// Packets in the data direction.
    pub forward: LossCounters,
    /// Packets in the direction of the ACKs.
    pub reverse: LossCounters,
    /// The least round-trip time of all connections to it, in any mode, µs.
    pub least_rtt_us: Option<f64>,
    /// The round of the last change of its path, counted from 0.
    pub last_change: Option<u32>,
}

impl RemoteOutcome {
    /// Whether an address or prefix, such as "fd00::/64", covers this host.
    pub fn is_at(&self, address: &str) -> bool {
        let all = [self.address];
        let mut all = all.iter().chain(&self.others);
        Prefix::parse(address).is_ok_and(|prefix| all.any(|one| prefix.contains(*one)))
    }
}

/// One connection. Fields that its kind of traffic lacks are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// The round, counted from 0.
    pub round: u32,
    /// Goodput at the receiver, bit/s. 0 if the connection failed.
    pub goodput_bps: f64,
    /// Part of the connection in the goodput of its round, bit/s: bytes received within the round's
    /// time, over that time. Absent if a round has no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_bps: Option<f64>,
    /// Class of the flow, if a round has several.
    #[serde(default)]
    pub class: String,
    /// The remote host, if there are several.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The remote address, if the host has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Segments that TCP retransmitted.
    pub retransmits: u64,
    /// Data segments sent, retransmissions included.
    #[serde(default)]
    pub sent_segments: Option<u64>,
    /// The congestion control at the end of the connection.
    pub arm: String,
    /// Mean smoothed round-trip time at the sender, µs.
    pub mean_rtt_us: Option<f64>,
    /// Smoothed round-trip time at the sender, sampled every 100 ms, µs.
    #[serde(default)]
    pub srtt_us: Vec<u32>,
    /// Single round-trip times of data: time in µs, to a sixteenth of it, and the number of
    /// measurements.
    #[serde(default)]
    pub rtt_us: Vec<Weighted>,
    /// Least round-trip time of the connection, µs.
    #[serde(default)]
    pub min_rtt_us: Option<f64>,
    /// Bytes to send, if not a time was given.
    #[serde(default)]
    pub flow_bytes: Option<u64>,
    /// Flow-completion time, from the call of connect until the receiver has the last byte, µs.
    /// Only of a flow of known size that did not fail.
    #[serde(default)]
    pub fct_us: Option<f64>,
    /// Number of its page within its round and remote address, counted from 0. Only of an object
    /// of a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<u32>,
    /// Time from its page's moment until the receiver had its last byte, µs. Absent if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_us: Option<f64>,
    /// Wall time of the client from start to exit, seconds.
    pub wall_s: f64,
    /// Processor time meanwhile. Absent where the clock is not the machine's, and where connections
    /// run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Why it failed.
    pub error: Option<String>,
}

/// Processor time, seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// The whole machine: time that its processors were not idle, whoever used them.
    pub machine_s: f64,
    /// The kernel of a stack, with everything on it; the client's if both ends are stacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack_s: Option<f64>,
}

impl Connection {
    /// Segments retransmitted, as a share of all data segments sent (0 to 1).
    pub fn retransmission_share(&self) -> Option<f64> {
        let sent = self.sent_segments.filter(|sent| *sent > 0)?;
        Some((self.retransmits as f64 / sent as f64).min(1.0))
    }
}

impl ModeOutcome {
    /// Whether the processors were busy all the time: figures are then theirs, not the path's.
    pub fn is_processor_bound(&self) -> bool {
        const BUSY: f64 = 0.95;
        self.processor_share.is_some_and(|share| share >= BUSY)
    }

    /// The connections that count for the mode: all but incumbents.
    pub fn measured_connections(&self) -> impl Iterator<Item = &Connection> {
        self.connections
            .iter()
            .filter(|connection| connection.class != INCUMBENT)
    }

    /// The mode's results towards one of several hosts, as if it were the only one; none if there
    /// is no such host.
    pub fn towards_host(&self, host: &str) -> Option<Self> {
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
            // It is about all hosts together.
            gain: None,
            processor_share: self.processor_share,
        })
    }

    /// The classes of its connections, in alphabetical order.
    pub fn class_names(&self) -> Vec<&str> {
        let classes: std::collections::BTreeSet<&str> = self
            .connections
            .iter()
            .map(|connection| connection.class.as_str())
            .collect();
        classes.into_iter().collect()
    }

    /// Goodput of every measured connection, bit/s; 0 for failed ones.
    pub fn goodputs_bps(&self) -> Vec<f64> {
        self.measured_connections()
            .map(|connection| connection.goodput_bps)
            .collect()
    }

    /// The measured connections of the last half of the rounds.
    pub fn last_half(&self) -> impl Iterator<Item = &Connection> {
        let first = self.rounds / 2;
        self.measured_connections()
            .filter(move |connection| connection.round >= first)
    }

    /// Goodput of the connections of the last half of the rounds, bit/s.
    pub fn last_half_goodputs_bps(&self) -> Vec<f64> {
        self.last_half()
            .map(|connection| connection.goodput_bps)
            .collect()
    }

    /// Number of failed connections.
    pub fn failure_count(&self) -> usize {
        self.connections
            .iter()
            .filter(|connection| connection.error.is_some())
            .count()
    }

    /// The arms and the number of connections on each, most frequent first.
    pub fn arm_counts(&self) -> Vec<(String, usize)> {
        count_arms(self.measured_connections())
    }

    /// The arms in the last half of the rounds and the number of connections on each, most frequent
    /// first.
    pub fn last_half_arms(&self) -> Vec<(String, usize)> {
        count_arms(self.last_half())
    }

    /// The shares of the arms over the run, in `parts` parts of about as many rounds. Parts without
    /// a connection are left out.
    pub fn arm_shares(&self, parts: u32) -> Vec<ArmShares> {
        let parts = parts.clamp(1, self.rounds.max(1));
        let bound =
            |part: u32| (u64::from(part) * u64::from(self.rounds) / u64::from(parts)) as u32;
        (0..parts)
            .filter_map(|part| {
                let (first, end) = (bound(part), bound(part + 1));
                let within = |one: &&Connection| (first..end).contains(&one.round);
                let counts = count_arms(self.measured_connections().filter(within));
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

    /// Share (0 to 1) of the last half's connections on its most frequent arm; `None` if there are
    /// none.
    pub fn converged_share(&self) -> Option<f64> {
        let total = self.last_half().count();
        let most = count_arms(self.last_half())
            .first()
            .map_or(0, |(_, count)| *count);
        (total > 0).then(|| most as f64 / total as f64)
    }

    /// The figures of the summary table; `None` if nothing was measured.
    pub fn mode_summary(&self) -> Option<Summary> {
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
                .measured_connections()
                .map(|connection| connection.retransmits)
                .fold(0, u64::saturating_add),
        })
    }
}

/// Shares of the arms in a part of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArmShares {
    /// The first round of the part, counted from 0.
    pub first: u32,
    /// The last round of the part.
    pub last: u32,
    /// Share (0 to 1) of its connections on each arm.
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
