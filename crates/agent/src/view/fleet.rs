//! An agent's place in its fleet, and the fleet as a whole, by the statuses of its agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::GainRow;

/// `GET /v1/fleet`: an agent's place in its fleet.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetPlace {
    /// Its name there.
    pub agent: String,
    /// Labels whose policies concern it.
    pub labels: Vec<String>,
    /// The server that it is connected to; `None`: the fleet is away.
    pub server: Option<String>,
    /// Since when, s.
    pub connected_s: Option<u64>,
    /// Times that it has connected.
    pub connections: u64,
    /// Faults by kind, since the session began.
    pub faults: BTreeMap<String, u64>,
    /// The last fault.
    pub last_fault: Option<FleetFault>,
    /// Whether it tells others what it measures.
    pub shares: bool,
    /// Whether it uses what others tell.
    pub takes: bool,
    /// Networks that it tells of.
    pub told: u64,
    /// Other agents that have told of networks.
    pub agents: u64,
    /// Networks that they told of.
    pub networks: u64,
    /// Records of what they told that are in force, of all network namespaces.
    pub in_force: u64,
    /// Records for which there is no room, or no such network here.
    pub left_out: u64,
    /// Messages of agents with another version of the learner's rule, which were not used.
    pub other_rule: u64,
    /// What others told of a network, and was not heard for want of room.
    pub unheard: u64,
    /// Policies of the fleet, at most one a label.
    pub policies: Vec<FleetProgress>,
    /// Messages and bytes sent, of the NATS protocol without TLS.
    pub sent: FleetTraffic,
    /// Likewise received.
    pub received: FleetTraffic,
}

/// A fault of the fleet.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetFault {
    /// Its kind.
    pub kind: String,
    /// What went wrong, one line.
    pub text: String,
    /// Time since then, s.
    pub age_s: u64,
}

/// Messages of one direction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetTraffic {
    /// Their number.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// `GET /v1/fleet/agents`: all agents of the fleet.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetAgents {
    /// Time since the statuses were read, s.
    pub read_s: u64,
    /// Number of agents by the version of their program; of those whose status cannot be read it is
    /// not known.
    pub versions: BTreeMap<String, u64>,
    /// Agents without a status for more than half an hour.
    pub silent: u64,
    /// Agents with problems, or with a status that cannot be read.
    pub with_problems: u64,
    /// The agents, in order of their names.
    pub agents: Vec<FleetAgent>,
}

/// An agent of the fleet, by its last status.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetAgent {
    /// Its name.
    pub agent: String,
    /// Time since its status, by the server's clock, s.
    pub age_s: u64,
    /// Whether that is more than half an hour.
    pub silent: bool,
    /// Version of its program; `None`: the status cannot be read.
    pub version: Option<String>,
    /// Its labels.
    pub labels: Vec<String>,
    /// Policies of the fleet, at most one a label.
    pub policies: Vec<FleetProgress>,
    /// Its problems, a line each.
    pub problems: Vec<String>,
    /// Why the status cannot be read.
    pub unreadable: Option<String>,
}

/// A policy of the fleet on an agent.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetProgress {
    /// The policy's label.
    pub label: String,
    /// Its number.
    pub number: u64,
    /// `waiting`, `canary`, `in-force`, `rolled-back` or `refused`.
    pub stage: String,
    /// Why it is no further; may be empty.
    pub reason: String,
}

/// `GET /v1/fleet/gain`: comparisons of all agents together.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetGain {
    /// The main finding, in a sentence.
    pub summary: String,
    /// Time since the statuses were read, s.
    pub read_s: u64,
    /// Agents that tell of no connections that can be compared.
    pub without: u64,
    /// Sums that were refused.
    pub refused: u64,
    /// Agents that are left out.
    pub left_out: Vec<FleetLeftOut>,
    /// Agents that are counted, with a status of more than an hour ago.
    pub silent: Vec<FleetSilent>,
    /// The learners against their control groups.
    pub all: FleetComparison,
    /// Rules with a share against the flows that they left alone, by name, those of most agents
    /// first.
    pub rules: Vec<FleetComparison>,
}

/// Why an agent is left out of a comparison.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetLeftOut {
    /// Its name.
    pub agent: String,
    /// Why, in a line.
    pub why: String,
}

/// An agent that is silent.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetSilent {
    /// Its name.
    pub agent: String,
    /// Time since its status, s.
    pub age_s: u64,
}

/// One comparison of several agents.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetComparison {
    /// The rule; `None`: the learner.
    pub rule: Option<String>,
    /// The finding, in a sentence.
    pub summary: String,
    /// Agents that are counted.
    pub agents: u64,
    /// The measures, without sizes; `known_in_s` is never known.
    pub rows: Vec<GainRow>,
    /// How the agents differ, by measure.
    pub spread: Vec<FleetSpread>,
    /// Agents without any one of which the verdict of a measure would be another.
    pub hinges_on: Vec<String>,
}

/// How agents differ in a measure, by their own intervals.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FleetSpread {
    /// `time`, `retransmitted`, `failed` or `rtt`.
    pub measure: String,
    /// Agents with clusters enough for an interval of their own.
    pub known: u64,
    /// Of these, those that are better.
    pub better: u64,
    /// And worse.
    pub worse: u64,
    /// Worse ones among those known, 0 to 1; `None`: none is known.
    pub worse_share: Option<f64>,
}
