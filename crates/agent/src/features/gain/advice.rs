//! Advice: the best arm, by trials on the share that the operator allows, and by connections that
//! differ by themselves. Nothing else is set.

use std::collections::BTreeMap;

use thalweg_bpf_types::raw;
use thalweg_gain::{Arm, Finding, Group, Ledger, Scope, Side, advise_group};

use super::durations::{HOUR_NS, LENGTH_MS};
use super::event::is_own;
use super::store::{ChangedGain, KeptGain};
use crate::kernel::ArmTable;
use crate::view;

mod present;

pub use present::{Question, Source, of_learner};

/// State of an agent that sets nothing but trials.
#[derive(Debug)]
pub struct Advice {
    kept: KeptGain,
    /// The machine's default, which the others are compared with.
    system: Arm,
    /// Arms whose trials have ended as they take more time, with the finding.
    ended: BTreeMap<Arm, String>,
}

impl Advice {
    /// Key of the state in the store. Each default has its own, as its comparisons are other ones.
    pub fn key(system: &str) -> String {
        format!("advise:{system}")
    }

    /// Continues from the stored state of a default.
    pub fn new(kept: KeptGain, system: &str) -> Self {
        Self {
            kept,
            system: Arm::new(system).unwrap_or(Arm::UNKNOWN),
            ended: BTreeMap::new(),
        }
    }

    /// The default that the others are compared with.
    pub fn system(&self) -> &str {
        self.system.name()
    }

    /// Names of the arms whose trials have ended.
    pub fn ended(&self) -> impl Iterator<Item = &str> {
        self.ended.keys().map(Arm::name)
    }

    /// The answer of `GET /v1/advise`.
    pub(super) fn view(&self, question: &Question) -> view::Advice {
        present::view(&self.kept, self.system, self.ended().collect(), question)
    }

    pub(super) fn ledger(&mut self) -> &mut Ledger {
        &mut self.kept.ledger
    }

    /// Side of an event's connection; `None`: it is in no comparison.
    pub(super) fn side(&self, event: &raw::thalweg_event, arms: &ArmTable) -> Option<Side> {
        let is = |flag: raw::thalweg_conn_flag| u32::from(event.flags) & flag != 0;
        let arm = |index: u8| arms.name(index.into()).and_then(Arm::new);
        let itself = |index: u8| Some(Side::Itself(arm(index).unwrap_or(Arm::UNKNOWN)));
        // A network namespace may have a default of its own.
        let is_usual = arm(event.system_arm) == Some(self.system);
        match () {
            () if is_own(event) => itself(event.arm),
            // Trials count as drawn, whether or not the kernel obeyed.
            () if u32::from(event.reason) == raw::THALWEG_REASON_DRAWN => {
                arm(event.chosen_arm).filter(|_| is_usual).map(Side::Drawn)
            }
            () if !(is(raw::THALWEG_CONN_CONTROL) || is(raw::THALWEG_CONN_DRY_RUN)) => {
                // The choice of a learner before this agent.
                None
            }
            () if is_usual => Some(Side::Control),
            () => itself(event.system_arm),
        }
    }

    /// Evaluates the comparisons, and ends trials of worse arms. `now_ms` is on the store's clock,
    /// `now_ns` on that of the draws. Returns the arms that ended now, with the finding.
    pub fn look(&mut self, now_ns: u64, now_ms: i64) -> Vec<(String, String)> {
        self.kept.ledger.close_hours(now_ns / HOUR_NS);
        if now_ms - self.kept.since_ms >= LENGTH_MS {
            self.kept.ledger.restart_comparisons();
            self.kept.since_ms = now_ms;
        }
        let groups = self.kept.ledger.current_groups();
        let all = groups.get(&(Scope::All, String::new()));
        let worse = all.map_or_else(BTreeMap::new, |all| self.worse(all));
        let before = std::mem::replace(&mut self.ended, worse);
        let new = self
            .ended
            .iter()
            .filter(|(arm, _)| !before.contains_key(arm));
        new.map(|(arm, why)| (arm.name().to_owned(), why.clone()))
            .collect()
    }

    fn worse(&self, all: &Group) -> BTreeMap<Arm, String> {
        let choices = advise_group(all, Scope::All, self.system).choices;
        let tried = choices.iter().filter_map(|choice| match choice.side {
            Side::Drawn(arm) => Some((arm, choice)),
            _ => None,
        });
        tried
            .filter(|(_, choice)| matches!(choice.found, Finding::Worse | Finding::AtAPrice(_)))
            .map(|(arm, choice)| (arm, present::finding_sentence(choice, self.system())))
            .collect()
    }

    /// Takes the changes since the last call, for the store.
    pub(super) fn take_changes(&mut self) -> ChangedGain {
        let key = Self::key(self.system());
        self.kept.take_changes(key)
    }

    /// Whether the store has this state under a key.
    pub(super) fn is_of(&self, key: &str) -> bool {
        Self::key(self.system()) == key
    }

    /// The state as the store keeps it.
    pub(super) fn kept(&mut self) -> &mut KeptGain {
        &mut self.kept
    }
}
