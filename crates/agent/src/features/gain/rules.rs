//! Rules with a share: flows that a rule took against flows that it left alone. Clusters, intervals
//! and reverts are the learner's, with 5 % for each rule.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use thalweg_bpf_types::raw;
use thalweg_control::policy::{TrialRule, Trials};
use thalweg_gain::{Connection, Group, Part, Scope, Side};
use thalweg_learner::HostKey;
use thalweg_policy::Trial;

use super::durations::{HOUR_NS, LENGTH_MS, REVERTED_MS, seconds};
use super::evaluation::reason;
use super::group_of;
use super::present::{presented, presented_revert};
use super::store::{ChangedGain, KeptGain, Revert};
use crate::comparison::{Against, finding_sentence, found_in};
use crate::overridden::Tally;
use crate::view::{self, GainRule};

/// Most rules with a share that are compared, the first of the policy.
const RULES_MAX: usize = 16;
/// Most rules in memory, with those of earlier policies.
const KEPT_MAX: usize = 4 * RULES_MAX;

/// Index of the row of failures, which counts each ended flow.
const ENDED: usize = 2;

/// State of the rules' comparisons.
#[derive(Debug, Default)]
pub struct Rules {
    policy: Option<Trials>,
    kept: BTreeMap<u64, KeptGain>,
    /// Ended flows that the policy's rules took, by name, since the agent knows the policy.
    taken: BTreeMap<String, Tally>,
}

/// Changes by an evaluation: names of rules, and reasons.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RulesLooked {
    /// Rules that are suspended now.
    pub begun: Vec<(String, Revert)>,
    /// Rules whose suspension ends now.
    pub ended: Vec<String>,
    /// Worse rules that are reported but left in force.
    pub told: Vec<(String, Revert)>,
}

/// The key of an experiment in the store.
pub fn stored(key: u64) -> String {
    format!("{key:016x}")
}

/// Index of a rule in the policy, its name, and its experiment.
type Compared<'t> = (u32, &'t str, Trial);

/// The rules of a policy that are compared.
fn compared(policy: &Trials) -> impl Iterator<Item = Compared<'_>> {
    let known = |(id, rule): (u32, &'_ TrialRule)| rule.trial.map(|trial| (id, trial));
    let ids = (0u32..).zip(&policy.rules);
    ids.filter_map(move |(id, rule)| known((id, rule)).map(|(id, trial)| (id, &*rule.name, trial)))
        .take(RULES_MAX)
}

impl Rules {
    /// The policy whose rules are compared.
    pub fn policy(&self) -> Option<&Trials> {
        self.policy.as_ref()
    }

    /// Keys of a policy's experiments that are not in memory.
    pub fn missing(&self, policy: &Trials) -> Vec<u64> {
        let keys = compared(policy).map(|(_, _, trial)| trial.key);
        keys.filter(|key| !self.kept.contains_key(key)).collect()
    }

    /// Continues with the policy in force, and with the stored state of its rules.
    pub fn adopt(&mut self, policy: Option<Trials>, loaded: BTreeMap<u64, KeptGain>) {
        for (key, kept) in loaded {
            // Another thread may have adopted the same policy meanwhile, and counted.
            self.kept.entry(key).or_insert(kept);
        }
        self.taken.clear();
        self.policy = policy;
        if self.kept.len() > KEPT_MAX {
            let present: BTreeSet<u64> = self.present().map(|(_, _, trial)| trial.key).collect();
            self.kept.retain(|key, _| present.contains(key));
        }
    }

    fn present(&self) -> impl Iterator<Item = Compared<'_>> {
        self.policy.iter().flat_map(compared)
    }

    /// Counts ended flows of the known policy; flows of other policies are ignored.
    pub fn take(&mut self, outcomes: &[raw::thalweg_policy_outcome]) {
        let Some(policy) = &self.policy else { return };
        let rules: Vec<_> = compared(policy).map(|(id, _, trial)| (id, trial)).collect();
        for outcome in outcomes {
            if outcome.generation != policy.number {
                continue;
            }
            let trial_of = |id: u32| policy.rules.get(id as usize).and_then(|rule| rule.trial);
            let Some(met) = trial_of(outcome.trial) else {
                continue;
            };
            let taken_by = trial_of(outcome.rule).filter(|it| it.ladder == met.ladder);
            for (id, trial) in rules.iter().filter(|(_, it)| it.ladder == met.ladder) {
                // Flows that another rule of the ladder took are on neither side.
                if taken_by.is_some() && *id != outcome.rule {
                    continue;
                }
                let Some(kept) = self.kept.get_mut(&trial.key) else {
                    continue;
                };
                let is_overridden = outcome.flags & raw::THALWEG_OUTCOME_OVERRIDDEN != 0;
                if taken_by.is_some() {
                    let name = &policy.rules[*id as usize].name;
                    let taken = self.taken.entry(name.clone());
                    let taken = taken.or_insert_with_key(|name| no_flows(name));
                    taken.all += 1;
                    taken.overridden += u64::from(is_overridden);
                    if is_overridden {
                        kept.ledger.overridden += 1;
                        continue;
                    }
                }
                count(kept, outcome, taken_by.is_none());
            }
        }
    }

    /// Ended flows that each rule took, since this agent knows the policy, and those without its
    /// settings.
    pub fn count_overridden(&self) -> Vec<Tally> {
        self.taken.values().cloned().collect()
    }

    /// Evaluates the comparisons as [`super::Gain::look`] does.
    pub fn look(&mut self, now_ns: u64, now_ms: i64, reverts: bool) -> RulesLooked {
        let mut looked = RulesLooked::default();
        let Some(policy) = &self.policy else {
            return looked;
        };
        for (_, name, trial) in compared(policy) {
            let Some(kept) = self.kept.get_mut(&trial.key) else {
                continue;
            };
            kept.ledger.close_hours(now_ns / HOUR_NS);
            if now_ms - kept.since_ms >= LENGTH_MS {
                begin(kept, now_ms);
            }
            let is_over = |it: &Revert| !reverts || it.until_ms <= now_ms;
            if kept.reverts.iter().any(is_over) {
                kept.reverts.clear();
                begin(kept, now_ms);
                looked.ended.push(name.to_owned());
            }
            if kept.reverts.is_empty()
                && let Some(revert) = worse(kept, now_ms)
            {
                if reverts {
                    kept.reverts.push(revert.clone());
                    looked.begun.push((name.to_owned(), revert));
                } else {
                    looked.told.push((name.to_owned(), revert));
                }
            }
        }
        looked
    }

    /// Ends all suspensions now, also those of rules of earlier policies, which may return. Returns
    /// the names of the rules in the policy.
    pub fn resume(&mut self, now_ms: i64) -> Vec<String> {
        let mut ended = BTreeSet::new();
        for (key, kept) in &mut self.kept {
            if !kept.reverts.is_empty() {
                kept.reverts.clear();
                begin(kept, now_ms);
                ended.insert(*key);
            }
        }
        self.present()
            .filter(|(_, _, trial)| ended.contains(&trial.key))
            .map(|(_, name, _)| name.to_owned())
            .collect()
    }

    /// The rules that are suspended: names, keys, and why; none without `reverts`. A suspension
    /// may have ended while its rule was in no policy, where [`Self::look`] does not see it.
    pub fn suspended(&self, now_ms: i64, reverts: bool) -> Vec<(String, u64, Revert)> {
        let is_on = |revert: &&Revert| reverts && revert.until_ms > now_ms;
        self.present()
            .filter_map(|(_, name, trial)| {
                let kept = self.kept.get(&trial.key)?;
                let revert = kept.reverts.first().filter(is_on)?;
                Some((name.to_owned(), trial.key, revert.clone()))
            })
            .collect()
    }

    /// Takes the changes since the last call, for the store.
    pub(super) fn take_changes(&mut self) -> Vec<ChangedGain> {
        let all = self.kept.iter_mut();
        all.map(|(key, kept)| kept.take_changes(stored(*key)))
            .collect()
    }

    /// State of a comparison, by its key in the store.
    pub(super) fn kept(&mut self, key: &str) -> Option<&mut KeptGain> {
        let mut all = self.kept.iter_mut();
        all.find_map(|(one, kept)| (stored(*one) == key).then_some(kept))
    }

    /// All rules that are compared, without groups.
    pub fn views(&self, now_ms: i64) -> Vec<view::Gain> {
        let present: Vec<_> = self.present().map(|(_, name, _)| name).collect();
        let view = |name: &str| self.view(name, Scope::All, now_ms, 0).ok();
        present.into_iter().filter_map(view).collect()
    }

    /// Flows of each rule that is compared; empty in a dry run.
    pub(super) fn groups(&self) -> Vec<(String, Group)> {
        if self.policy.as_ref().is_none_or(|policy| policy.dry_run) {
            return Vec::new();
        }
        let group = |(_, name, trial): Compared<'_>| {
            let groups = self.kept.get(&trial.key)?.ledger.current_groups();
            let all = groups.get(&(Scope::All, String::new()))?;
            Some((name.to_owned(), all.clone()))
        };
        self.present().filter_map(group).collect()
    }

    /// The comparison of one rule, by the rule's name.
    ///
    /// # Errors
    /// The reason that there is no comparison, in words.
    pub fn view(
        &self,
        name: &str,
        scope: Scope,
        now_ms: i64,
        events_dropped: u64,
    ) -> Result<view::Gain, String> {
        let policy = self.policy.as_ref().ok_or_else(|| {
            format!("rule: found {name:?}, and no policy is in force that this agent knows")
        })?;
        let (_, name, trial) = match compared(policy).find(|it| it.1 == name) {
            Some(found) => found,
            None => return Err(why_not(policy, name)),
        };
        let kept = self.kept.get(&trial.key);
        let kept = kept.ok_or_else(|| format!("rule {name:?} is not known yet; ask again"))?;
        let groups = kept.ledger.current_groups();
        let age_s = seconds(now_ms - kept.since_ms);
        let all = groups.get(&(Scope::All, String::new()));
        let summary = match policy.dry_run {
            true => "A dry run sets nothing, so there is nothing to compare.".to_owned(),
            false => found_in(all, Some(age_s), Against::LeftAlone),
        };
        let reverts = kept.reverts.iter();
        Ok(view::Gain {
            summary,
            age_s,
            left_out: kept.ledger.left_out,
            events_dropped,
            groups: presented(&groups, scope, age_s),
            reverts: reverts.map(|it| presented_revert(it, now_ms)).collect(),
            rule: Some(GainRule {
                policy: policy.policy.clone(),
                name: name.to_owned(),
                share: f64::from(trial.share) / 2f64.powi(32),
                taken: all.map_or(0, |all| all.treated()[ENDED].connections),
                left: all.map_or(0, |all| all.control()[ENDED].connections),
                overridden: kept.ledger.overridden,
            }),
            features: Vec::new(),
        })
    }
}

/// Tally of the ended flows that a rule took.
fn no_flows(rule: &str) -> Tally {
    Tally {
        subject: format!("rule {rule}"),
        overridden: 0,
        all: 0,
        words: |rule, overridden, all| {
            format!(
                "{overridden} of {all} flows that {rule} took ended without its settings (the kernel \
                 refused one, or something replaced it), and are not compared"
            )
        },
    }
}

fn begin(kept: &mut KeptGain, now_ms: i64) {
    kept.ledger.restart_comparisons();
    kept.since_ms = now_ms;
}

fn worse(kept: &KeptGain, now_ms: i64) -> Option<Revert> {
    let groups = kept.ledger.current_groups();
    let all = groups.get(&(Scope::All, String::new()))?;
    let (row, comparison) = reason(all, Scope::All)?;
    Some(Revert {
        arm: None,
        since_ms: now_ms,
        until_ms: now_ms + REVERTED_MS,
        why: finding_sentence(row, &comparison, Against::LeftAlone),
    })
}

fn count(kept: &mut KeptGain, outcome: &raw::thalweg_policy_outcome, left_alone: bool) {
    let remote = IpAddr::V6(Ipv6Addr::from(outcome.remote)).to_canonical();
    let Ok(host) = HostKey::new(outcome.netns, remote, 32, 128) else {
        return;
    };
    let is = |flag: raw::thalweg_policy_outcome_flag| outcome.flags & flag != 0;
    let began_ns = outcome.time_ns.saturating_sub(outcome.wall_us * 1000);
    let port = match is(raw::THALWEG_OUTCOME_PASSIVE) {
        true => outcome.local_port,
        false => outcome.remote_port,
    };
    let part = Part {
        hour: began_ns / HOUR_NS,
        tag: host.tag(),
        side: match left_alone {
            true => Side::Control,
            false => Side::Treated,
        },
        port: port as u16,
    };
    let connection = Connection {
        bytes: outcome.bytes,
        busy_us: outcome.busy_us,
        segs_out: outcome.segs_out,
        retrans: outcome.retrans,
        srtt_us: outcome.srtt_us,
        min_rtt_us: outcome.min_rtt_us,
        handshake_rtt_us: outcome.handshake_rtt_us,
        failed: Some(is(raw::THALWEG_OUTCOME_FAILED)),
        held: None,
    };
    kept.ledger.reach_hour(outcome.time_ns / HOUR_NS);
    kept.ledger
        .add_connection(part, &connection, || group_of(remote));
}

/// Reason that a rule is not compared.
fn why_not(policy: &Trials, name: &str) -> String {
    let of = format!("policy {:?}", policy.policy);
    match policy.rules.iter().find(|rule| rule.name == name) {
        Some(rule) if rule.trial.is_some() => format!(
            "rule {name:?}: only the first {RULES_MAX} rules of {of} with a share are compared"
        ),
        Some(_) => format!(
            "rule {name:?} of {of} has no share: it takes every flow of its match, so nothing is \
             left to compare with; give it a `sample`"
        ),
        None => {
            let names: Vec<_> = compared(policy).map(|it| it.1).collect();
            let expected = match names.is_empty() {
                true => "none of its rules has a share (`sample`)".to_owned(),
                false => format!("expected one with a share: {}", names.join(", ")),
            };
            format!("rule: found {name:?}, which {of} does not have; {expected}")
        }
    }
}

#[cfg(test)]
mod tests;
