//! Congestion controls that the kernel refuses. The agent tries a refused one again after a while,
//! which does not show that the kernel has it.

use std::collections::BTreeMap;

use thalweg_bpf_types::raw;

use crate::kernel::{ArmTable, error_text};

/// Arms that the kernel refused and that no connection has got since, each with its negative errno.
#[derive(Debug, Default)]
pub(crate) struct RefusedArms(BTreeMap<String, i32>);

impl RefusedArms {
    /// Takes over the table's refusals, and drops arms that are no longer offered. An arm that the
    /// kernel did not have and now offers without a refusal has come back.
    pub fn note_table(&mut self, table: &ArmTable) {
        let present = || table.entries().filter(|(_, arm)| arm.present);
        self.0.retain(|name, errno| {
            present().any(|(_, arm)| {
                arm.name == *name && (arm.refused_errno != 0 || *errno != -libc::ENOENT)
            })
        });
        for (_, arm) in present().filter(|(_, arm)| arm.refused_errno != 0) {
            self.0.insert(arm.name.clone(), arm.refused_errno);
        }
    }

    /// Drops arms that connections got by these decisions.
    pub fn note_decisions(&mut self, events: &[&raw::thalweg_event], table: &ArmTable) {
        if self.0.is_empty() {
            return;
        }
        for event in events {
            let is_decision = u32::from(event.kind) != raw::THALWEG_EVENT_CLOSE;
            if is_decision
                && event.error == 0
                && let Some(name) = table.name(event.arm.into())
            {
                self.0.remove(name);
            }
        }
    }

    /// All refusals in words; `None`: there are none.
    pub fn in_words(&self) -> Option<String> {
        let of = |(name, errno): (&String, &i32)| format!("{name} ({})", error_text(*errno));
        let refused: Vec<String> = self.0.iter().map(of).collect();
        (!refused.is_empty()).then(|| format!("the kernel refuses {}", refused.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: &str = "the kernel refuses bbr (not supported (os error 524))";
    /// The kernel has the congestion control, and does not give it.
    const ENOTSUPP: i32 = 524;

    fn decision(arm: u8, error: i32) -> raw::thalweg_event {
        raw::thalweg_event {
            kind: raw::THALWEG_EVENT_DECISION as u8,
            arm,
            chosen_arm: 1,
            error,
            ..Default::default()
        }
    }

    #[test]
    fn refused_arm_is_told_until_a_connection_gets_it() {
        let table = ArmTable::of(&["cubic", "bbr"]);
        let mut refused = RefusedArms::default();
        refused.note_table(&table);
        assert_eq!(refused.in_words(), None);
        let refusing = table.clone().with_refusal("bbr", -ENOTSUPP);
        refused.note_table(&refusing);
        assert_eq!(refused.in_words().as_deref(), Some(REFUSED));
        // It may be tried again, and another arm works.
        refused.note_table(&table);
        refused.note_decisions(&[&decision(0, 0)], &table);
        assert_eq!(refused.in_words().as_deref(), Some(REFUSED));
        // It is refused again: the connection keeps what it has.
        refused.note_decisions(&[&decision(0, -ENOTSUPP)], &table);
        assert_eq!(refused.in_words().as_deref(), Some(REFUSED));
        refused.note_decisions(&[&decision(1, 0)], &table);
        assert_eq!(refused.in_words(), None);
    }

    #[test]
    fn refused_arm_that_is_no_longer_offered_is_no_problem() {
        let table = ArmTable::of(&["cubic", "bbr"]);
        let mut refused = RefusedArms::default();
        refused.note_table(&table.with_refusal("bbr", -ENOTSUPP));
        refused.note_table(&ArmTable::of(&["cubic"]));
        assert_eq!(refused.in_words(), None);
    }

    #[test]
    fn refused_arm_that_was_gone_and_came_back_is_no_problem() {
        let table = ArmTable::of(&["cubic", "bbr"]);
        let refusing = table.clone().with_refusal("bbr", -libc::ENOENT);
        let mut refused = RefusedArms::default();
        refused.note_table(&refusing);
        refused.note_table(&refusing);
        assert!(refused.in_words().is_some());
        // The kernel lists it, and no connection is needed.
        refused.note_table(&table);
        assert_eq!(refused.in_words(), None);
    }
}
