//! Responses of the local API, one type per resource. The command line and every other client know
//! the agent's numbers only in this form.

use std::collections::BTreeMap;

mod gain;
mod hosts;

pub use gain::{
    Advice, AdviceChoice, AdviceGroup, AdvisedSetting, EffectRatio, FeatureAdvice, FeatureEffect,
    Gain, GainGroup, GainRevert, GainRow, GainRule,
};
pub use hosts::{Explanation, Host, HostArm, Hosts};
use serde::{Deserialize, Serialize};

/// `GET /v1/status`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Status {
    /// Version of the agent.
    pub version: String,
    /// Name of the machine.
    #[serde(default)]
    pub machine: String,
    /// Process id of the agent.
    pub pid: u32,
    /// Seconds since the agent started.
    pub uptime_s: u64,
    /// Configurations that the agent has begun with: 1, and one more for each reload.
    #[serde(default)]
    pub session: u64,
    /// `classic` or `thalweg`.
    pub mode: String,
    /// Whether the agent decides, logs and scores, but sets nothing.
    pub dry_run: bool,
    /// Share of the hosts with trials; `None`: the agent does not give advice only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<f64>,
    /// cgroup v2 directory whose connections are covered.
    pub cgroup: String,
    /// Directory of pinned programs, links and maps.
    pub pin: String,
    /// Store file.
    pub store: String,
    /// Version of the kernel/user interface.
    pub abi_version: u32,
    /// Whether this agent took over programs and state that were already in the kernel.
    pub took_over: bool,
    /// Whether the time with data outstanding is read from the kernel (needs kernel BTF).
    pub kernel_busy_time: bool,
    /// Number of host records now in the kernel.
    pub hosts: u64,
    /// Number of host records beyond which the least valuable are evicted, with some delay.
    pub hosts_max: u64,
    /// Kernel memory of the maps, bytes.
    pub map_bytes: u64,
    /// Resident memory of the agent, bytes.
    pub resident_bytes: u64,
    /// Counters since the programs were first attached.
    pub counters: Counters,
    /// Scans of long connections by this agent; `None`: they are scored only when they end.
    #[serde(default)]
    pub looks: Option<Looks>,
    /// Status of each feature, by its name; null where the feature is off.
    #[serde(flatten)]
    pub features: BTreeMap<String, serde_json::Value>,
    /// Number of events that this agent wrote to the store.
    pub events_stored: u64,
    /// Number of events that this agent could not write to the store, as on a full disk.
    #[serde(default)]
    pub events_lost: u64,
    /// Share of the host-hours whose events the store keeps now.
    #[serde(default = "one")]
    pub events_share: f64,
    /// Number of events that this agent did not store, as their host-hour is not among those kept.
    #[serde(default)]
    pub events_left_out: u64,
    /// Seconds since the store had every host record; `None` before the first time.
    pub snapshot_age_s: Option<u64>,
    /// Severity of the worst present problem.
    #[serde(default)]
    pub health: Severity,
    /// Repairs of programs and pins; `None`: there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repairs: Option<Repairs>,
    /// Congestion controls that are available but not allowed; `None`: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newcomers: Option<Newcomers>,
    /// Present problems, in words; empty = none.
    pub problems: Vec<String>,
    /// Hint for each problem, in the same order.
    #[serde(default)]
    pub fixes: Vec<String>,
}

/// Severity of problems.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No problem.
    #[default]
    Ok,
    /// Something is not as it should be.
    Warning,
    /// Connections are not measured or changed.
    Critical,
}

/// Repairs of programs, links and pins since the agent's start.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Repairs {
    /// Number of repairs.
    pub number: u64,
    /// Last repair, in words.
    pub last: String,
    /// Seconds since the last repair.
    pub last_age_s: u64,
}

/// Congestion controls that the kernel has offered only since the agent's start. `arms.allow = "auto"`
/// leaves them out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newcomers {
    /// Names of the congestion controls.
    pub names: Vec<String>,
    /// Line of `[arms]` that allows them beside the present arms.
    pub line: String,
}

/// Scans of long connections, or polls of a feature.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Looks {
    /// Number of scans.
    pub number: u64,
    /// Processor time of all scans, µs.
    pub cpu_us: u64,
    /// Seconds from the last scan to the next; above the configured ones with many connections.
    pub interval_s: f64,
}

impl Looks {
    /// Share of a processor that scans take, percent.
    pub fn processor_percent(&self) -> f64 {
        let each_us = self.cpu_us as f64 / self.number.max(1) as f64;
        match self.interval_s > 0.0 {
            true => each_us / self.interval_s / 10_000.0,
            false => 0.0,
        }
    }
}

pub use crate::counters::Counters;

/// An arm of `GET /v1/arms` (a list).
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Arm {
    /// Slot in the arm table, 0 to 15.
    pub index: u8,
    /// Name of the congestion control.
    pub name: String,
    /// Whether the kernel offers it and the configuration allows it.
    pub present: bool,
    /// Whether the arm is chosen only for connections that negotiated ECN.
    pub needs_ecn: bool,
    /// Whether the arm is the system default of the agent's own network namespace.
    pub system_default: bool,
    /// Error text of the kernel's last refusal to set the arm.
    pub refused: Option<String>,
    /// Number of refusals, ever.
    pub refusals: u64,
}

/// Limits of the connections of a network, since yesterday.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct NetworkLimits {
    /// Name of the network, as in `GET /v1/networks`.
    pub name: String,
    /// `prefix`, `named` or `namespace`.
    pub level: String,
    /// Network namespace cookie.
    pub netns: u64,
    /// Pod or container that has this network namespace, if its runtime says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Shares of the time, and findings.
    pub limits: AdviceLimits,
    /// Number of connections of 128 KiB or more that neither receiver nor send buffer limited.
    pub free_connections: u64,
    /// Rate of these connections, bytes per second; `None`: there are none.
    pub free_bytes_per_s: Option<f64>,
    /// Highest rate of any connection of 128 KiB or more, bytes per second.
    pub fastest_bytes_per_s: f64,
}

/// An arm in a network.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct NetworkArm {
    /// Name of the congestion control.
    pub arm: String,
    /// Mean cost above the system default on the same hosts, bits: −1 is half the time per byte. It
    /// includes the evidence of wider networks.
    pub difference_bits: f64,
    /// Standard error of the mean cost, bits.
    pub error_bits: f64,
    /// Mean cost above the system default in this network alone, bits; `None`: not measured.
    pub own_difference_bits: Option<f64>,
    /// Evidence: discounted number of measurements, with the prior weight of the wider network.
    pub evidence: f64,
    /// Evidence of this network alone.
    pub own_evidence: f64,
    /// Number of measurements that hosts reported.
    pub scored: u32,
    /// Number of first connections to hosts that got the arm.
    pub count: u32,
    /// Whether the arm gains at the expense of others, so that it is not chosen.
    pub harmful: bool,
    /// Probability that a new host's connection gets the arm.
    pub next_probability: f64,
}

/// `GET /v1/history`: decisions by arm in equal intervals, the last of which has not ended.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct History {
    /// Start of the first interval, milliseconds since 1970.
    pub from_ms: i64,
    /// Length of an interval, milliseconds.
    pub interval_ms: u64,
    /// Number of intervals.
    pub parts: u32,
    /// Arms with decisions, by name.
    pub arms: Vec<ArmHistory>,
    /// Whether there were too many events: only the latest 100,000 (of a host: 10,000) are counted.
    pub cut: bool,
    /// Time of the first stored event, milliseconds since 1970; `None`: there is none.
    pub first_ms: Option<i64>,
    /// Least share of host-hours kept of these times. Below 1 the counts are estimates; of one host
    /// they are exact in the hours that were kept, and 0 in the others.
    #[serde(default = "one")]
    pub share: f64,
}

/// An arm of a history.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ArmHistory {
    /// Name of the congestion control; `unknown`: a CC that is not an arm.
    pub arm: String,
    /// Number of decisions for the arm in each interval.
    pub counts: Vec<u64>,
}

/// An event of `GET /v1/events`: a decision, or the end of a measurement interval that is scored,
/// or that the receiver or the buffer limited. Decisions without evidence (warm-up) and other
/// unscored intervals only have counters, unless a long connection ends.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Event {
    /// Number in the store, rising; 0: not stored yet.
    pub id: i64,
    /// Wall-clock time, milliseconds since 1970.
    pub time_ms: i64,
    /// `decision` or `close`.
    pub kind: String,
    /// Socket cookie: the same for all events of a connection.
    pub connection: u64,
    /// Network namespace cookie.
    pub netns: u64,
    /// Key of the host record: the address, with `/length` unless it is a whole host.
    pub host: String,
    /// Remote address.
    pub remote: String,
    /// Remote port.
    pub remote_port: u16,
    /// Local port.
    pub local_port: u16,
    /// Arm that the connection uses from now on (decision) or used (close); `None`: unknown CC.
    pub arm: Option<String>,
    /// Arm that the learner chose: differs from `arm` in a dry run or after a refusal.
    pub chosen: Option<String>,
    /// Arm that the system had given the connection.
    pub system_arm: Option<String>,
    /// Reason of the decision: `warm-up`, `greedy`, `explore`, `untried`, `application`, `foreign`,
    /// `loss`, `withdrawn`, `control`, `anew`, `returned`, `drawn`.
    pub reason: String,
    /// Level of the record that decided first: `host`, or of its networks `prefix`, `named`,
    /// `service` or `namespace`.
    #[serde(default = "host_level")]
    pub level: String,
    /// Probability of the choice.
    pub propensity: f64,
    /// Only for decisions: probability of each arm that had any; after the loss rule only of the
    /// chosen arm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub propensities: Option<BTreeMap<String, f64>>,
    /// Only for decisions: permitted arms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,
    /// Smoothed RTT at establishment, µs; 0 = unknown.
    #[serde(default)]
    pub handshake_rtt_us: u32,
    /// Version of the rule of choice: classic is 1; 0 = unknown.
    #[serde(default)]
    pub rule: u16,
    /// Hash of the parameters in force; 0 = unknown.
    #[serde(default)]
    pub parameters: u32,
    /// Whether the connection belongs to the control group, which keeps the system default.
    #[serde(default)]
    pub control: bool,
    /// Whether the connection was accepted from the peer, not opened by this machine.
    pub passive: bool,
    /// Whether ECN was negotiated.
    pub ecn: bool,
    /// Whether nothing was set.
    pub dry_run: bool,
    /// Number of events that this event stands for in the store, which keeps a share of the
    /// host-hours: one over that share in the hour of the connection's decision. 0: the event is
    /// not kept, and shown as it is recent.
    #[serde(default = "one")]
    pub stands_for: f64,
    /// Whether the connection was moved to another arm mid-flow.
    pub switched: bool,
    /// Error text if the kernel refused the arm.
    pub error: Option<String>,
    /// Initial window of the connection, where windows are learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Only for close: the measurement interval that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measurement: Option<Measurement>,
}

/// The initial window of a connection.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Window {
    /// Window of the connection, segments.
    pub segments: u8,
    /// Window that the learner chose, segments: differs in a dry run, or after a refusal.
    pub chosen: u8,
    /// Probability of the choice.
    pub propensity: f64,
    /// Only for close: time of the transfer in units of the round trips that it takes with the
    /// kernel's own window, bits; `None`: it said nothing about the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_bits: Option<f64>,
}

/// Level of events from before networks were known.
fn host_level() -> String {
    "host".to_owned()
}

/// Share of events from before shares were kept.
fn one() -> f64 {
    1.0
}

/// The measurement interval that ends with an event.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Measurement {
    /// `fin-local`, `fin-remote`, `reset`, `timeout`, `switch`; `stretch`: the connection goes on.
    pub end: String,
    /// `scored`; another outcome only at the end of a long connection.
    pub outcome: String,
    /// Acknowledged bytes.
    pub bytes: u64,
    /// Busy time if the kernel reports it, else wall time, µs.
    pub duration_us: u64,
    /// Wall time, µs; 0 = unknown.
    #[serde(default)]
    pub wall_us: u64,
    /// Part of the duration in which the receiver's window was full, µs.
    #[serde(default)]
    pub receiver_us: u32,
    /// Part of the duration in which the send buffer was full, µs.
    #[serde(default)]
    pub buffer_us: u32,
    /// Whether the application limited the kernel's last rate sample.
    #[serde(default)]
    pub app_limited: bool,
    /// Mean rate, bytes per second.
    pub rate_bytes_per_s: u64,
    /// Smoothed RTT at the end of the interval, µs.
    pub srtt_us: u32,
    /// Minimum RTT, µs.
    pub min_rtt_us: u32,
    /// Data segments sent.
    pub segs_out: u32,
    /// Retransmissions among them.
    pub retrans: u32,
    /// Cost. Classic: scale 1,000,000. Thalweg: bits × 1,000,000.
    pub cost: u64,
    /// Weight in the estimate, 0 to 1.
    pub weight: f64,
}

/// Limits of connections.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct AdviceLimits {
    /// Number of connections for which the kernel reports limits.
    pub connections: u64,
    /// Time of these connections with data outstanding, s.
    pub busy_s: f64,
    /// Share of that time in which the receiver's window was full, 0 to 1.
    pub receiver: f64,
    /// Share of the time with data outstanding in which the send buffer was full, 0 to 1.
    pub buffer: f64,
    /// Share of the time with data outstanding in which the network decided, 0 to 1.
    pub network: f64,
    /// Share of the time open in which the application had nothing to send, 0 to 1.
    pub idle: f64,
    /// Limits that hold transfers up for more than a quarter of the time with data outstanding.
    pub findings: Vec<AdviceLimit>,
}

/// Finding on a buffer that is too small.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct AdviceLimit {
    /// `receiver` or `buffer`.
    pub limit: String,
    /// Setting whose third number is the limit; for the receiver it is that of the other end.
    pub setting: String,
    /// Present third number of the setting, bytes; `None`: not known here.
    pub now_bytes: Option<u64>,
    /// Buffer for the predicted rate, or else for twice the rate, bytes: two bandwidth-delay
    /// products, as half of a buffer is the kernel's overhead.
    pub needed_bytes: u64,
    /// Rate without the limit, by connections of the network without limits, bytes per second;
    /// `None`: not known.
    #[serde(default)]
    pub predicted_bytes_per_s: Option<f64>,
    /// Rate of the limited connections, bytes per second.
    pub rate_bytes_per_s: f64,
    /// Smoothed RTT of the limited connections, µs.
    pub rtt_us: u64,
    /// Finding and hint, in words.
    pub words: String,
}
