//! Policies of the fleet as this agent knows them: which of them is to be in force, and how far each is.
//!
//! Nothing here touches the kernel. Of several labels with a policy that named first comes first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thalweg_fleet::Name;
use thalweg_fleet::wire::policy::ALL_PPM;
use thalweg_fleet::wire::{Policy, Progress, Stage};

/// Why a policy waits that is a canary elsewhere.
const OTHERS_FIRST: &str = "other agents come first";
/// Reasons of a removal: before the policy is out of the kernel, and after that.
const REMOVAL_WAITS: &str = "removal waits";
const REMOVED: &str = "removed";

/// A policy of a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    pub number: u64,
    pub text: String,
}

/// A label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    /// The last policy that was obeyed: older ones are not.
    number: u64,
    /// How far that one is.
    stage: Stage,
    /// Why it is no further.
    reason: String,
    /// How far it is once `next` is in force: still waiting if other agents take it first.
    aim: Stage,
    /// The policy to be put in force next: of an earlier number if other agents take the last one first.
    next: Option<Wanted>,
    /// What was in force last …
    last: Option<Wanted>,
    /// … and is.
    is_present: bool,
    /// The last policy for this agent was the removal.
    is_removed: bool,
}

impl Held {
    /// `next` is in force.
    fn reach_aim(&mut self) {
        self.stage = self.aim;
        if self.aim != Stage::Waiting {
            self.reason.clear();
        } else if !self.reason.starts_with(OTHERS_FIRST) {
            self.reason = OTHERS_FIRST.to_owned();
        }
    }
}

/// What is known of all labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wishes {
    labels: BTreeMap<Name, Held>,
    /// Somebody chose another policy on this machine: it stays until the fleet's next one.
    is_local: bool,
    /// Numbers of labels that the agent had: should it have them again, no older policy is obeyed.
    #[serde(default)]
    former: BTreeMap<Name, u64>,
    /// The fleet's policy that was in the kernel at the last poll. It tells which one is there where
    /// the history is lost.
    #[serde(default)]
    present: Option<Present>,
}

/// A policy of the fleet: label and number.
pub type Which = (Name, u64);

/// A policy of the fleet in the kernel, and its number in the history of policies.
pub type Present = (Which, u32);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Nothing,
    /// Put it in force.
    Apply(Name, Wanted),
    /// It is in force already, which was not noted.
    Note(Name),
    /// Remove the policy of the fleet that is in force.
    Remove,
    /// Nothing: somebody replaced it on this machine.
    Leave(Name),
}

impl Wishes {
    /// Forgets labels that the agent no longer has, but for their numbers.
    pub fn keep(&mut self, labels: &[Name]) {
        let held = std::mem::take(&mut self.labels).into_iter();
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            held.partition(|(label, _)| labels.contains(label));
        self.labels = kept;
        let gone = gone.into_iter().map(|(label, held)| (label, held.number));
        self.former.extend(gone);
    }

    /// Numbers of the policies that were obeyed.
    pub fn numbers(&self) -> BTreeMap<Name, u64> {
        let mut numbers = self.former.clone();
        let held = self.labels.iter();
        numbers.extend(held.map(|(label, held)| (label.clone(), held.number)));
        numbers
    }

    /// How far they are.
    pub fn progress(&self) -> Vec<Progress> {
        let progress = |(label, held): (&Name, &Held)| Progress {
            label: label.clone(),
            number: held.number,
            stage: held.stage,
            reason: held.reason.clone(),
        };
        self.labels.iter().map(progress).collect()
    }

    /// Takes a new policy, which `check` has to find good.
    pub fn take(
        &mut self,
        agent: &Name,
        policy: Policy,
        check: impl Fn(&str) -> Result<(), String>,
    ) {
        let is_mine = policy.is_for(agent);
        let aim = match policy.canary_ppm {
            _ if !is_mine => Stage::Waiting,
            ALL_PPM => Stage::InForce,
            _ => Stage::Canary,
        };
        let held = self.labels.entry(policy.label).or_insert(Held {
            number: 0,
            stage: Stage::Waiting,
            reason: String::new(),
            aim,
            next: None,
            last: None,
            is_present: false,
            is_removed: false,
        });
        held.number = policy.number;
        held.reason.clear();
        held.aim = aim;
        if !is_mine {
            // What was for this agent before is still to be done.
            held.stage = Stage::Waiting;
            let share = f64::from(policy.canary_ppm) / f64::from(ALL_PPM / 100);
            held.reason = format!("{OTHERS_FIRST}, {share} % of them");
            return;
        }
        held.next = None;
        held.is_removed = policy.text.is_empty();
        if policy.text.is_empty() {
            held.stage = Stage::Waiting;
            held.reason = REMOVAL_WAITS.to_owned();
            (held.last, held.is_present) = (None, false);
            self.is_local = false;
            return;
        }
        if let Err(why) = check(&policy.text) {
            held.stage = Stage::Refused;
            held.reason = why;
            return;
        }
        let last = held.last.as_ref();
        let is_same = held.is_present && last.is_some_and(|last| last.text == policy.text);
        if is_same && !self.is_local {
            // Now for all.
            held.stage = aim;
            return;
        }
        held.stage = Stage::Waiting;
        held.next = Some(Wanted {
            number: policy.number,
            text: policy.text,
        });
        self.is_local = false;
    }

    /// What is to be done; `order` is that of the labels, `present` what the kernel has of the fleet.
    pub fn act(&mut self, order: &[Name], present: Option<&Which>) -> Act {
        let wanted = |label: &&Name| {
            let held = self.labels.get(*label);
            held.is_some_and(|held| held.next.is_some() || held.last.is_some())
        };
        if self.is_local {
            return Act::Nothing;
        }
        let Some(label) = order.iter().find(wanted) else {
            if self.takes_away(order, present) {
                return Act::Remove;
            }
            return Act::Nothing;
        };
        let is_present = |wanted: &Wanted| present == Some(&(label.clone(), wanted.number));
        let held = &self.labels[label];
        match (&held.next, &held.last) {
            (Some(next), _) if is_present(next) => Act::Note(label.clone()),
            (Some(next), _) => Act::Apply(label.clone(), next.clone()),
            (None, Some(last)) if is_present(last) => {
                self.others_wait(label);
                Act::Nothing
            }
            (None, Some(_)) if held.is_present => Act::Leave(label.clone()),
            (None, Some(last)) => Act::Apply(label.clone(), last.clone()),
            (None, None) => Act::Nothing,
        }
    }

    /// Whether the policy in the kernel is to go, be there another one in its place or not. A policy of
    /// a label of which nothing is known stays: the file may have been lost.
    pub fn takes_away(&self, order: &[Name], present: Option<&Which>) -> bool {
        present.is_some_and(|(label, _)| {
            !order.contains(label) || self.labels.get(label).is_some_and(|it| it.is_removed)
        })
    }

    /// Notes which policy of the fleet is in the kernel. Of a removed label with none there, the removal
    /// is carried out.
    pub fn note_present(&mut self, present: Option<Present>) {
        for (label, held) in &mut self.labels {
            let is_out = present.as_ref().is_none_or(|((of, _), _)| of != label);
            if held.is_removed && held.aim != Stage::Waiting && is_out {
                held.stage = held.aim;
                held.reason = REMOVED.to_owned();
            }
        }
        // Where the file was damaged nothing is known, and it stays as it is.
        self.present = present.filter(|((label, _), _)| self.labels.contains_key(label));
    }

    /// The fleet's policy that was noted in the kernel last, if it had this number in the history.
    pub fn present_as(&self, number: u32) -> Option<Present> {
        self.present.clone().filter(|(_, noted)| *noted == number)
    }

    /// Those of other labels wait until there is none of this one.
    fn others_wait(&mut self, label: &Name) {
        let others = self.labels.iter_mut().filter(|(of, _)| *of != label);
        for (_, held) in others {
            let is_ready = matches!(held.stage, Stage::InForce | Stage::Canary);
            if held.next.is_some() || (is_ready && held.last.is_some()) {
                held.next = held.next.take().or_else(|| held.last.clone());
                held.stage = Stage::Waiting;
                held.reason = format!("that of label {label} comes first");
            }
            held.is_present = false;
        }
    }

    /// A label's policy is in force.
    pub fn applied(&mut self, label: &Name) {
        if let Some(held) = self.labels.get_mut(label) {
            if let Some(next) = held.next.take() {
                held.last = Some(next);
                held.reach_aim();
            }
            held.is_present = true;
        }
        self.others_wait(label);
    }

    /// The kernel refused it, and has what it had.
    pub fn refused(&mut self, label: &Name, why: String) {
        if let Some(held) = self.labels.get_mut(label) {
            (held.stage, held.reason) = match &held.next {
                // The newest is a canary for others, of which that says nothing.
                Some(next) if next.number != held.number => (
                    Stage::Waiting,
                    format!("policy {} is refused: {why}", next.number),
                ),
                _ => (Stage::Refused, why),
            };
        }
    }

    /// Somebody replaced it on this machine.
    pub fn left(&mut self, label: &Name, why: String) {
        self.is_local = true;
        if let Some(held) = self.labels.get_mut(label) {
            (held.stage, held.reason) = (Stage::RolledBack, why);
            (held.last, held.is_present) = (None, false);
        }
    }

    /// A label's policy was taken back; `now` is what is in force instead, if that is of the fleet, and
    /// `is_local` whether it is of this machine.
    pub fn taken_back(
        &mut self,
        label: &Name,
        why: String,
        now: Option<(Which, String)>,
        is_local: bool,
    ) {
        if let Some(held) = self.labels.get_mut(label) {
            (held.stage, held.reason) = (Stage::RolledBack, why);
            (held.last, held.is_present) = (None, false);
        }
        self.is_local = is_local;
        let Some(((of, number), text)) = now else {
            return;
        };
        if let Some(held) = self.labels.get_mut(&of) {
            if of != *label && held.next.take().is_some() {
                held.reach_aim();
            }
            held.last = Some(Wanted { number, text });
            held.is_present = true;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use super::*;
    use thalweg_fleet::wire::policy::canary_turn;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn policy(label: &str, number: u64, canary_ppm: u32, text: &str) -> Policy {
        Policy {
            label: name(label),
            number,
            time_s: 0,
            canary_ppm,
            text: text.to_owned(),
        }
    }

    fn take(wishes: &mut Wishes, policy: Policy) {
        wishes.take(&name("web1"), policy, |text| match text {
            "bad" => Err("bad policy".to_owned()),
            _ => Ok(()),
        });
    }

    /// Does what is to be done, as a kernel without faults would.
    fn run(wishes: &mut Wishes, present: &mut Option<Which>) -> Act {
        let order = [name("web"), name("all")];
        let act = wishes.act(&order, present.as_ref());
        match &act {
            Act::Nothing => {}
            Act::Apply(label, wanted) => {
                wishes.applied(label);
                *present = Some((label.clone(), wanted.number));
            }
            Act::Note(label) => wishes.applied(label),
            Act::Remove => *present = None,
            Act::Leave(label) => wishes.left(label, "replaced".to_owned()),
        }
        wishes.note_present(present.clone().map(|which| (which, 1)));
        act
    }

    fn stage(wishes: &Wishes, label: &str) -> (u64, Stage) {
        let all = wishes.progress();
        let found = all.iter().find(|it| it.label.as_str() == label).unwrap();
        (found.number, found.stage)
    }

    #[test]
    fn a_canary_waits_elsewhere_and_is_in_force_for_all_later() {
        let mine = canary_turn(&name("web1"), &name("all"));
        let (mut wishes, mut present) = (Wishes::default(), None);
        take(&mut wishes, policy("all", 1, ALL_PPM, "a"));
        assert!(matches!(run(&mut wishes, &mut present), Act::Apply(..)));
        // Those before this agent.
        take(&mut wishes, policy("all", 2, mine, "b"));
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        assert_eq!(stage(&wishes, "all"), (2, Stage::Waiting));
        assert_eq!(present, Some((name("all"), 1)));
        take(&mut wishes, policy("all", 3, mine + 1, "b"));
        run(&mut wishes, &mut present);
        assert_eq!(stage(&wishes, "all"), (3, Stage::Canary));
        // The same for all is in force already.
        take(&mut wishes, policy("all", 4, ALL_PPM, "b"));
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        assert_eq!(stage(&wishes, "all"), (4, Stage::InForce));
        assert_eq!(present, Some((name("all"), 3)));
        assert_eq!(wishes.numbers()[&name("all")], 4);
        take(&mut wishes, policy("all", 5, ALL_PPM, ""));
        assert_eq!(run(&mut wishes, &mut present), Act::Remove);
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
    }

    #[test]
    fn removal_waits_until_the_policy_is_out_of_the_kernel() {
        let (mut wishes, mut present) = (Wishes::default(), None);
        let told = |wishes: &Wishes| {
            let progress = wishes.progress().remove(0);
            (progress.stage, progress.reason)
        };
        take(&mut wishes, policy("all", 1, ALL_PPM, "a"));
        run(&mut wishes, &mut present);
        let order = [name("all")];
        assert!(!wishes.takes_away(&order, present.as_ref()));
        take(&mut wishes, policy("all", 2, ALL_PPM, ""));
        assert!(wishes.takes_away(&order, present.as_ref()));
        // It cannot be removed yet.
        wishes.note_present(present.clone().map(|which| (which, 1)));
        let waits = (Stage::Waiting, REMOVAL_WAITS.to_owned());
        assert_eq!(told(&wishes), waits);
        assert_eq!(run(&mut wishes, &mut present), Act::Remove);
        assert_eq!(told(&wishes), (Stage::InForce, REMOVED.to_owned()));
        // Another label's policy in its place is as good.
        take(&mut wishes, policy("all", 3, ALL_PPM, "a"));
        run(&mut wishes, &mut present);
        take(&mut wishes, policy("all", 4, ALL_PPM, ""));
        assert_eq!(told(&wishes), waits);
        wishes.note_present(Some(((name("web"), 1), 7)));
        assert_eq!(told(&wishes), (Stage::InForce, REMOVED.to_owned()));
    }

    #[test]
    fn policy_without_history_is_known_by_its_noted_number() {
        let (mut wishes, mut present) = (Wishes::default(), None);
        take(&mut wishes, policy("all", 5, ALL_PPM, "a"));
        run(&mut wishes, &mut present);
        // As after a restart of the agent.
        let text = serde_json::to_string(&wishes).unwrap();
        let wishes: Wishes = serde_json::from_str(&text).unwrap();
        assert_eq!(wishes.present_as(1), Some(((name("all"), 5), 1)));
        assert_eq!(wishes.present_as(2), None);
    }

    #[test]
    fn canary_for_others_after_a_removal_for_all_keeps_the_removal() {
        let mine = canary_turn(&name("web1"), &name("all"));
        let (mut wishes, mut present) = (Wishes::default(), None);
        take(&mut wishes, policy("all", 1, ALL_PPM, "a"));
        run(&mut wishes, &mut present);
        take(&mut wishes, policy("all", 2, ALL_PPM, ""));
        take(&mut wishes, policy("all", 3, mine, "b"));
        assert_eq!(run(&mut wishes, &mut present), Act::Remove);
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        assert_eq!(stage(&wishes, "all"), (3, Stage::Waiting));
    }

    #[test]
    fn canary_for_others_after_a_policy_for_all_applies_the_policy() {
        let mine = canary_turn(&name("web1"), &name("all"));
        let (mut wishes, mut present) = (Wishes::default(), None);
        take(&mut wishes, policy("all", 1, ALL_PPM, "a"));
        run(&mut wishes, &mut present);
        take(&mut wishes, policy("all", 2, ALL_PPM, "b"));
        take(&mut wishes, policy("all", 3, mine, "c"));
        let second = Wanted {
            number: 2,
            text: "b".to_owned(),
        };
        let act = run(&mut wishes, &mut present);
        assert_eq!(act, Act::Apply(name("all"), second));
        // In force is the second; the third still waits, and says why.
        assert_eq!(stage(&wishes, "all"), (3, Stage::Waiting));
        let reason = wishes.progress()[0].reason.clone();
        assert!(reason.starts_with(OTHERS_FIRST), "{reason}");
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        take(&mut wishes, policy("all", 4, ALL_PPM, "c"));
        assert!(matches!(run(&mut wishes, &mut present), Act::Apply(..)));
        assert_eq!(stage(&wishes, "all"), (4, Stage::InForce));
    }

    #[test]
    fn the_label_named_first_comes_first() {
        let (mut wishes, mut present) = (Wishes::default(), None);
        take(&mut wishes, policy("web", 7, ALL_PPM, "w"));
        take(&mut wishes, policy("all", 1, ALL_PPM, "a"));
        run(&mut wishes, &mut present);
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        assert_eq!(present, Some((name("web"), 7)));
        assert_eq!(stage(&wishes, "all"), (1, Stage::Waiting));
        take(&mut wishes, policy("web", 8, ALL_PPM, ""));
        run(&mut wishes, &mut present);
        assert_eq!(present, Some((name("all"), 1)));
        assert_eq!(stage(&wishes, "all"), (1, Stage::InForce));
        // A label that the agent lost counts no more; should it come back, no older policy does.
        let left = [name("web")];
        wishes.keep(&left);
        assert_eq!(wishes.act(&left, present.as_ref()), Act::Remove);
        assert_eq!(wishes.progress().len(), 1);
        assert_eq!(wishes.numbers()[&name("all")], 1);
        take(&mut wishes, policy("all", 2, ALL_PPM, "b"));
        wishes.keep(&left);
        assert_eq!(wishes.numbers()[&name("all")], 2);
    }

    #[test]
    fn refusal_of_an_earlier_policy_is_none_of_a_canary_for_others() {
        let mine = canary_turn(&name("web1"), &name("all"));
        let (mut wishes, mut present) = (Wishes::default(), None);
        take(&mut wishes, policy("all", 2, ALL_PPM, "a"));
        take(&mut wishes, policy("all", 3, mine, "b"));
        wishes.refused(&name("all"), "no memory".to_owned());
        assert_eq!(stage(&wishes, "all"), (3, Stage::Waiting));
        let reason = wishes.progress()[0].reason.clone();
        assert_eq!(reason, "policy 2 is refused: no memory");
        assert!(matches!(run(&mut wishes, &mut present), Act::Apply(..)));
        assert_eq!(present, Some((name("all"), 2)));
        assert_eq!(wishes.progress()[0].reason, OTHERS_FIRST);
    }

    #[test]
    fn what_is_wrong_changes_nothing() {
        let (mut wishes, mut present) = (Wishes::default(), None);
        take(&mut wishes, policy("all", 1, ALL_PPM, "a"));
        run(&mut wishes, &mut present);
        take(&mut wishes, policy("all", 2, ALL_PPM, "bad"));
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        assert_eq!(stage(&wishes, "all"), (2, Stage::Refused));
        assert_eq!(present, Some((name("all"), 1)));
        // What the kernel refuses is tried again, unless there is a newer one.
        take(&mut wishes, policy("all", 3, ALL_PPM, "c"));
        wishes.refused(&name("all"), "no memory".to_owned());
        assert_eq!(stage(&wishes, "all"), (3, Stage::Refused));
        assert!(matches!(run(&mut wishes, &mut present), Act::Apply(..)));
        assert_eq!(stage(&wishes, "all"), (3, Stage::InForce));
        take(&mut wishes, policy("all", 4, ALL_PPM, "d"));
        wishes.refused(&name("all"), "no memory".to_owned());
        take(&mut wishes, policy("all", 5, ALL_PPM, "bad"));
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        assert_eq!(stage(&wishes, "all"), (5, Stage::Refused));
        assert_eq!(present, Some((name("all"), 3)));
    }

    #[test]
    fn what_is_in_force_outlives_what_is_known_of_it() {
        // The file was lost. There is no server; or only a policy that others take first.
        let (mut wishes, mut present) = (Wishes::default(), Some((name("all"), 7)));
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        let mine = canary_turn(&name("web1"), &name("all"));
        take(&mut wishes, policy("all", 8, mine, "b"));
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        take(&mut wishes, policy("all", 9, ALL_PPM, ""));
        assert_eq!(run(&mut wishes, &mut present), Act::Remove);
    }

    #[test]
    fn a_kill_before_the_note_applies_nothing_twice() {
        let mut wishes = Wishes::default();
        take(&mut wishes, policy("all", 1, ALL_PPM, "a"));
        let mut present = Some((name("all"), 1));
        assert_eq!(run(&mut wishes, &mut present), Act::Note(name("all")));
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        assert_eq!(stage(&wishes, "all"), (1, Stage::InForce));
    }

    #[test]
    fn what_was_taken_back_stays_so_until_the_next_one() {
        let (mut wishes, mut present) = (Wishes::default(), None);
        take(&mut wishes, policy("all", 1, ALL_PPM, "a"));
        run(&mut wishes, &mut present);
        take(&mut wishes, policy("all", 2, ALL_PPM, "b"));
        run(&mut wishes, &mut present);
        let before = ((name("all"), 1), "a".to_owned());
        wishes.taken_back(&name("all"), "fails".to_owned(), Some(before), false);
        present = Some((name("all"), 1));
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        assert_eq!(stage(&wishes, "all"), (2, Stage::RolledBack));
        take(&mut wishes, policy("all", 3, ALL_PPM, "b"));
        assert!(matches!(run(&mut wishes, &mut present), Act::Apply(..)));
    }

    #[test]
    fn whoever_is_at_the_machine_has_the_last_word_until_the_next_one() {
        let (mut wishes, mut present) = (Wishes::default(), None);
        take(&mut wishes, policy("all", 1, ALL_PPM, "a"));
        run(&mut wishes, &mut present);
        present = None;
        assert_eq!(run(&mut wishes, &mut present), Act::Leave(name("all")));
        assert_eq!(stage(&wishes, "all"), (1, Stage::RolledBack));
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        // The same text again is a new word.
        take(&mut wishes, policy("all", 2, ALL_PPM, "a"));
        assert!(matches!(run(&mut wishes, &mut present), Act::Apply(..)));
    }

    #[test]
    fn what_was_replaced_here_does_not_come_back_with_another_label() {
        let (mut wishes, mut present) = (Wishes::default(), None);
        take(&mut wishes, policy("web", 7, ALL_PPM, "w"));
        run(&mut wishes, &mut present);
        present = None;
        assert_eq!(run(&mut wishes, &mut present), Act::Leave(name("web")));
        take(&mut wishes, policy("all", 1, ALL_PPM, "a"));
        run(&mut wishes, &mut present);
        assert_eq!(present, Some((name("all"), 1)));
        take(&mut wishes, policy("all", 2, ALL_PPM, ""));
        assert_eq!(run(&mut wishes, &mut present), Act::Remove);
        assert_eq!(run(&mut wishes, &mut present), Act::Nothing);
        assert_eq!(stage(&wishes, "web"), (7, Stage::RolledBack));
    }
}
