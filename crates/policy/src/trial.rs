//! Rules with a share of flows, as experiments.

use std::collections::BTreeMap;

use thalweg_units::random::hash_bytes;

use crate::model::{Conditions, Rule};

/// A rule with a share, as an experiment. The flows of its match that draw a larger number are left
/// alone. Rules that differ only in share and settings form a ladder: each is compared with the
/// flows that all of them left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Number of matching flows of 2^32.
    pub share: u32,
    /// The first rule of the ladder, by id.
    pub ladder: u32,
    /// Hash of its name, conditions and settings, and of the ladder's shares. If one of them
    /// changes, it is another experiment.
    pub key: u64,
}

/// The experiments of a policy, by id of their rule.
pub(crate) fn find_trials(rules: &[Rule]) -> Vec<(usize, Trial)> {
    let mut ladders: BTreeMap<String, Vec<(usize, u32)>> = BTreeMap::new();
    for (id, rule) in rules.iter().enumerate() {
        if let Some(share) = rule.conditions.sample {
            ladders
                .entry(condition_key(rule))
                .or_default()
                .push((id, share));
        }
    }
    let mut trials = Vec::new();
    for (condition, steps) in &ladders {
        let shares: Vec<u32> = steps.iter().map(|(_, share)| *share).collect();
        for (id, share) in steps {
            let text = format!("{condition} {shares:?} {}", settings_key(&rules[*id]));
            let trial = Trial {
                share: *share,
                ladder: steps[0].0 as u32,
                key: hash_bytes(text.bytes()),
            };
            trials.push((*id, trial));
        }
    }
    trials
}

/// All conditions but the share.
fn condition_key(rule: &Rule) -> String {
    let conditions = Conditions {
        sample: None,
        ..rule.conditions.clone()
    };
    format!("{} {conditions:?}", rule.never)
}

fn settings_key(rule: &Rule) -> String {
    let settings = rule.actions.iter().map(|action| {
        let (key, stages, value) = (action.key.name, action.stages, &action.value);
        format!(" {key} {stages} {value:?}")
    });
    rule.name.clone() + &settings.collect::<String>()
}
