//! Differences between two policies, rule by rule, whatever the layout of the files.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde::Serialize;

use crate::catalogue::{Stage, stages_in_mask};
use crate::model::{Policy, Rule};

/// Rules that were added, removed, moved or changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Rules that only the second policy has, in its order.
    pub added: Vec<String>,
    /// Rules that only the first policy has, in its order.
    pub removed: Vec<String>,
    /// Rules of both that differ, in the order of the second.
    pub changed: Vec<ChangedRule>,
    /// Rules that moved past another. Of each pair, the ones that moved the least are named.
    pub moved: Vec<String>,
}

/// Changes of one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedRule {
    /// Name of the rule.
    pub name: String,
    /// The changed parts.
    pub changes: Vec<Change>,
}

/// One value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `never`, `match.KEY`, or `KEY at STAGE`.
    pub what: String,
    /// Value in the first policy, as TOML; none if absent.
    pub before: Option<String>,
    /// Value in the second policy.
    pub after: Option<String>,
}

impl Difference {
    /// Differences from one policy to another. Rules are matched by name; descriptions do not
    /// count.
    pub fn between(before: &Policy, after: &Policy) -> Self {
        let names = |policy: &Policy| -> Vec<String> {
            policy.rules.iter().map(|rule| rule.name.clone()).collect()
        };
        let old: HashMap<&str, &Rule> = by_name(before);
        let new: HashMap<&str, &Rule> = by_name(after);
        let changed = after.rules.iter().filter_map(|rule| {
            let changes = rule_changes(old.get(rule.name.as_str())?, rule);
            (!changes.is_empty()).then(|| ChangedRule {
                name: rule.name.clone(),
                changes,
            })
        });
        Self {
            added: names_missing_in(names(after), &old),
            removed: names_missing_in(names(before), &new),
            changed: changed.collect(),
            moved: moved_rules(before, after),
        }
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn by_name(policy: &Policy) -> HashMap<&str, &Rule> {
    let rules = policy.rules.iter();
    rules.map(|rule| (rule.name.as_str(), rule)).collect()
}

fn names_missing_in(names: Vec<String>, other: &HashMap<&str, &Rule>) -> Vec<String> {
    let mut names = names;
    names.retain(|name| !other.contains_key(name.as_str()));
    names
}

fn rule_changes(before: &Rule, after: &Rule) -> Vec<Change> {
    let (old, new) = (rule_values(before), rule_values(after));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    keys.into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| Change {
            what: key.clone(),
            before: old.get(key).cloned(),
            after: new.get(key).cloned(),
        })
        .collect()
}

/// All conditions and settings of a rule.
fn rule_values(rule: &Rule) -> HashMap<String, String> {
    let mut values = HashMap::new();
    if rule.never {
        values.insert("never".to_owned(), "true".to_owned());
    }
    if rule.overrides {
        values.insert("override".to_owned(), "true".to_owned());
    }
    for (condition, text) in rule.conditions.condition_texts() {
        values.insert(format!("match.{}", condition.name()), text);
    }
    for action in &rule.actions {
        let at: Vec<&str> = stages_in_mask(action.stages).map(Stage::name).collect();
        let what = format!("{} at {}", action.key.name, at.join(", "));
        values.insert(what, action.value_text());
    }
    values
}

/// Rules of both that are not in the longest run with unchanged order.
fn moved_rules(before: &Policy, after: &Policy) -> Vec<String> {
    let places: HashMap<&str, usize> = before
        .rules
        .iter()
        .enumerate()
        .map(|(place, rule)| (rule.name.as_str(), place))
        .collect();
    let common: Vec<(usize, &str)> = after
        .rules
        .iter()
        .filter_map(|rule| Some((*places.get(rule.name.as_str())?, rule.name.as_str())))
        .collect();
    // Longest increasing run: `ends[n]` is the end of the best run of n + 1.
    let mut ends: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = Vec::with_capacity(common.len());
    for (index, (place, _)) in common.iter().enumerate() {
        let length = ends.partition_point(|&end| common[end].0 < *place);
        previous.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        if length == ends.len() {
            ends.push(index);
        } else {
            ends[length] = index;
        }
    }
    let mut kept = HashSet::new();
    let mut at = ends.last().copied();
    while let Some(index) = at {
        kept.insert(index);
        at = previous[index];
    }
    let rest = common.iter().enumerate();
    rest.filter(|(index, _)| !kept.contains(index))
        .map(|(_, (_, name))| (*name).to_owned())
        .collect()
}
