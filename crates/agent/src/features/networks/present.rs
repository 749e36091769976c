//! Records of networks in the form of the API.

use thalweg_control::system;
use thalweg_learner::{Host, HostKey, can_decide};

use super::view;
use crate::events::level;
use crate::present::{Presenter, network_arm};

impl Presenter<'_> {
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
}

/// One sentence on the arm of the first connection to a host without a record; `None`: its networks
/// know too little. `networks` are the host's networks, the narrowest first, with all services where
/// one may decide.
pub fn first_choice(networks: &[view::Network]) -> Option<String> {
    // As programs do: read others only where the namespace knows enough, or the fleet reported.
    let may_know =
        |it: &view::Network| it.decides && (it.level == "namespace" || it.agents.is_some());
    if !networks.iter().any(may_know) {
        return None;
    }
    let first = networks.iter().find(|network| network.decides)?;
    let choice = |network: &view::Network| {
        let best = network.best.as_deref().unwrap_or_default();
        let arm = network.arms.iter().find(|arm| arm.arm == best);
        let share = arm.map_or(0.0, |arm| arm.next_probability);
        format!("{best} with {:.1} %", 100.0 * share)
    };
    if let Some(agents) = first.agents {
        return Some(format!(
            "No record of its own. What {agents} other agents told of {} ({}), not measured here, \
             would decide: {}.",
            first.name,
            first.level,
            choice(first)
        ));
    }
    Some(match first.level.as_str() {
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
    })
}
