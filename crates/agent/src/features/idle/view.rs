//! Types of the feature's responses.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use thalweg_learner::HostKey;

use super::network::{Harm, Network};

/// Gauges: name, help, key in [`IdleFigures`].
pub const GAUGES: [(&str, &str, &str); 3] = [
    (
        "thalweg_idle_networks",
        "Remote networks with exchanges after idle times.",
        "networks",
    ),
    (
        "thalweg_idle_kept",
        "Remote networks whose connections keep their windows over idle times.",
        "kept",
    ),
    (
        "thalweg_idle_lost_reports",
        "Reports of exchanges after idle times for which the ring was full.",
        "lost_reports",
    ),
];

/// Key `idle` of `GET /v1/status`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct IdleFigures {
    /// Networks with exchanges after idle times.
    pub networks: usize,
    /// Networks whose connections keep their windows.
    pub kept: usize,
    /// Reports that the ring had no room for.
    pub lost_reports: u64,
}

/// `GET /v1/idle`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Idle {
    /// Whether exchanges after idle times are measured: not in a dry run.
    pub enabled: bool,
    /// Networks, by name.
    pub networks: Vec<NetworkIdle>,
}

/// Exchanges of a network's connections after idle times.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct NetworkIdle {
    /// Addresses of the network.
    pub name: String,
    /// Network namespace cookie.
    pub netns: u64,
    /// Pod or container that has this network namespace, if its runtime says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Whether windows are kept.
    pub keeps: bool,
    /// Smoothed RTT, µs.
    pub rtt_us: u32,
    /// Exchanges with the window kept.
    pub kept: u64,
    /// Exchanges after the kernel's restart.
    pub restarted: u64,
    /// Share of segments that exchanges with the window kept sent again.
    pub retransmitted: f64,
    /// Share of them after the kernel's restart.
    pub restarted_retransmitted: f64,
    /// Ratio of the time of exchanges to that after the kernel's restart; `None`: not known yet.
    pub time_ratio: Option<f64>,
    /// Interval of the ratio, 95 %.
    pub time_interval: Option<(f64, f64)>,
    /// Reason that windows are restarted again; `None`: there was none.
    pub harm: Option<String>,
}

impl NetworkIdle {
    /// View of a network.
    pub fn new(key: &HostKey, network: &Network, containers: &HashMap<u64, String>) -> Self {
        let [restarted, kept] = network.exchanges();
        let [restarted_retransmitted, retransmitted] = network.retransmitted();
        let effect = network.effect();
        let harm = network.harm.map(|harm| match harm {
            Harm::Retransmitted => "more retransmissions",
            Harm::Slower => "slower exchanges",
        });
        Self {
            name: key.to_string(),
            netns: key.netns,
            container: containers.get(&key.netns).cloned(),
            keeps: network.keeps,
            rtt_us: network.rtt_us,
            kept: kept as u64,
            restarted: restarted as u64,
            retransmitted,
            restarted_retransmitted,
            time_ratio: effect.map(|it| it.ratio()),
            time_interval: effect.map(|it| it.interval()),
            harm: harm.map(str::to_owned),
        }
    }
}
