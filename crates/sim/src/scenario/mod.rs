//! What is simulated: a network, its hosts, and who sends how much to whom.
//!
//! `docs/reference/sim.md` documents every key of the file.

mod check;
mod file;
mod kinds;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::Time;

pub use crate::expect::Expectation;
pub use crate::workload::Sizes;
pub use file::LoadError;

/// A whole scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scenario {
    /// Short name: names the report's directory.
    pub name: String,
    /// One sentence for the reader of the report.
    pub description: String,
    /// When the simulation ends.
    pub duration: Time,
    /// When measuring begins.
    pub warmup: Time,
    /// How hosts and switches are connected.
    pub topology: Topology,
    /// What all links and queues have in common.
    pub network: Network,
    /// How hosts send.
    pub hosts: Hosts,
    /// Who sends how much to whom.
    pub workload: Workload,
    /// Distance of the samples of the time series; none: no series.
    pub series: Option<Time>,
    /// What is expected of the outcome.
    pub expect: Vec<Expectation>,
}

/// A link and the queue in front of it, the same in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Link {
    /// Bits per second.
    pub rate_bps: u64,
    /// How long a bit is under way.
    pub delay: Time,
    /// Bytes that a switch queues for it; what does not fit is dropped.
    pub queue_bytes: u64,
}

/// How hosts and switches are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// One switch.
    Star {
        /// Hosts at it.
        hosts: u32,
    },
    /// Every leaf switch is connected to every spine switch.
    LeafSpine {
        /// Switches with hosts.
        leaves: u32,
        /// Switches without.
        spines: u32,
        /// Hosts at each leaf.
        hosts_per_leaf: u32,
    },
    /// Three tiers of switches with `ports` ports (Al-Fares, Loukissas and Vahdat 2008).
    FatTree {
        /// Ports of every switch, an even number; ports³/4 hosts.
        ports: u32,
    },
}

impl Topology {
    /// Number of hosts.
    pub fn hosts(&self) -> u64 {
        match *self {
            Self::Star { hosts } => u64::from(hosts),
            Self::LeafSpine {
                leaves,
                hosts_per_leaf,
                ..
            } => u64::from(leaves) * u64::from(hosts_per_leaf),
            Self::FatTree { ports } => u64::from(ports).pow(3) / 4,
        }
    }
}

/// What links and queues have in common.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Network {
    /// Links of hosts.
    pub link: Link,
    /// Links between switches.
    pub fabric: Link,
    /// Whole data packet on the wire, bytes.
    pub packet_bytes: u32,
    /// Whole acknowledgement, notification or answer to a probe on the wire, bytes.
    pub answer_bytes: u32,
    /// Round-trip time of the longest path through empty queues; what links do not account for
    /// is spent in the receiver. None: links alone.
    pub base_rtt: Option<Time>,
    /// Congestion marks.
    pub ecn: Option<Ecn>,
    /// Pause frames: queues do not drop, they stop who fills them.
    pub pause: Option<Pause>,
    /// Whether every queue is a list of packets even where its departures can be computed. For
    /// tests: the outcome is the same, only slower.
    pub explicit_queues: bool,
}

/// Marks by queue length, as random early detection (RED) does: none up to `min_bytes`, then
/// linearly more up to `max_probability` at `max_bytes`, all beyond it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ecn {
    /// Kmin, bytes.
    pub min_bytes: u64,
    /// Kmax, bytes.
    pub max_bytes: u64,
    /// Pmax, from 0 to 1.
    pub max_probability: f64,
}

/// Priority flow control (IEEE 802.1Qbb) of the data class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// A switch stops the sender of a link when so many bytes of it wait, bytes.
    pub stop_bytes: u64,
    /// And lets it go on when no more than so many do.
    pub go_bytes: u64,
}

/// How hosts send.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hosts {
    /// Packets of a flow that leave in one turn.
    pub burst_packets: u32,
    /// Flows begin at random moments of this time.
    pub start_spread: Time,
    /// How long after something happened a controller's command takes effect.
    pub reaction: Time,
    /// The least rate of a flow, bits per second.
    pub min_rate_bps: u64,
    /// What replaces lost packets.
    pub recovery: Recovery,
    /// A packet that is neither acknowledged nor reported lost in this time is lost.
    pub timeout: Time,
}

/// What replaces lost packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// The receiver takes packets in order only; the sender goes back to the lost one.
    GoBackN,
    /// The receiver keeps what comes; the sender repeats what was lost.
    SelectiveRepeat,
}

/// Who sends how much to whom.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Endless flows from hosts 1 to `senders` to host 0.
    ManyToOne {
        /// Hosts that send.
        senders: u32,
        /// Flows, dealt to the senders in turn.
        flows: u32,
    },
    /// Endless flows from every host to every other.
    AllToAll {
        /// Flows from each host to each other.
        flows_per_pair: u32,
    },
    /// An endless flow from host 1, and short ones from the others, all to host 0.
    LongShort {
        /// Hosts that send.
        senders: u32,
        /// Flows, dealt to the senders in turn; the first is the long one.
        flows: u32,
        /// What a short flow sends at a time, or all of a host's together, bytes.
        burst_bytes: u64,
        /// Whether a host's flows share a burst, evenly and in whole packets.
        per_host: bool,
        /// How long short flows then wait.
        idle: Time,
        /// Whether all wait until the last has sent, and begin again together; else each for
        /// itself.
        together: bool,
    },
    /// Flows that come at random moments (a Poisson process), each from a random host to a
    /// random other one, send their data once, and go.
    Poisson {
        /// How large they are.
        sizes: Sizes,
        /// What the hosts send on average, of what their links carry, from 0 to 1.
        load: f64,
        /// None come after this.
        until: Time,
    },
    /// A list.
    Flows(Vec<FlowPlan>),
}

/// One flow of a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlowPlan {
    /// Sending host, counted from 0.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// What it sends, bytes; none: without end.
    pub bytes: Option<u64>,
    /// When it begins; none: at a random moment of [`Hosts::start_spread`].
    pub start: Option<Time>,
}
