//! Types of the feature's responses.

use serde::{Deserialize, Serialize};

/// `GET /v1/windows`: records of initial windows.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Windows {
    /// Windows to choose from, segments; empty: they are not learned.
    pub segments: Vec<u32>,
    /// Networks, the narrowest first.
    pub networks: Vec<WindowNetwork>,
}

/// Initial windows towards a group of hosts.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct WindowNetwork {
    /// Name of the network, as [`crate::view::Network::name`].
    pub name: String,
    /// `prefix`, `service` or `namespace`.
    pub level: String,
    /// Network namespace cookie.
    pub netns: u64,
    /// Pod or container that has this network namespace, if its runtime says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Whether the network knows enough to decide.
    pub decides: bool,
    /// Number of connections that the network decided.
    pub decided: u32,
    /// Number of connections whose window was scored.
    pub scored: u32,
    /// Seconds since the last scored connection.
    pub idle_s: u64,
    /// Largest window that may be chosen now, segments.
    pub largest: u32,
    /// Window that a connection most likely gets, segments.
    pub best: u32,
    /// Windows with any data, the smallest first.
    pub windows: Vec<WindowArm>,
}

/// An initial window in a network.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct WindowArm {
    /// Size of the window, segments.
    pub segments: u32,
    /// Mean time of transfers above that with the kernel's own window, bits: −1 is half the time.
    /// Evidence of wider networks is included.
    pub difference_bits: f64,
    /// Standard error of the mean time, bits.
    pub error_bits: f64,
    /// Evidence: discounted number of measurements, with the prior weight of the wider network.
    pub evidence: f64,
    /// Evidence of this network alone.
    pub own_evidence: f64,
    /// Share of segments that were retransmissions.
    pub retransmitted: f64,
    /// Number of connections that were scored.
    pub scored: u32,
    /// Number of connections for which the network chose the window.
    pub count: u32,
    /// Probability that a connection gets the window.
    pub next_probability: f64,
}
