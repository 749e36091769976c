//! Types of the feature's responses.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::hosts::Entry;
use super::iterator::Remote;
use crate::view::Looks;

/// Metrics of the learned clamps.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct ClampFigures {
    /// Number of remote hosts with a clamp.
    pub hosts: u64,
    /// Number of open connections with a clamp.
    pub connections: u64,
    /// Number of times that this agent set a clamp.
    pub set: u64,
    /// Number of times that the kernel refused a clamp.
    pub refused: u64,
    /// Polls of the connections.
    pub looks: Looks,
}

/// `GET /v1/clamps`: the learned clamps of congestion windows.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Clamps {
    /// Remote prefixes with clamps; empty: there are none.
    pub prefixes: Vec<String>,
    /// Whether clamps are set: not in a dry run, under advice, or where the kernel cannot.
    pub sets: bool,
    /// Remote hosts in the prefixes, by namespace and address.
    pub hosts: Vec<HostClamp>,
}

/// Clamp of a remote host, with the measurements of its path.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct HostClamp {
    /// Address of the host.
    pub address: String,
    /// Network namespace cookie.
    pub netns: u64,
    /// Pod or container that has this network namespace, if its runtime says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Clamp of the host, segments; `None`: too little is known, or the host is in the control
    /// group.
    pub segments: Option<u32>,
    /// Largest rate of one connection, bytes/s; 0: unknown.
    pub max_rate_bytes_per_s: u64,
    /// Least RTT, µs; 0: unknown.
    pub min_rtt_us: u32,
    /// Number of open connections.
    pub connections: u64,
    /// Number of connections with a clamp from the agent.
    pub clamped: u64,
    /// Number of connections that are left to a policy or a route.
    pub left: u64,
}

impl HostClamp {
    /// The row of a host; `containers` has names by namespace cookie.
    pub fn new(remote: &Remote, entry: &Entry, containers: &HashMap<u64, String>) -> Self {
        Self {
            address: remote.address().to_string(),
            netns: remote.netns,
            container: containers.get(&remote.netns).cloned(),
            segments: entry.segments,
            max_rate_bytes_per_s: entry.path.largest_rate(),
            min_rtt_us: entry.path.min_rtt_us(),
            connections: entry.connections,
            clamped: entry.clamped,
            left: entry.left,
        }
    }
}
