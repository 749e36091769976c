//! Types of the feature's responses.

use serde::{Deserialize, Serialize};
use thalweg_terminal::output::count_text;
use thalweg_units::figures::bytes_text;

use crate::view::{AdvisedSetting, Looks};

/// Metrics of the limits of buffers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct BufferFigures {
    /// Number of network namespaces that are followed.
    pub namespaces: u64,
    /// Number of network namespaces with a raised limit.
    pub raised: u64,
    /// Number of network namespaces that are left alone: somebody else has changed a limit.
    pub left: u64,
    /// Number of times that a limit was raised.
    pub raises: u64,
    /// Number of times that a limit was lowered for lack of need.
    pub lowerings: u64,
    /// Number of times that a limit was lowered for lack of memory.
    pub step_backs: u64,
    /// Memory of all TCP sockets, bytes.
    pub memory_bytes: u64,
    /// Memory of all TCP sockets from which limits fall, bytes.
    pub memory_mark_bytes: u64,
    /// Polls of the connections.
    pub looks: Looks,
}

/// `GET /v1/buffers`: limits of buffers.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Buffers {
    /// Whether limits are followed.
    pub enabled: bool,
    /// Whether limits are set: not in a dry run, nor under advice.
    pub sets: bool,
    /// Largest limit, bytes.
    pub max_bytes: u64,
    /// Network namespaces with connections, by cookie.
    pub namespaces: Vec<NamespaceBuffers>,
    /// Remote networks with large transfers since a limit was raised, by name.
    #[serde(default)]
    pub networks: Vec<NetworkBuffers>,
}

/// Effect of raised limits on the transfers to a network.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct NetworkBuffers {
    /// Addresses of the network.
    pub name: String,
    /// Network namespace cookie.
    pub netns: u64,
    /// Pod or container that has this network namespace, if its runtime says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Whether all connections are held to the first limits, as larger ones brought a longer queue alone.
    pub bounded: bool,
    /// Transfers with raised limits.
    pub raised_connections: u64,
    /// Transfers held to the first limits.
    pub bounded_connections: u64,
    /// Share of segments that transfers with raised limits sent again.
    pub retransmitted: f64,
    /// Share of them in transfers held to the first limits.
    pub bounded_retransmitted: f64,
    /// Geometric mean of the smoothed RTT over the least, with raised limits.
    pub queue_ratio: f64,
    /// Geometric mean of the smoothed RTT over the least, of transfers held to the first limits.
    pub bounded_queue_ratio: f64,
    /// Ratio of the time of transfers to that at the first limits; `None`: not known yet.
    pub time_ratio: Option<f64>,
    /// Interval of the ratio, 95 %.
    pub time_interval: Option<(f64, f64)>,
}

/// Limits of a network namespace.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct NamespaceBuffers {
    /// Network namespace cookie.
    pub netns: u64,
    /// Pod or container that has this network namespace, if its runtime says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Whether it is left alone, since somebody else has changed a limit.
    pub left: bool,
    /// `net.ipv4.tcp_rmem`.
    pub receive: BufferLimit,
    /// `net.ipv4.tcp_wmem`.
    pub send: BufferLimit,
}

impl NamespaceBuffers {
    /// Limits that the namespace would get.
    pub fn advised_settings(self) -> impl Iterator<Item = AdvisedSetting> {
        let limits = [("tcp_rmem", self.receive), ("tcp_wmem", self.send)];
        limits.into_iter().filter_map(move |(sysctl, limit)| {
            let wanted = bytes_text(limit.wanted_bytes?);
            Some(AdvisedSetting {
                name: self.netns.to_string(),
                netns: self.netns,
                container: self.container.clone(),
                setting: format!("net.ipv4.{sysctl} up to {wanted}"),
                reason: format!(
                    "{} at {}",
                    count_text(limit.connections, "connection"),
                    bytes_text(limit.now_bytes)
                ),
            })
        })
    }
}

/// A limit: the third number of a sysctl.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct BufferLimit {
    /// Limit before the first change, bytes.
    pub first_bytes: u64,
    /// Limit in force, bytes.
    pub now_bytes: u64,
    /// Next limit, bytes; `None`: the limit stays.
    pub wanted_bytes: Option<u64>,
    /// Number of open connections at the limit.
    pub connections: u64,
}
