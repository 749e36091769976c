//! Types of the feature's responses.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use thalweg_learner::HostKey;
use thalweg_terminal::output::count_text;

use super::ladder::Ladder;
use super::network::{Harm, Network};
use crate::view::AdvisedSetting;

/// Gauges: name, help, key in [`TimersFigures`].
pub const GAUGES: [(&str, &str, &str); 3] = [
    (
        "thalweg_timers_networks",
        "Remote networks whose round trips and losses are known.",
        "networks",
    ),
    (
        "thalweg_timers_set",
        "Remote networks whose connections get other timers than the kernel's.",
        "set",
    ),
    (
        "thalweg_timers_lost_reports",
        "Connections that timers learned nothing from, as the ring was full.",
        "lost_reports",
    ),
];

/// Key `timers` of `GET /v1/status`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct TimersFigures {
    /// Known networks.
    pub networks: usize,
    /// Networks with other timers than the kernel's.
    pub set: usize,
    /// Connections whose report the ring had no room for.
    pub lost_reports: u64,
}

/// `GET /v1/timers`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Timers {
    /// Whether timers are learned.
    pub enabled: bool,
    /// Whether they are set: not in a dry run, nor under advice.
    pub sets: bool,
    /// Known networks, by name.
    pub networks: Vec<NetworkTimers>,
}

/// Timers of a network.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct NetworkTimers {
    /// Addresses of the network.
    pub name: String,
    /// Network namespace cookie.
    pub netns: u64,
    /// Pod or container that has this network namespace, if its runtime says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Least retransmission timeout of connections that recover, µs; `None`: the kernel's.
    pub floor_us: Option<u32>,
    /// First timeout of a SYN, µs; `None`: the kernel's.
    pub syn_us: Option<u32>,
    /// Longest round trips, µs.
    pub rtt_us: u32,
    /// Connections that are over.
    pub connections: u32,
    /// Connections that waited for a timeout, and short ones that sent something again, a SYN, too.
    #[serde(default)]
    pub timed_out: u32,
    /// Connections with the present floor, and those of the control group.
    pub drawn: u32,
    /// Connections of the control group.
    pub control: u32,
    /// Share of segments that connections with the floor sent again.
    pub retransmitted: f64,
    /// Share of them that the control group sent again.
    pub control_retransmitted: f64,
    /// Share of segments that connections with the floor sent again for nothing.
    pub spurious: f64,
    /// Ratio of the time of transfers to the control group's; `None`: not known yet.
    pub time_ratio: Option<f64>,
    /// Interval of the ratio, 95 %.
    pub time_interval: Option<(f64, f64)>,
    /// Reason that the floor was taken back; `None`: there was none.
    pub harm: Option<String>,
    /// Connections whose least timeout is that of a route, a policy, an application or a sysctl.
    #[serde(default)]
    pub others: u32,
    /// The last of these timeouts, µs; `None`: there was none, or a policy's that is as the kernel's.
    pub others_us: Option<u32>,
}

impl NetworkTimers {
    /// View of a network.
    pub fn new(
        key: &HostKey,
        network: &Network,
        ladder: &Ladder,
        containers: &HashMap<u64, String>,
    ) -> Self {
        let timers = network.timers(ladder);
        let (connections, control, drawn) = network.counts();
        let [(control_retransmitted, _), (retransmitted, spurious)] = network.losses();
        let effect = network.effect();
        let harm = network.harm().map(|harm| match harm {
            Harm::Spurious => "spurious retransmissions",
            Harm::Retransmitted => "more retransmissions",
            Harm::Slower => "slower transfers",
        });
        Self {
            name: key.to_string(),
            netns: key.netns,
            container: containers.get(&key.netns).cloned(),
            floor_us: Some(timers.floor_us).filter(|us| *us != 0),
            syn_us: Some(timers.syn_us).filter(|us| *us != 0),
            rtt_us: network.longest_rtt_us() as u32,
            connections,
            timed_out: network.timed_out(),
            drawn: drawn as u32,
            control: control as u32,
            retransmitted,
            control_retransmitted,
            spurious,
            time_ratio: effect.map(|it| it.ratio()),
            time_interval: effect.map(|it| it.interval()),
            harm: harm.map(str::to_owned),
            others: network.others,
            others_us: Some(network.others_us).filter(|us| *us != 0),
        }
    }

    /// Timers that connections to the network would get; `None`: none has waited, or the kernel's stay.
    pub fn advised_settings(self) -> Option<AdvisedSetting> {
        let part = |name: &str, us: Option<u32>| us.map(|us| format!("{name} {} ms", us / 1000));
        let parts = [part("floor", self.floor_us), part("SYN", self.syn_us)];
        let setting = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let has_waited = self.timed_out > 0 && !setting.is_empty();
        has_waited.then(|| AdvisedSetting {
            name: self.name,
            netns: self.netns,
            container: self.container,
            setting,
            reason: format!(
                "{} of {} had a timeout, or were short and retransmitted",
                self.timed_out,
                count_text(u64::from(self.connections), "connection")
            ),
        })
    }
}
