//! Responses on remote hosts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Event, one};

/// `GET /v1/hosts`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Hosts {
    /// Host records, in no particular order, or the wanted ones, best first.
    pub hosts: Vec<Host>,
}

/// A remote host.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Host {
    /// Address, with `/length` unless it is a whole host.
    pub address: String,
    /// Network namespace cookie.
    pub netns: u64,
    /// Pod or container that has this network namespace, if its runtime says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Number of established connections.
    pub connections: u32,
    /// Number of measurements.
    pub scored: u32,
    /// Number of connections moved to another arm mid-flow.
    pub switched: u32,
    /// Lowest RTT seen, µs; 0 = none.
    pub min_rtt_us: u32,
    /// Base RTT: the lowest of this half-life and of the one before, µs; 0 = none (thalweg).
    #[serde(default)]
    pub base_rtt_us: u32,
    /// log2 of the RTT under the system default over the base RTT, bits (thalweg).
    #[serde(default)]
    pub queue_bits: f64,
    /// Highest rate seen, bytes per second.
    pub max_rate_bytes_per_s: u64,
    /// Seconds since the last connection or measurement.
    pub idle_s: u64,
    /// Name of the arm with the lowest estimated cost, if any has been measured.
    pub best: Option<String>,
    /// Arms with any data, by index.
    pub arms: Vec<HostArm>,
}

/// An arm for one host. The first six fields are the published columns.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct HostArm {
    /// Name of the congestion control ("CongAlg").
    pub arm: String,
    /// "Metric". Classic: published cost, scale 1,000,000. Thalweg: mean cost in bits × 1,000,000.
    pub metric: u64,
    /// "Count": decisions for this arm.
    pub count: u32,
    /// "Greedy": decisions for this arm because of its lowest cost.
    pub greedy: u32,
    /// "MinRtt", µs.
    pub min_rtt_us: u32,
    /// "MaxRtDlvr", bytes per µs.
    pub max_rate: u64,
    /// Number of measurements.
    pub scored: u32,
    /// Evidence: discounted number of full-weight measurements (thalweg).
    pub evidence: f64,
    /// Mean cost in bits: one bit more is half the rate (thalweg).
    pub cost_bits: f64,
    /// Mean deviation of the cost, bits (thalweg).
    pub deviation_bits: f64,
    /// Typical rate: discounted geometric mean, bytes per second (thalweg).
    pub rate_bytes_per_s: f64,
    /// Typical smoothed RTT at the end of connections, µs (thalweg).
    pub srtt_us: u32,
    /// Share of recent segments that were retransmissions (thalweg).
    #[serde(default)]
    pub retransmitted: f64,
    /// Whether the arm gains at the expense of others, so that it is not chosen (thalweg).
    #[serde(default)]
    pub harmful: bool,
    /// Whether the arm is sometimes much slower, so that it must be better by 1 1/2 bits (thalweg).
    #[serde(default)]
    pub unsteady: bool,
    /// Probability that the next connection uses the arm.
    pub next_probability: f64,
}

/// `GET /v1/hosts/{address}`: why the next connection will use its arm.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Explanation {
    /// Host record; without connections and arms, if there is none.
    pub host: Host,
    /// Explanations by features, by their names.
    #[serde(flatten)]
    pub features: BTreeMap<String, serde_json::Value>,
    /// Devices by which connections to the host may leave, if there are several: one record has the
    /// measurements of all of them. Only of the agent's own network namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<String>,
    /// One sentence on the choice and its reason.
    pub summary: String,
    /// The latest events of the host, newest first.
    pub recent: Vec<Event>,
    /// Share of the host-hours whose events the store keeps now.
    #[serde(default = "one")]
    pub events_share: f64,
}
