//! Host records in the form of the API.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use thalweg_control::system;
use thalweg_learner::{Host, HostKey, Level, ONE_Q16, Params, halve_evidence, propensities_q16};
use thalweg_units::printable;

use crate::kernel::{ArmTable, HostBatch, Kernel, error_text};
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

/// Query of a list of networks.
#[derive(serde::Deserialize)]
pub struct NetworkQuery {
    /// Number of networks, those with most measurements; `None`: all.
    pub limit: Option<usize>,
}

/// Keeps the `limit` records with most measurements, the narrowest first, then by address.
pub fn keep_networks(records: &mut HostBatch, limit: Option<usize>) {
    let limit = limit.unwrap_or(usize::MAX);
    if limit < records.len() {
        records.sort_by_key(|(key, record)| (Reverse(record.scored), place(key)));
        records.truncate(limit);
    }
    records.sort_by_key(|(key, _)| place(key));
}

/// Sort key: narrow networks first, then by address; the fleet's record follows the agent's own.
fn place(key: &HostKey) -> impl Ord + use<> {
    (
        key.level.own_level(),
        key.addr,
        key.prefix_len,
        key.netns,
        key.level,
    )
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

/// View of an arm of a network; `share` is its probability, in units of 2^-16.
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

/// Name with that of its container, for a terminal.
pub fn with_container(name: &str, container: Option<&str>) -> String {
    match container {
        Some(container) => format!("{name} ({})", printable(container)),
        None => name.to_owned(),
    }
}

/// Ratio with its interval of 95 %, for a terminal.
pub fn ratio_cell(ratio: Option<f64>, interval: Option<(f64, f64)>) -> String {
    match (ratio, interval) {
        (Some(ratio), Some((low, high))) => format!("{ratio:.2} ({low:.2} to {high:.2})"),
        _ => "-".to_owned(),
    }
}
