//! Effects of the policy in force, rule by rule.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use libbpf_rs::{MapCore, MapHandle};
use serde::{Deserialize, Serialize};
use thalweg_bpf_objects::names::policy::maps;
use thalweg_bpf_types::{from_bytes, raw};
use thalweg_policy::{RuleSummary, catalogue};

use super::existing;
use super::history::History;
use super::pins::Pins;
use super::tables::LATER_STAGE_MASK;
use super::trials;
use crate::batch;
use crate::error::{Error, Result};

/// Key of failures of no setting: callbacks that the later stages need.
const LATER_STAGES: &str = "later stages";
/// Likewise, callbacks at the ends of flows that a share took or left.
const SHARE: &str = "sample";
/// The kernel's name of the option that requests callbacks.
const CALLBACKS: &str = "TCP_BPF_SOCK_OPS_CB_FLAGS";
/// Error of callbacks that are not as the policy requested them.
const SWITCHED_OFF: &str = "switched off by another program";

/// The policy in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Name of the policy.
    pub name: String,
    /// Number of the policy: counts up with each application.
    pub number: u32,
    /// The file it came from.
    pub file: String,
    /// Time when it came into force, ms since 1970.
    pub applied_ms: i64,
    /// Matches are counted, and nothing is set.
    pub dry_run: bool,
    /// Kernel memory of its maps and of the shared maps, bytes.
    pub map_bytes: u64,
    /// Connections and events that could not be recorded, reported or counted.
    pub missed: Missed,
    /// Departures from the applied state, a sentence each; empty where nobody has looked.
    #[serde(default)]
    pub faults: Vec<String>,
    /// Part of the policy that cannot be looked at, and why; `None` where there is none, or nobody has
    /// looked.
    #[serde(default)]
    pub unseen: Option<String>,
    /// Rules, in the order of the file.
    pub rules: Vec<RuleReport>,
}

/// Overflows of the kernel program's tables since the policy was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// Connections whose record was evicted during the handshake, because too many others were in
    /// theirs. If the handshake completes, the rule is looked up again.
    pub handshakes: u64,
    /// Events of `statistics` that found the ring full.
    pub statistics: u64,
    /// Failures missing from the rules' `failures`, though their rules count them: only 4096 kinds
    /// are distinguished.
    pub failures: u64,
    /// Ends of flows of rules with a share that found the ring full: no agent read them.
    #[serde(default)]
    pub outcomes: u64,
}

/// A rule of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RuleReport {
    /// Name of the rule.
    pub name: String,
    /// Whether the rule is a `never` rule.
    pub never: bool,
    /// Whether the agent has suspended it: no flow gets it, because those that its share took did
    /// worse than those that it left alone.
    #[serde(default)]
    pub suspended: bool,
    /// Flows that got this rule.
    pub matched: u64,
    /// Operations that succeeded.
    pub done: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Answers given to the kernel.
    pub asked: u64,
    /// Outcome for connections that were open before the policy; `None` if they were not visited.
    pub existing: Option<ExistingReport>,
    /// Settings that failed.
    pub failures: Vec<Failure>,
}

/// Connections that were open before the policy and got a rule of it, and the outcome. The rule's
/// other counters exclude them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExistingReport {
    /// Connections.
    pub matched: u64,
    /// Operations that changed a value.
    pub done: u64,
    /// Operations whose value the connection already had.
    pub unchanged: u64,
    /// Operations left out because the application made its own choice.
    pub left: u64,
    /// Operations that failed; they are among `failures`, at stage `existing`.
    pub failed: u64,
}

/// Operations that failed in the same way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Failure {
    /// Key in the file.
    pub key: String,
    /// The kernel's name of the option.
    pub option: String,
    /// Stage.
    pub stage: String,
    /// Name of the error, such as EINVAL, or what happened.
    pub error: String,
    /// Number of failures.
    pub count: u64,
}

impl Report {
    /// The kernel's counters of the policy in force; `None` if there is none.
    ///
    /// # Errors
    /// Pins that cannot be read.
    pub fn read_counters(pin: &Path, history: &History) -> Result<Option<Self>> {
        let pins = Pins::at(pin);
        let Some(head) = pins.running_head()? else {
            return Ok(None);
        };
        let Some(entry) = history.in_force(pin)? else {
            return Ok(None);
        };
        // Names of rules and operations, if the history has the policy.
        let compiled = history.compile_entry(head.generation).ok();
        let about = compiled.as_ref().map_or(&[][..], |known| &known.about);
        let counters = pins.open_map(head.generation, maps::COUNTERS)?;
        let missed = pins.open_map(head.generation, maps::MISSED)?;
        let mut failures = read_failures(&pins, head.generation, about)?;
        let existing = pins.existing_path(head.generation);
        let existing = match existing.exists() {
            true => Some(MapHandle::from_pinned_path(existing)?),
            false => None,
        };
        let suspended = trials::suspended_rules(&pins, head.generation, compiled.as_deref())?;
        let rules = (0..counters.max_entries())
            .map(|id| {
                let count: raw::thalweg_policy_counters =
                    batch::read_entry(&counters, id, "the counters of a policy")?;
                let known = about.get(id as usize);
                Ok(RuleReport {
                    name: known.map_or_else(|| format!("rule {id}"), |rule| rule.name.clone()),
                    never: known.is_some_and(|rule| rule.never),
                    suspended: suspended.contains(&id),
                    matched: count.matched,
                    done: count.done,
                    failed: count.failed,
                    asked: count.asked,
                    existing: existing
                        .as_ref()
                        .map(|map| existing_of(map, id))
                        .transpose()?,
                    failures: failures.remove(&id).unwrap_or_default(),
                })
            })
            .collect::<Result<_>>()?;
        Ok(Some(Self {
            name: entry.name,
            number: head.generation,
            file: entry.file.display().to_string(),
            applied_ms: entry.applied_ms,
            dry_run: head.flags & raw::THALWEG_POLICY_DRY_RUN != 0,
            map_bytes: pins.memory_bytes(),
            missed: missed_of(&missed)?,
            faults: Vec::new(),
            unseen: None,
            rules,
        }))
    }

    /// As [`Report::read_counters`], and looks at every open connection with later stages or of a share: those
    /// whose callbacks another program switched off count as failures.
    ///
    /// # Errors
    /// As [`Report::read_counters`].
    pub fn read_and_scan(pin: &Path, history: &History) -> Result<Option<Self>> {
        let Some(mut report) = Self::read_counters(pin, history)? else {
            return Ok(None);
        };
        let pins = Pins::at(pin);
        let Some(head) = pins.running_head()? else {
            return Ok(None);
        };
        let needs_callbacks =
            head.stages & LATER_STAGE_MASK != 0 || head.flags & raw::THALWEG_POLICY_TRIALS != 0;
        if head.generation != report.number || !needs_callbacks {
            return Ok(Some(report));
        }
        let rules = u32::try_from(report.rules.len()).map_err(Error::other)?;
        let silenced = match existing::silenced_by_rule(&pins, &head, rules)? {
            Ok(silenced) => silenced,
            Err(why) => {
                report.unseen = Some(format!(
                    "callbacks that another program switches off are not seen: {why}"
                ));
                return Ok(Some(report));
            }
        };
        for (rule, silenced) in report.rules.iter_mut().zip(silenced) {
            for (key, count) in [(LATER_STAGES, silenced.later), (SHARE, silenced.ends)] {
                if count == 0 {
                    continue;
                }
                rule.failed += count;
                rule.failures.push(Failure {
                    key: key.to_owned(),
                    option: CALLBACKS.to_owned(),
                    stage: catalogue::Stage::Established.name().to_owned(),
                    error: SWITCHED_OFF.to_owned(),
                    count,
                });
            }
        }
        Ok(Some(report))
    }

    /// The open connections whose callbacks another program switched off, in words; `None` where
    /// [`Report::read_and_scan`] found none.
    pub fn silenced_text(&self) -> Option<String> {
        let of_rule = |rule: &RuleReport, key: &str| {
            let mut failures = rule.failures.iter();
            let found = failures.find(|it| it.error == SWITCHED_OFF && it.key == key)?;
            Some(format!("{} with rule {:?}", found.count, rule.name))
        };
        let of = |key: &str, what: &str| {
            let found = self.rules.iter().filter_map(|rule| of_rule(rule, key));
            let found: Vec<String> = found.collect();
            (!found.is_empty()).then(|| format!("{what}: {}", found.join(", ")))
        };
        let parts: Vec<String> = [
            of(LATER_STAGES, "later stages are over"),
            of(
                SHARE,
                "ends are not seen, so that the share's comparison misses them",
            ),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!parts.is_empty()).then(|| {
            format!(
                "policy {}: another sockops program switched off callbacks of open connections, \
                 whose {}",
                self.name,
                parts.join("; whose ")
            )
        })
    }
}

pub(super) fn missed_of(map: &MapHandle) -> Result<Missed> {
    let count: raw::thalweg_policy_missed =
        batch::read_entry(map, 0, "the counters of what was missed")?;
    Ok(Missed {
        handshakes: count.handshakes,
        statistics: count.statistics,
        failures: count.failures,
        outcomes: count.outcomes,
    })
}

fn existing_of(map: &MapHandle, id: u32) -> Result<ExistingReport> {
    let count: raw::thalweg_policy_reached =
        batch::read_entry(map, id, "the counters of open connections")?;
    Ok(ExistingReport {
        matched: count.matched,
        done: count.done,
        unchanged: count.unchanged,
        left: count.left,
        failed: count.failed,
    })
}

/// Failures that were already reported.
#[derive(Debug, Default)]
pub struct FailureLog {
    policy: u32,
    told: BTreeSet<(String, Failure)>,
}

impl FailureLog {
    /// A line for each kind of failure that was not reported before.
    pub fn new_failures(&mut self, report: &Report) -> Vec<String> {
        if self.policy != report.number {
            *self = Self {
                policy: report.number,
                ..Self::default()
            };
        }
        let mut lines = Vec::new();
        for rule in &report.rules {
            for failure in &rule.failures {
                let kind = Failure {
                    count: 0,
                    ..failure.clone()
                };
                if self.told.insert((rule.name.clone(), kind)) {
                    lines.push(format!(
                        "rule {:?}: {} ({}) at {} fails: {}; `thalweg policy show` counts",
                        rule.name, failure.key, failure.option, failure.stage, failure.error
                    ));
                }
            }
        }
        lines
    }
}

fn read_failures(
    pins: &Pins,
    generation: u32,
    about: &[RuleSummary],
) -> Result<BTreeMap<u32, Vec<Failure>>> {
    let map = MapHandle::from_pinned_path(pins.shared_map_path(maps::FAILURES))?;
    let mut found: BTreeMap<u32, Vec<Failure>> = BTreeMap::new();
    batch::visit_entries(&map, |key, count| -> Result<()> {
        let Some(failure) = from_bytes::<raw::thalweg_policy_failure>(key) else {
            return Ok(());
        };
        if failure.generation != generation {
            return Ok(());
        }
        let key = about
            .get(failure.rule as usize)
            .and_then(|rule| rule.ops.get(usize::from(failure.op)));
        let (key, option) = match key {
            Some(key) => (key.name.to_owned(), key.option),
            None if u32::from(failure.op) == raw::THALWEG_POLICY_CALLBACKS => {
                (LATER_STAGES.to_owned(), CALLBACKS)
            }
            None => (format!("operation {}", failure.op), ""),
        };
        let stage = catalogue::Stage::ALL.get(usize::from(failure.stage));
        let stage = match stage {
            Some(stage) => stage.name(),
            None if u32::from(failure.stage) == raw::THALWEG_POLICY_EXISTING => "existing",
            None => "?",
        };
        found.entry(failure.rule).or_default().push(Failure {
            key,
            option: option.to_owned(),
            stage: stage.to_owned(),
            error: errno_name(failure.error),
            count: count.try_into().map(u64::from_ne_bytes).unwrap_or_default(),
        });
        Ok(())
    })?;
    found.values_mut().for_each(|list| list.sort());
    Ok(found)
}

/// The name of a negative errno, including the kernel's own numbers beyond those of user space.
fn errno_name(error: i32) -> String {
    /// include/linux/errno.h
    const ENOTSUPP: i32 = 524;
    if error == -ENOTSUPP {
        return "ENOTSUPP".to_owned();
    }
    match nix::errno::Errno::from_raw(-error) {
        nix::errno::Errno::UnknownErrno => format!("error {}", -error),
        known => format!("{known:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::errno_name;

    #[test]
    fn errors_have_names() {
        assert_eq!(errno_name(-22), "EINVAL");
        assert_eq!(errno_name(-524), "ENOTSUPP");
        assert_eq!(errno_name(-9999), "error 9999");
    }
}
