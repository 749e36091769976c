//! Host records in the form of the API.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use thalweg_control::system;
use thalweg_learner::{
    Host, HostKey, Level, ONE_Q16, Params, can_decide, halve_evidence, propensities_q16, window,
};

use crate::events::level;
use crate::kernel::{ArmTable, Kernel, error_text};
use crate::named::Named;
use crate::view;

/// Converts a record to its view.
pub struct Presenter<'a> {
    /// The present arm table.
    pub arms: &'a ArmTable,
    /// Parameters of the learner.
    pub params: &'a Params,
    /// The default of the agent's own network namespace, if it is in the table.
    pub system_arm: Option<usize>,
    /// The default of each known network namespace, by cookie.
    pub defaults: HashMap<u64, Option<usize>>,
    /// Names of containers, by the cookie of their network namespace.
    pub containers: Arc<HashMap<u64, String>>,
    /// Networks that the operator names.
    pub named: &'a Named,
}

const BITS: f64 = ONE_Q16 as f64;

impl<'a> Presenter<'a> {
    /// A presenter of records under this arm table.
    pub fn new(
        kernel: &'a Kernel,
        arms: &'a ArmTable,
        containers: Arc<HashMap<u64, String>>,
    ) -> Self {
        let system_arm = system::default_cc().ok().and_then(|name| arms.index(&name));
        Self {
            arms,
            params: kernel.params(),
            system_arm,
            // Without the defaults, every host is shown as if it were in the agent's own namespace.
            defaults: kernel.defaults().unwrap_or_default(),
            containers,
            named: &kernel.setup().named,
        }
    }

    /// View of a network's initial windows; `allowed` is the operator's mask.
    pub fn windows(&self, key: &HostKey, record: &Host, allowed: u16) -> view::WindowNetwork {
        let now_ns = system::monotonic_ns();
        let mut next = record.clone();
        halve_evidence(&mut next, self.params, now_ns);
        let own = Some(window::OWN);
        let decides = can_decide(&next, own);
        let mut shares = [0; thalweg_learner::MAX_ARMS];
        shares[window::OWN] = thalweg_learner::ONE_Q16;
        if decides {
            let permitted = window::permitted_windows(&next, allowed);
            shares = propensities_q16(&next, own, permitted, self.params, now_ns);
        }
        let best = (0..window::COUNT).max_by_key(|&arm| shares[arm]);
        let known = (0..window::COUNT).filter(|&arm| {
            let state = &record.arms[arm];
            state.chosen > 0 || state.scored > 0 || state.weight_q16 > 0
        });
        view::WindowNetwork {
            name: self.network_name(key),
            level: level(key.level as u32)
                .trim_start_matches("window-")
                .to_string(),
            netns: key.netns,
            container: self.containers.get(&key.netns).cloned(),
            decides,
            decided: record.arms.iter().map(|arm| arm.chosen).sum(),
            scored: record.scored,
            idle_s: now_ns.saturating_sub(record.seen_ns) / 1_000_000_000,
            largest: window::arm_segments(record.step as usize),
            best: window::arm_segments(best.unwrap_or(window::OWN)),
            windows: known
                .map(|arm| {
                    let of = network_arm(record, arm, own, "", shares[arm]);
                    let state = &record.arms[arm];
                    view::WindowArm {
                        segments: window::arm_segments(arm),
                        difference_bits: of.difference_bits,
                        error_bits: of.error_bits,
                        evidence: of.evidence,
                        own_evidence: of.own_evidence,
                        retransmitted: f64::from(state.retrans) / f64::from(state.segs.max(1)),
                        scored: of.scored,
                        count: of.count,
                        next_probability: of.next_probability,
                    }
                })
                .collect(),
        }
    }

    /// Name of a group, for the API.
    pub fn network_name(&self, key: &HostKey) -> String {
        match key.level.own_level() {
            Level::Host | Level::Prefix | Level::WindowPrefix => key.to_string(),
            // The record of a name that has left the table waits for its return.
            Level::Named => match self.named.name(key.network_number()) {
                Some(name) => name.to_owned(),
                None => format!("not in the table ({:016x})", key.network_number()),
            },
            Level::Service | Level::WindowService => service_name(key),
            Level::Namespace | Level::WindowNamespace => "all".to_owned(),
            // Records of the fleet have the name of the agent's own level.
            Level::FleetPrefix | Level::FleetNamed => key.to_string(),
        }
    }

    /// Probabilities for the next connection, which is counted before the decision.
    pub fn shares(
        &self,
        host: &Host,
        system_arm: Option<usize>,
    ) -> [u32; thalweg_learner::MAX_ARMS] {
        let mut next = host.clone();
        next.connections = next.connections.saturating_add(1);
        let now_ns = system::monotonic_ns();
        halve_evidence(&mut next, self.params, now_ns);
        let allowed = self.arms.allowed(self.params.mode, false);
        propensities_q16(&next, system_arm, allowed, self.params, now_ns)
    }

    /// The system's arm for connections to a host.
    pub fn system_arm(&self, key: &HostKey) -> Option<usize> {
        let known = self.defaults.get(&key.netns).copied();
        known.unwrap_or(self.system_arm)
    }

    /// View of the arm table.
    pub fn arm_list(&self) -> Vec<view::Arm> {
        self.arms
            .entries()
            .map(|(index, entry)| view::Arm {
                index: index as u8,
                name: entry.name.clone(),
                present: entry.present,
                needs_ecn: entry.needs_ecn,
                system_default: Some(index) == self.system_arm,
                refused: (entry.refused_errno != 0).then(|| error_text(entry.refused_errno)),
                refusals: entry.refusals,
            })
            .collect()
    }
}

/// Name of a service, for the API.
fn service_name(key: &HostKey) -> String {
    let [.., high, low, class, accepted] = key.addr;
    let port = u16::from_be_bytes([high, low]);
    let side = if accepted != 0 { "accepted" } else { "opened" };
    let rtt = match class {
        0 => "below 0.5 ms",
        1 => "0.5 to 2 ms",
        2 => "2 to 8 ms",
        3 => "8 to 16 ms",
        4 => "16 to 33 ms",
        5 => "33 to 66 ms",
        6 => "66 to 131 ms",
        _ => "above 131 ms",
    };
    format!("port {port}, {side}, {rtt}")
}

/// View of an arm of a group's record.
pub fn network_arm(
    group: &Host,
    index: usize,
    system_arm: Option<usize>,
    name: &str,
    share: u32,
) -> view::NetworkArm {
    let arm = &group.arms[index];
    let bits = |value: u64| value as f64 / BITS;
    let system = system_arm
        .map(|system| group.arms[system])
        .unwrap_or_default();
    let difference = |own: u64, system: u64| bits(own) - bits(system);
    // A Gaussian's standard deviation over its mean absolute one.
    let deviation = 1.2533 * bits(u64::from(arm.deviation_q16.max(system.deviation_q16)));
    let chance = |weight_q16: u32| 1.0 / bits(u64::from(weight_q16.max(1)));
    let is_system = Some(index) == system_arm;
    view::NetworkArm {
        arm: name.to_string(),
        difference_bits: match arm.weight_q16 {
            0 => 0.0,
            _ => difference(arm.value, system.value),
        },
        error_bits: match (is_system, arm.weight_q16) {
            (true, _) | (_, 0) => 0.0,
            (false, weight_q16) => {
                deviation * (chance(weight_q16) + chance(system.weight_q16)).sqrt()
            }
        },
        own_difference_bits: (arm.own_weight_q16 > 0 && system.own_weight_q16 > 0)
            .then(|| difference(arm.own_q16.into(), system.own_q16.into())),
        evidence: bits(arm.weight_q16.into()),
        own_evidence: bits(arm.own_weight_q16.into()),
        scored: arm.scored,
        count: arm.chosen,
        harmful: is_in(group.harmful, index, system_arm),
        next_probability: f64::from(share) / BITS,
    }
}

/// Whether an arm is in a mask of judgements against the system's arm, which is never judged.
pub fn is_in(mask: u16, index: usize, system_arm: Option<usize>) -> bool {
    mask & (1 << index) != 0 && Some(index) != system_arm
}

/// Keeps the `limit` groups with most measurements, the narrowest first, then by address; the
/// fleet's record follows the agent's own.
pub fn keep_measured(groups: &mut Vec<(HostKey, Host)>, limit: Option<usize>) {
    let place = |key: &HostKey| {
        let (level, own_level) = (key.level, key.level.own_level());
        (own_level, key.addr, key.prefix_len, key.netns, level)
    };
    let limit = limit.unwrap_or(usize::MAX);
    if limit < groups.len() {
        groups.sort_by_key(|(key, record)| (Reverse(record.scored), place(key)));
        groups.truncate(limit);
    }
    groups.sort_by_key(|(key, _)| place(key));
}
