//! An agent's place in its fleet, and the fleet as a whole, by the statuses of its agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::view::GainRow;

/// `GET /v1/fleet`: an agent's place in its fleet.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetPlace {
    /// Name of the agent in the fleet.
    pub agent: String,
    /// Labels whose policies the agent obeys.
    pub labels: Vec<String>,
    /// Server that the agent is connected to; `None`: the fleet is away.
    pub server: Option<String>,
    /// Time since the agent connected, s.
    pub connected_s: Option<u64>,
    /// Number of times that the agent has connected.
    pub connections: u64,
    /// Number of faults by kind, since the session began.
    pub faults: BTreeMap<String, u64>,
    /// The last fault.
    pub last_fault: Option<FleetFault>,
    /// Whether the agent reports its measurements to others.
    pub shares: bool,
    /// Whether the agent uses reports of others.
    pub takes: bool,
    /// Number of networks that the agent reports.
    pub told: u64,
    /// Number of other agents that have reported networks.
    pub agents: u64,
    /// Number of networks that other agents reported.
    pub networks: u64,
    /// Number of the fleet's records in force, of all network namespaces.
    pub in_force: u64,
    /// Number of the fleet's records for which there is no room, or no such network here.
    pub left_out: u64,
    /// Number of messages of agents with another version of the learner's rule, which were not
    /// used.
    pub other_rule: u64,
    /// Number of reports of networks for which there was no room.
    pub unheard: u64,
    /// Policies of the fleet, at most one a label.
    pub policies: Vec<FleetProgress>,
    /// Messages and bytes sent, in the NATS protocol without TLS.
    pub sent: FleetTraffic,
    /// Messages and bytes received, in the NATS protocol without TLS.
    pub received: FleetTraffic,
}

/// A fault of the fleet.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetFault {
    /// Kind of the fault.
    pub kind: String,
    /// Text of the fault, one line.
    pub text: String,
    /// Time since the fault, s.
    pub age_s: u64,
}

/// Traffic in one direction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetTraffic {
    /// Number of messages.
    pub messages: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// `GET /v1/fleet/agents`: all agents of the fleet.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetAgents {
    /// Time since the statuses were read, s.
    pub read_s: u64,
    /// Number of agents by the version of their program, without those whose status cannot be read.
    pub versions: BTreeMap<String, u64>,
    /// Number of agents without a status for more than half an hour.
    pub silent: u64,
    /// Number of agents with problems, or with a status that cannot be read.
    pub with_problems: u64,
    /// The agents, in order of their names.
    pub agents: Vec<FleetAgent>,
}

/// An agent of the fleet, by its last status.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetAgent {
    /// Name of the agent.
    pub agent: String,
    /// Time since the agent's status, by the server's clock, s.
    pub age_s: u64,
    /// Whether the status is older than half an hour.
    pub silent: bool,
    /// Version of the agent's program; `None`: the status cannot be read.
    pub version: Option<String>,
    /// Labels of the agent.
    pub labels: Vec<String>,
    /// Policies of the fleet, at most one a label.
    pub policies: Vec<FleetProgress>,
    /// Problems of the agent, a line each.
    pub problems: Vec<String>,
    /// Reason that the status cannot be read.
    pub unreadable: Option<String>,
}

/// A policy of the fleet on an agent.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetProgress {
    /// Label of the policy.
    pub label: String,
    /// Number of the policy.
    pub number: u64,
    /// `waiting`, `canary`, `in-force`, `rolled-back` or `refused`.
    pub stage: String,
    /// Reason that the policy is no further; may be empty.
    pub reason: String,
}

/// `GET /v1/fleet/gain`: comparisons of all agents together.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetGain {
    /// Main finding, in a sentence.
    pub summary: String,
    /// Time since the statuses were read, s.
    pub read_s: u64,
    /// Number of agents that report no connections that can be compared.
    pub without: u64,
    /// Number of sums that were refused.
    pub refused: u64,
    /// Agents that are left out of the comparisons.
    pub left_out: Vec<FleetLeftOut>,
    /// Agents that are counted although their status is older than an hour.
    pub silent: Vec<FleetSilent>,
    /// The learners against their control groups.
    pub all: FleetComparison,
    /// Rules with a share against the flows that they left alone, by name, rules of most agents
    /// first.
    pub rules: Vec<FleetComparison>,
}

/// Agent that is left out of a comparison, and the reason.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetLeftOut {
    /// Name of the agent.
    pub agent: String,
    /// Reason, in a line.
    pub why: String,
}

/// An agent that is silent.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetSilent {
    /// Name of the agent.
    pub agent: String,
    /// Time since the agent's status, s.
    pub age_s: u64,
}

/// Comparison of several agents.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetComparison {
    /// Rule of the comparison; `None`: the learner.
    pub rule: Option<String>,
    /// The finding, in a sentence.
    pub summary: String,
    /// Number of agents that are counted.
    pub agents: u64,
    /// The measures, without sizes; `known_in_s` is always `None`.
    pub rows: Vec<GainRow>,
    /// Differences between the agents, by measure.
    pub spread: Vec<FleetSpread>,
    /// Agents of which each decides a measure's verdict: without it the verdict would be another.
    pub hinges_on: Vec<String>,
}

/// Differences between agents in a measure, by their own intervals.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetSpread {
    /// Measure: `time`, `retransmitted`, `failed` or `rtt`.
    pub measure: String,
    /// Number of agents with clusters enough for an interval of their own.
    pub known: u64,
    /// Number of known agents that are better.
    pub better: u64,
    /// Number of known agents that are worse.
    pub worse: u64,
    /// Share of known agents that are worse, 0 to 1; `None`: none is known.
    pub worse_share: Option<f64>,
}
