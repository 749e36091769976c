//! Host records in the form of the API.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use thalweg_control::system;
use thalweg_learner::{
    Host, HostKey, Level, Mode, ONE_Q16, Params, best_arm, can_decide, halve_evidence, judged_q16,
    propensities_q16,
};

use crate::events::{level, metric};
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

    /// View of a host record, with the estimates of its arms.
    pub fn host(&self, key: &HostKey, host: &Host) -> view::Host {
        let system_arm = self.system_arm(key);
        let shares = self.shares(host, system_arm);
        let arms = self
            .arms
            .entries()
            .filter(|(index, _)| {
                let arm = &host.arms[*index];
                arm.chosen > 0 || arm.scored > 0 || arm.weight_q16 > 0 || shares[*index] > 0
            })
            .map(|(index, entry)| view::HostArm {
                harmful: is_in(host.harmful, index, system_arm),
                unsteady: is_in(host.unsteady, index, system_arm),
                ..self.arm(host, index, &entry.name, shares[index])
            })
            .collect();
        view::Host {
            address: key.to_string(),
            netns: key.netns,
            container: self.containers.get(&key.netns).cloned(),
            connections: host.connections,
            scored: host.scored,
            switched: host.switched,
            min_rtt_us: host.min_rtt_us,
            base_rtt_us: host.base_rtt().unwrap_or(0),
            queue_bits: f64::from(host.queue_q16) / BITS,
            max_rate_bytes_per_s: self.bytes_per_second(host.max_rate),
            idle_s: system::monotonic_ns().saturating_sub(host.seen_ns) / 1_000_000_000,
            best: self
                .best(host, system_arm)
                .map(|(_, name)| name.to_string()),
            arms,
        }
    }

    /// View of a network's record. `hosts` is the number of its host records, if they were counted.
    pub fn network(&self, key: &HostKey, group: &Host, hosts: Option<u64>) -> view::Network {
        let system_arm = self.system_arm(key);
        let decides = can_decide(group, system_arm);
        let shares = match decides {
            true => self.shares(group, system_arm),
            false => Default::default(),
        };
        let likeliest =
            (0..shares.len()).max_by_key(|&index| (shares[index], Some(index) == system_arm));
        let best = likeliest
            .filter(|_| decides)
            .and_then(|index| self.arms.name(index));
        let known = |index: &usize| {
            let arm = &group.arms[*index];
            arm.chosen > 0 || arm.scored > 0 || arm.weight_q16 > 0
        };
        let arms = self.arms.entries().filter(|(index, _)| known(index));
        view::Network {
            name: self.network_name(key),
            level: level(key.level as u32).to_string(),
            agents: key.level.is_fleet().then_some(group.step_scored),
            netns: key.netns,
            container: self.containers.get(&key.netns).cloned(),
            hosts,
            decides,
            decided: group.arms.iter().map(|arm| arm.chosen).sum(),
            scored: group.scored,
            idle_s: system::monotonic_ns().saturating_sub(group.seen_ns) / 1_000_000_000,
            best: best.map(str::to_string),
            arms: arms
                .map(|(index, entry)| {
                    network_arm(group, index, system_arm, &entry.name, shares[index])
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
    fn shares(&self, host: &Host, system_arm: Option<usize>) -> [u32; thalweg_learner::MAX_ARMS] {
        let mut next = host.clone();
        next.connections = next.connections.saturating_add(1);
        let now_ns = system::monotonic_ns();
        halve_evidence(&mut next, self.params, now_ns);
        let allowed = self.arms.allowed(self.params.mode, false);
        propensities_q16(&next, system_arm, allowed, self.params, now_ns)
    }

    /// The system's arm for connections to a host.
    fn system_arm(&self, key: &HostKey) -> Option<usize> {
        let known = self.defaults.get(&key.netns).copied();
        known.unwrap_or(self.system_arm)
    }

    fn arm(&self, host: &Host, index: usize, name: &str, share: u32) -> view::HostArm {
        let arm = &host.arms[index];
        let thalweg = self.params.mode == Mode::Thalweg && arm.weight_q16 > 0;
        view::HostArm {
            arm: name.to_string(),
            metric: metric(self.params.mode, arm.value),
            count: arm.chosen,
            greedy: arm.greedy,
            min_rtt_us: arm.min_rtt_us,
            max_rate: match self.params.mode {
                Mode::Classic => arm.max_rate,
                Mode::Thalweg => arm.max_rate / 1_000_000,
            },
            scored: arm.scored,
            evidence: f64::from(arm.weight_q16) / BITS,
            cost_bits: if thalweg {
                arm.value as f64 / BITS
            } else {
                0.0
            },
            deviation_bits: f64::from(arm.deviation_q16) / BITS,
            rate_bytes_per_s: if thalweg {
                (f64::from(arm.log_rate_q16) / BITS).exp2()
            } else {
                0.0
            },
            srtt_us: arm.srtt_us,
            retransmitted: f64::from(arm.retrans) / f64::from(arm.segs.max(1)),
            harmful: false,
            unsteady: false,
            next_probability: f64::from(share) / BITS,
        }
    }

    fn bytes_per_second(&self, rate: u64) -> u64 {
        match self.params.mode {
            Mode::Classic => rate.saturating_mul(1_000_000),
            Mode::Thalweg => rate,
        }
    }

    /// The best arm, with its name.
    fn best(&self, host: &Host, system_arm: Option<usize>) -> Option<(usize, &str)> {
        let allowed = self.arms.allowed(self.params.mode, false);
        let index = best_arm(host, system_arm, allowed, self.params)?;
        Some((index, self.arms.name(index)?))
    }

    /// Cost of the best arm, in the unit of the mode; `None`: not measured.
    pub fn least_cost(&self, key: &HostKey, host: &Host) -> Option<u64> {
        let (index, _) = self.best(host, self.system_arm(key))?;
        Some(host.arms[index].value)
    }

    /// Sentence on the arm of the next connection, and the reason.
    pub fn summary(&self, key: &HostKey, host: &Host) -> String {
        let system_arm = self.system_arm(key);
        let shares = self.shares(host, system_arm);
        let percent = |index: usize| f64::from(shares[index]) / BITS * 100.0;
        let Some((index, best)) = self.best(host, system_arm) else {
            return format!(
                "Nothing measured yet ({} connections): the system default stays.",
                host.connections
            );
        };
        if self.params.mode == Mode::Classic {
            return format!(
                "{best} has the lowest cost of those measured; a connection runs it with {:.1} %.",
                percent(index)
            );
        }
        let judged = |index| judged_q16(host, index, system_arm);
        let second = self
            .arms
            .entries()
            .filter(|(i, entry)| *i != index && entry.present && host.arms[*i].weight_q16 > 0)
            .min_by_key(|(i, _)| judged(*i));
        let comparison = match second {
            None => "no other arm has been measured yet".to_string(),
            Some((i, entry)) => {
                let gap = judged(i).saturating_sub(judged(index)) as f64 / BITS;
                format!(
                    "{gap:.2} bits (a factor of {:.1}) ahead of {}",
                    gap.exp2(),
                    entry.name
                )
            }
        };
        let harmful: Vec<&str> = self
            .arms
            .entries()
            .filter(|(i, entry)| entry.present && is_in(host.harmful, *i, system_arm))
            .map(|(_, entry)| entry.name.as_str())
            .collect();
        let harm = if harmful.is_empty() {
            String::new()
        } else {
            format!(
                " Not chosen, for what it gains others lose: {}.",
                harmful.join(", ")
            )
        };
        let caution = if Some(index) == system_arm || system_arm.is_none() {
            ""
        } else {
            ", after the handicap that protects the system default"
        };
        let inherited =
            |(i, _): &(usize, _)| host.arms[*i].weight_q16 > 0 && host.arms[*i].scored == 0;
        let told = match host.step > 0 && self.arms.entries().any(|it| inherited(&it)) {
            true => {
                " Arms that were never scored here are known from its networks, and those from other agents."
            }
            false => "",
        };
        format!(
            "{best} costs least: {comparison}{caution}. The next connection runs it with {:.1} %, \
             the rest goes to checking the others.{harm}{told}",
            percent(index)
        )
    }

    /// One sentence on the arm of the first connection to a host without a record. `networks` are
    /// the host's networks, the narrowest first, with all services where one may decide.
    pub fn stranger(&self, networks: &[view::Network]) -> String {
        let unknown = "No record of its own, and its networks know too little: the system default \
                       stays.";
        // As programs do: read others only where the namespace knows enough, or the fleet reported.
        let may_know =
            |it: &view::Network| it.decides && (it.level == "namespace" || it.agents.is_some());
        if !networks.iter().any(may_know) {
            return unknown.to_owned();
        }
        let Some(first) = networks.iter().find(|network| network.decides) else {
            return unknown.to_owned();
        };
        let choice = |network: &view::Network| {
            let best = network.best.as_deref().unwrap_or_default();
            let arm = network.arms.iter().find(|arm| arm.arm == best);
            let share = arm.map_or(0.0, |arm| arm.next_probability);
            format!("{best} with {:.1} %", 100.0 * share)
        };
        if let Some(agents) = first.agents {
            return format!(
                "No record of its own. What {agents} other agents told of {} ({}), not measured here, \
                 would decide: {}.",
                first.name,
                first.level,
                choice(first)
            );
        }
        match first.level.as_str() {
            "service" => {
                let all = networks.last().unwrap_or(first);
                format!(
                    "No record of its own. The service of its port and round-trip time would \
                     decide, or where that is not known all hosts: {}.",
                    choice(all)
                )
            }
            "namespace" => format!(
                "No record of its own. What is known of all hosts would decide: {}.",
                choice(first)
            ),
            level => format!(
                "No record of its own. What is known of {} ({level}) would decide: {}.",
                first.name,
                choice(first)
            ),
        }
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
fn is_in(mask: u16, index: usize, system_arm: Option<usize>) -> bool {
    mask & (1 << index) != 0 && Some(index) != system_arm
}
