//! Scenarios: a network, its hosts, and their traffic.
//!
//! `docs/reference/sim.md` documents every key of the file.

mod check;
mod file;
mod kinds;
mod linux;
mod sender;
mod set;
#[cfg(test)]
mod tests;

use serde::Serialize;
use thalweg_units::Faults;
use thalweg_units::file::ReadError;

use crate::Time;
use crate::metrics::Statistic;

pub use crate::expect::Expectation;
pub use crate::workload::Sizes;
pub use linux::{Linux, Pacing, Rounds, RttSample};
pub use set::{Setting, SettingError, with_settings};

/// Width of the bins in which the long flow's rate is watched for its recovery.
pub(crate) const RECOVERY_BIN: Time = Time::from_us(10);

/// Interval in which smoothed round-trip times are read, as the laboratory reads `TCP_INFO`.
pub(crate) const INSPECTION: Time = Time::from_us(100_000);

/// Why a file gives no scenario.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file is not a valid scenario.
    #[error(transparent)]
    Scenario(#[from] Faults),
}

/// A time that does not fit the rest of its scenario.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: found {found}, expected {expected}")]
pub struct TimeFault {
    /// Key of the time in a scenario file.
    pub key: &'static str,
    /// The time, with what comes of it.
    pub found: String,
    /// What fits.
    pub expected: String,
}

/// A whole scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scenario {
    /// Short name; the report's directory has it too.
    pub name: String,
    /// One sentence for the reader of the report.
    pub description: String,
    /// Time when the simulation ends.
    pub duration: Time,
    /// Time when measuring starts.
    pub warmup: Time,
    /// How hosts and switches are connected.
    pub topology: Topology,
    /// Common parameters of all links and queues.
    pub network: Network,
    /// Parameters of sending hosts.
    pub hosts: Hosts,
    /// Traffic of the hosts.
    pub workload: Workload,
    /// Sampling interval of the time series; none: no series.
    pub series: Option<Time>,
    /// Expected outcome.
    pub expect: Vec<Expectation>,
    /// Whether the expectations only bound harm: a controller that does nothing meets them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_bounds_harm: bool,
}

/// A link and the queue in front of it, the same in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Link {
    /// Bits per second.
    pub rate_bps: u64,
    /// Propagation delay.
    pub delay: Time,
    /// Size of a switch's queue in front of the link, bytes. Packets that do not fit are dropped.
    pub queue_bytes: u64,
    /// Bucket of a shaper (token bucket) in front of the link, bytes: so much passes at once after a
    /// pause. Zero: no shaper.
    #[serde(skip_serializing_if = "is_zero")]
    pub bucket_bytes: u64,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// How hosts and switches are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// One switch.
    Star {
        /// Hosts at the switch.
        hosts: u32,
    },
    /// Every leaf switch is connected to every spine switch.
    LeafSpine {
        /// Switches with hosts.
        leaves: u32,
        /// Switches without hosts.
        spines: u32,
        /// Hosts at each leaf.
        hosts_per_leaf: u32,
    },
    /// Three tiers of switches with `ports` ports each (Al-Fares, Loukissas and Vahdat 2008).
    FatTree {
        /// Ports of every switch, an even number. The network has ports³/4 hosts.
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
            Self::FatTree { ports } => u64::from(ports).saturating_pow(3) / 4,
        }
    }

    /// Number of output ports of all switches: one for each host, and two for each link between
    /// switches.
    pub fn ports(&self) -> u64 {
        let between = match *self {
            Self::Star { .. } => 0,
            Self::LeafSpine { leaves, spines, .. } => {
                (2 * u64::from(leaves)).saturating_mul(u64::from(spines))
            }
            Self::FatTree { ports } => u64::from(ports).saturating_pow(3),
        };
        self.hosts().saturating_add(between)
    }
}

/// Common parameters of links and queues.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Network {
    /// Links of hosts.
    pub link: Link,
    /// Links between switches.
    pub fabric: Link,
    /// Whole data packet on the wire, bytes.
    pub packet_bytes: u32,
    /// Whole ACK, notification or probe response on the wire, bytes.
    pub answer_bytes: u32,
    /// Round-trip time of the longest path through empty queues. The part that links do not account
    /// for is spent in the receiver. None: links alone.
    pub base_rtt: Option<Time>,
    /// ECN marks.
    pub ecn: Option<Ecn>,
    /// Pause frames: queues do not drop packets but pause their senders.
    pub pause: Option<Pause>,
    /// Whether every queue is a list of packets, even where its departures can be computed. For
    /// tests: the outcome is the same, only slower.
    pub explicit_queues: bool,
}

/// Marks by queue length, as in random early detection (RED). There are none up to `min_bytes`. The
/// probability then grows linearly to `max_probability` at `max_bytes`, and is 1 beyond it.
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
    /// XOFF threshold: a switch pauses the sender of a link when it queues this many bytes from it.
    pub stop_bytes: u64,
    /// XON threshold: the sender goes on when at most this many bytes are queued.
    pub go_bytes: u64,
}

/// Parameters of sending hosts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hosts {
    /// Packets of a flow that leave in one turn.
    pub burst_packets: u32,
    /// Flows start at random moments of this time.
    pub start_spread: Time,
    /// Delay between an event and the effect of a controller's command.
    pub reaction: Time,
    /// Lowest rate of a flow, bits per second.
    pub min_rate_bps: u64,
    /// How lost packets are replaced.
    pub recovery: Recovery,
    /// A packet that is neither acknowledged nor reported lost in this time is lost.
    pub timeout: Time,
    /// Senders and receivers with Linux's TCP; none: network cards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux: Option<Linux>,
}

/// How lost packets are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// The receiver takes packets in order only; the sender goes back to the lost one.
    GoBackN,
    /// The receiver keeps every packet; the sender retransmits lost packets only.
    SelectiveRepeat,
}

/// Traffic of the hosts.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Endless flows from hosts 1 to `senders` to host 0.
    ManyToOne {
        /// Number of sending hosts.
        senders: u32,
        /// Number of flows, dealt to the senders in turn.
        flows: u32,
    },
    /// Endless flows from every host to every other.
    AllToAll {
        /// Number of flows from each host to each other.
        flows_per_pair: u32,
    },
    /// An endless flow from host 1, and short ones from the others, all to host 0.
    LongShort {
        /// Number of sending hosts.
        senders: u32,
        /// Number of flows, dealt to the senders in turn; the first is the long one.
        flows: u32,
        /// Bytes that a short flow, or all of a host's flows together, sends at a time.
        burst_bytes: u64,
        /// Whether a host's flows share a burst, evenly and in whole packets.
        per_host: bool,
        /// Pause of short flows between bursts.
        idle: Time,
        /// Whether short flows wait until the last has sent, and start again together. Otherwise
        /// each waits for itself.
        together: bool,
    },
    /// Flows that arrive at random moments (a Poisson process). Each goes from a random host to a
    /// random other one, sends its data once, and ends.
    Poisson {
        /// Distribution of their sizes.
        sizes: Sizes,
        /// Mean offered load, as a share of the hosts' links, from 0 to 1.
        load: f64,
        /// No flow arrives after this.
        until: Time,
    },
    /// A list of flows.
    Flows(Vec<FlowPlan>),
}

/// One flow of a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlowPlan {
    /// Sending host, counted from 0.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// Bytes that it sends; none: without end.
    pub bytes: Option<u64>,
    /// Time of its start; none: a random moment of [`Hosts::start_spread`].
    pub start: Option<Time>,
}

impl Scenario {
    /// Number of its flows; 0 where flows come and go.
    pub fn flows(&self) -> u64 {
        match &self.workload {
            Workload::ManyToOne { flows, .. } | Workload::LongShort { flows, .. } => {
                u64::from(*flows)
            }
            Workload::AllToAll { flows_per_pair } => {
                let hosts = self.topology.hosts();
                let pairs = hosts.saturating_mul(hosts.saturating_sub(1));
                pairs.saturating_mul(u64::from(*flows_per_pair))
            }
            Workload::Poisson { .. } => 0,
            Workload::Flows(list) => list.len() as u64,
        }
    }

    /// Whether its runs have a statistic.
    pub fn gives(&self, statistic: Statistic) -> bool {
        self.workload.gives(statistic) && (self.hosts.linux.is_some() || !statistic.is_of_tcp())
    }
}

impl Workload {
    /// Whether its runs have a statistic.
    pub fn gives(&self, statistic: Statistic) -> bool {
        match statistic {
            Statistic::Fairness | Statistic::HostFairness => !matches!(self, Self::Poisson { .. }),
            Statistic::Recovery | Statistic::LongRate => matches!(self, Self::LongShort { .. }),
            Statistic::SlowdownP50 | Statistic::SlowdownP99 => match self {
                Self::Poisson { .. } => true,
                Self::Flows(list) => list.iter().any(|flow| flow.bytes.is_some()),
                _ => false,
            },
            _ => true,
        }
    }
}
