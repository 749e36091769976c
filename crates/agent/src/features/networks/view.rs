//! Responses on networks.

use serde::{Deserialize, Serialize};

use crate::view::{NetworkArm, NetworkLimits};

/// `GET /v1/networks`: records of networks, which decide about new hosts.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Networks {
    /// Networks, the narrowest first.
    pub networks: Vec<Network>,
    /// Limits of the connections of the busiest 512 networks, the busiest first.
    #[serde(default)]
    pub limits: Vec<NetworkLimits>,
    /// Reason that limits are not known; `None`: they are.
    #[serde(default)]
    pub limits_untold: Option<String>,
}

/// A group of hosts: a prefix, a network that the operator names, a service's hosts with a similar
/// RTT, or all of a network namespace.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Network {
    /// Prefix, the operator's name, `port 443, accepted, 8 to 16 ms`, or `all`.
    pub name: String,
    /// `prefix`, `named`, `service` or `namespace`; `fleet-prefix` or `fleet-named`: reports of
    /// other agents about the same network.
    pub level: String,
    /// Only at levels of the fleet: number of other agents that reported the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<u32>,
    /// Network namespace cookie.
    pub netns: u64,
    /// Pod or container that has this network namespace, if its runtime says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Number of host records in the network; `None`: not counted for services.
    pub hosts: Option<u64>,
    /// Whether the network knows enough to decide about new hosts.
    pub decides: bool,
    /// Number of first connections to hosts that the network decided.
    pub decided: u32,
    /// Number of measurements that hosts reported to the network.
    pub scored: u32,
    /// Seconds since the last measurement.
    pub idle_s: u64,
    /// Arm that a new host most likely gets; `None`: the system default, as too little is known.
    pub best: Option<String>,
    /// Arms with any data, by index.
    pub arms: Vec<NetworkArm>,
}
