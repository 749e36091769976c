//! Desired state of the fleet's policies on this agent, and the progress of each label.
//!
//! Nothing here touches the kernel. The first configured label that has a policy wins.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thalweg_fleet::Name;
use thalweg_fleet::wire::policy::ALL_PPM;
use thalweg_fleet::wire::{Policy, Progress, Stage};

/// Reason of a policy that other agents take first.
const OTHERS_FIRST: &str = "other agents come first";
/// Reasons of a removal, before and after the policy is out of the kernel.
const REMOVAL_WAITS: &str = "removal waits";
const REMOVED: &str = "removed";

/// A policy that a label wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    pub number: u64,
    pub text: String,
}

/// State of a label's policy on this agent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PolicyState {
    /// No policy was applied, and none waits.
    Unknown,
    /// The fleet removed the policy.
    Removed,
    /// `next` waits to be applied. Its number is an earlier one than the label's where other agents
    /// take the label's newest policy first.
    Pending {
        next: Wanted,
        before: Option<Applied>,
    },
    /// The last policy was applied.
    Applied(Applied),
}

/// A policy that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Applied {
    policy: Wanted,
    /// Whether the kernel still has the policy, as far as the agent knows.
    is_in_kernel: bool,
}

/// State of a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredLabel", into = "StoredLabel")]
struct LabelState {
    /// Number of the newest policy that was obeyed: older ones are refused.
    number: u64,
    /// Progress of that policy, and the reason that it is no further.
    stage: Stage,
    reason: String,
    /// Stage once a pending policy is applied: still waiting if other agents take the newest first.
    aim: Stage,
    policy: PolicyState,
}

impl LabelState {
    fn new(aim: Stage) -> Self {
        Self {
            number: 0,
            stage: Stage::Waiting,
            reason: String::new(),
            aim,
            policy: PolicyState::Unknown,
        }
    }

    /// Notes that the pending policy is in force.
    fn reach_aim(&mut self) {
        self.stage = self.aim;
        if self.aim != Stage::Waiting {
            self.reason.clear();
        } else if !self.reason.starts_with(OTHERS_FIRST) {
            self.reason = OTHERS_FIRST.to_owned();
        }
    }

    /// The policy that was applied last.
    fn applied(&self) -> Option<&Applied> {
        match &self.policy {
            PolicyState::Applied(applied) => Some(applied),
            PolicyState::Pending { before, .. } => before.as_ref(),
            PolicyState::Unknown | PolicyState::Removed => None,
        }
    }

    /// Drops the pending policy.
    fn drop_pending(&mut self) {
        let applied = self.applied().cloned();
        self.policy = applied.map_or(PolicyState::Unknown, PolicyState::Applied);
    }

    /// Notes that the applied policy is out of the kernel for good.
    fn drop_applied(&mut self) {
        match &mut self.policy {
            PolicyState::Pending { before, .. } => *before = None,
            state @ PolicyState::Applied(_) => *state = PolicyState::Unknown,
            PolicyState::Unknown | PolicyState::Removed => {}
        }
    }

    /// Notes that another label's policy replaced this one, which waits for its turn.
    fn give_way(&mut self, label: &Name) {
        let is_ready = matches!(self.stage, Stage::InForce | Stage::Canary);
        match &mut self.policy {
            PolicyState::Pending { before, .. } => {
                if let Some(applied) = before {
                    applied.is_in_kernel = false;
                }
            }
            PolicyState::Applied(applied) => {
                applied.is_in_kernel = false;
                if !is_ready {
                    return;
                }
                self.policy = PolicyState::Pending {
                    next: applied.policy.clone(),
                    before: Some(applied.clone()),
                };
            }
            PolicyState::Unknown | PolicyState::Removed => return,
        }
        self.stage = Stage::Waiting;
        self.reason = format!("that of label {label} comes first");
    }
}

/// Form of a label in the file: as earlier versions wrote it.
#[derive(Serialize, Deserialize)]
struct StoredLabel {
    number: u64,
    stage: Stage,
    reason: String,
    aim: Stage,
    next: Option<Wanted>,
    last: Option<Wanted>,
    is_present: bool,
    is_removed: bool,
}

impl From<StoredLabel> for LabelState {
    fn from(label: StoredLabel) -> Self {
        let is_in_kernel = label.is_present;
        let applied = label.last.map(|policy| Applied {
            policy,
            is_in_kernel,
        });
        Self {
            number: label.number,
            stage: label.stage,
            reason: label.reason,
            aim: label.aim,
            policy: match (label.next, applied) {
                _ if label.is_removed => PolicyState::Removed,
                (Some(next), before) => PolicyState::Pending { next, before },
                (None, Some(applied)) => PolicyState::Applied(applied),
                (None, None) => PolicyState::Unknown,
            },
        }
    }
}

impl From<LabelState> for StoredLabel {
    fn from(state: LabelState) -> Self {
        let applied = state.applied().cloned();
        Self {
            is_present: applied.as_ref().is_some_and(|it| it.is_in_kernel),
            last: applied.map(|it| it.policy),
            is_removed: state.policy == PolicyState::Removed,
            next: match state.policy {
                PolicyState::Pending { next, .. } => Some(next),
                _ => None,
            },
            number: state.number,
            stage: state.stage,
            reason: state.reason,
            aim: state.aim,
        }
    }
}

/// Desired state of all labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredState {
    labels: BTreeMap<Name, LabelState>,
    /// Whether somebody chose another policy on this machine. It stays until the fleet's next one.
    is_local: bool,
    /// Numbers of labels that the agent had. If a label returns, older policies stay refused.
    #[serde(default)]
    former: BTreeMap<Name, u64>,
    /// The fleet's policy in the kernel at the last poll: identifies it where the history is lost.
    #[serde(default)]
    present: Option<Present>,
}

/// A policy of the fleet: label and number.
pub type PolicyId = (Name, u64);

/// A policy of the fleet in the kernel, and its number in the history of policies.
pub type Present = (PolicyId, u32);

/// Next action of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    /// Apply the policy of a label.
    Apply(Name, Wanted),
    /// Note that the policy of a label is in force already.
    Note(Name),
    /// Remove the fleet's policy from the kernel.
    Remove,
    /// Leave the kernel as it is: somebody replaced the label's policy on this machine.
    Leave(Name),
}

impl DesiredState {
    /// Forgets labels that the agent no longer has, except their numbers.
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

    /// Progress of each label's policy.
    pub fn progress(&self) -> Vec<Progress> {
        let progress = |(label, held): (&Name, &LabelState)| Progress {
            label: label.clone(),
            number: held.number,
            stage: held.stage,
            reason: held.reason.clone(),
        };
        self.labels.iter().map(progress).collect()
    }

    /// Takes a new policy; `check` must accept its text.
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
        let held = self.labels.entry(policy.label);
        let held = held.or_insert_with(|| LabelState::new(aim));
        held.number = policy.number;
        held.reason.clear();
        held.aim = aim;
        if !is_mine {
            // An earlier policy for this agent is still to be done.
            held.stage = Stage::Waiting;
            let share = f64::from(policy.canary_ppm) / f64::from(ALL_PPM / 100);
            held.reason = format!("{OTHERS_FIRST}, {share} % of them");
            return;
        }
        if policy.text.is_empty() {
            held.stage = Stage::Waiting;
            held.reason = REMOVAL_WAITS.to_owned();
            held.policy = PolicyState::Removed;
            self.is_local = false;
            return;
        }
        held.drop_pending();
        if let Err(why) = check(&policy.text) {
            held.stage = Stage::Refused;
            held.reason = why;
            return;
        }
        let before = held.applied().cloned();
        let is_same = |it: &Applied| it.is_in_kernel && it.policy.text == policy.text;
        if before.as_ref().is_some_and(is_same) && !self.is_local {
            // The same text is in force already.
            held.stage = aim;
            return;
        }
        held.stage = Stage::Waiting;
        held.policy = PolicyState::Pending {
            before,
            next: Wanted {
                number: policy.number,
                text: policy.text,
            },
        };
        self.is_local = false;
    }

    /// The next action. `order` has the labels by rank, `present` the fleet's policy in the kernel.
    pub fn act(&mut self, order: &[Name], present: Option<&PolicyId>) -> Action {
        if self.is_local {
            return Action::Nothing;
        }
        let is_present =
            |label: &Name, wanted: &Wanted| present == Some(&(label.clone(), wanted.number));
        for label in order {
            let Some(held) = self.labels.get(label) else {
                continue;
            };
            return match &held.policy {
                PolicyState::Unknown | PolicyState::Removed => continue,
                PolicyState::Pending { next, .. } if is_present(label, next) => {
                    Action::Note(label.clone())
                }
                PolicyState::Pending { next, .. } => Action::Apply(label.clone(), next.clone()),
                PolicyState::Applied(last) if is_present(label, &last.policy) => {
                    self.others_wait(label);
                    Action::Nothing
                }
                PolicyState::Applied(last) if last.is_in_kernel => Action::Leave(label.clone()),
                PolicyState::Applied(last) => Action::Apply(label.clone(), last.policy.clone()),
            };
        }
        match self.takes_away(order, present) {
            true => Action::Remove,
            false => Action::Nothing,
        }
    }

    /// Whether the policy in the kernel has to go, with or without a successor. An applied policy whose
    /// label is unknown stays: the file may have been lost.
    pub fn takes_away(&self, order: &[Name], present: Option<&PolicyId>) -> bool {
        present.is_some_and(|(label, _)| {
            let held = self.labels.get(label);
            !order.contains(label) || held.is_some_and(|it| it.policy == PolicyState::Removed)
        })
    }

    /// Notes the fleet's policy in the kernel. A removal is complete once its label has none there.
    pub fn note_present(&mut self, present: Option<Present>) {
        for (label, held) in &mut self.labels {
            let is_out = present.as_ref().is_none_or(|((of, _), _)| of != label);
            if held.policy == PolicyState::Removed && held.aim != Stage::Waiting && is_out {
                held.stage = held.aim;
                held.reason = REMOVED.to_owned();
            }
        }
        // A label that a damaged file lost stays unknown.
        self.present = present.filter(|((label, _), _)| self.labels.contains_key(label));
    }

    /// The fleet's policy at the last poll, if it had this number in the history.
    pub fn present_as(&self, number: u32) -> Option<Present> {
        self.present.clone().filter(|(_, noted)| *noted == number)
    }

    /// Policies of other labels wait until this label has none.
    fn others_wait(&mut self, label: &Name) {
        let others = self.labels.iter_mut().filter(|(of, _)| *of != label);
        for (_, held) in others {
            held.give_way(label);
        }
    }

    /// Notes that a label's policy is in force.
    pub fn applied(&mut self, label: &Name) {
        if let Some(held) = self.labels.get_mut(label) {
            match &mut held.policy {
                PolicyState::Pending { next, .. } => {
                    held.policy = PolicyState::Applied(Applied {
                        policy: next.clone(),
                        is_in_kernel: true,
                    });
                    held.reach_aim();
                }
                PolicyState::Applied(applied) => applied.is_in_kernel = true,
                PolicyState::Unknown | PolicyState::Removed => {}
            }
        }
        self.others_wait(label);
    }

    /// Notes that the kernel refused a label's policy and kept what it had.
    pub fn refused(&mut self, label: &Name, why: String) {
        if let Some(held) = self.labels.get_mut(label) {
            (held.stage, held.reason) = match &held.policy {
                // The newest is a canary for others; the refusal says nothing of it.
                PolicyState::Pending { next, .. } if next.number != held.number => (
                    Stage::Waiting,
                    format!("policy {} is refused: {why}", next.number),
                ),
                _ => (Stage::Refused, why),
            };
        }
    }

    /// Notes that somebody replaced a label's policy on this machine.
    pub fn left(&mut self, label: &Name, why: String) {
        self.is_local = true;
        if let Some(held) = self.labels.get_mut(label) {
            (held.stage, held.reason) = (Stage::RolledBack, why);
            held.drop_applied();
        }
    }

    /// Notes that a label's policy was taken back. `now` is the fleet's policy that replaced it,
    /// `is_local` whether one of this machine did.
    pub fn taken_back(
        &mut self,
        label: &Name,
        why: String,
        now: Option<(PolicyId, String)>,
        is_local: bool,
    ) {
        if let Some(held) = self.labels.get_mut(label) {
            (held.stage, held.reason) = (Stage::RolledBack, why);
            held.drop_applied();
        }
        self.is_local = is_local;
        let Some(((of, number), text)) = now else {
            return;
        };
        let Some(held) = self.labels.get_mut(&of) else {
            return;
        };
        let applied = Applied {
            policy: Wanted { number, text },
            is_in_kernel: true,
        };
        match &mut held.policy {
            // The removal is still to be carried out.
            PolicyState::Removed => {}
            PolicyState::Pending { before, .. } if of == *label => *before = Some(applied),
            PolicyState::Pending { .. } => {
                held.policy = PolicyState::Applied(applied);
                held.reach_aim();
            }
            PolicyState::Unknown | PolicyState::Applied(_) => {
                held.policy = PolicyState::Applied(applied);
            }
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

    fn take(desired: &mut DesiredState, policy: Policy) {
        desired.take(&name("web1"), policy, |text| match text {
            "bad" => Err("bad policy".to_owned()),
            _ => Ok(()),
        });
    }

    /// Does what is to be done, as a kernel without faults would.
    fn run(desired: &mut DesiredState, present: &mut Option<PolicyId>) -> Action {
        let order = [name("web"), name("all")];
        let act = desired.act(&order, present.as_ref());
        match &act {
            Action::Nothing => {}
            Action::Apply(label, wanted) => {
                desired.applied(label);
                *present = Some((label.clone(), wanted.number));
            }
            Action::Note(label) => desired.applied(label),
            Action::Remove => *present = None,
            Action::Leave(label) => desired.left(label, "replaced".to_owned()),
        }
        desired.note_present(present.clone().map(|which| (which, 1)));
        act
    }

    fn stage(desired: &DesiredState, label: &str) -> (u64, Stage) {
        let all = desired.progress();
        let found = all.iter().find(|it| it.label.as_str() == label).unwrap();
        (found.number, found.stage)
    }

    #[test]
    fn a_canary_waits_elsewhere_and_is_in_force_for_all_later() {
        let mine = canary_turn(&name("web1"), &name("all"));
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        assert!(matches!(run(&mut desired, &mut present), Action::Apply(..)));
        // Those before this agent.
        take(&mut desired, policy("all", 2, mine, "b"));
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        assert_eq!(stage(&desired, "all"), (2, Stage::Waiting));
        assert_eq!(present, Some((name("all"), 1)));
        take(&mut desired, policy("all", 3, mine + 1, "b"));
        run(&mut desired, &mut present);
        assert_eq!(stage(&desired, "all"), (3, Stage::Canary));
        // The same for all is in force already.
        take(&mut desired, policy("all", 4, ALL_PPM, "b"));
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        assert_eq!(stage(&desired, "all"), (4, Stage::InForce));
        assert_eq!(present, Some((name("all"), 3)));
        assert_eq!(desired.numbers()[&name("all")], 4);
        take(&mut desired, policy("all", 5, ALL_PPM, ""));
        assert_eq!(run(&mut desired, &mut present), Action::Remove);
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
    }

    #[test]
    fn removal_waits_until_the_policy_is_out_of_the_kernel() {
        let (mut desired, mut present) = (DesiredState::default(), None);
        let told = |desired: &DesiredState| {
            let progress = desired.progress().remove(0);
            (progress.stage, progress.reason)
        };
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        let order = [name("all")];
        assert!(!desired.takes_away(&order, present.as_ref()));
        take(&mut desired, policy("all", 2, ALL_PPM, ""));
        assert!(desired.takes_away(&order, present.as_ref()));
        // It cannot be removed yet.
        desired.note_present(present.clone().map(|which| (which, 1)));
        let waits = (Stage::Waiting, REMOVAL_WAITS.to_owned());
        assert_eq!(told(&desired), waits);
        assert_eq!(run(&mut desired, &mut present), Action::Remove);
        assert_eq!(told(&desired), (Stage::InForce, REMOVED.to_owned()));
        // Another label's policy in its place is as good.
        take(&mut desired, policy("all", 3, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        take(&mut desired, policy("all", 4, ALL_PPM, ""));
        assert_eq!(told(&desired), waits);
        desired.note_present(Some(((name("web"), 1), 7)));
        assert_eq!(told(&desired), (Stage::InForce, REMOVED.to_owned()));
    }

    #[test]
    fn policy_without_history_is_known_by_its_noted_number() {
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("all", 5, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        // As after a restart of the agent.
        let text = serde_json::to_string(&desired).unwrap();
        let desired: DesiredState = serde_json::from_str(&text).unwrap();
        assert_eq!(desired.present_as(1), Some(((name("all"), 5), 1)));
        assert_eq!(desired.present_as(2), None);
    }

    #[test]
    fn canary_for_others_after_a_removal_for_all_keeps_the_removal() {
        let mine = canary_turn(&name("web1"), &name("all"));
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        take(&mut desired, policy("all", 2, ALL_PPM, ""));
        take(&mut desired, policy("all", 3, mine, "b"));
        assert_eq!(run(&mut desired, &mut present), Action::Remove);
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        assert_eq!(stage(&desired, "all"), (3, Stage::Waiting));
    }

    #[test]
    fn canary_for_others_after_a_policy_for_all_applies_the_policy() {
        let mine = canary_turn(&name("web1"), &name("all"));
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        take(&mut desired, policy("all", 2, ALL_PPM, "b"));
        take(&mut desired, policy("all", 3, mine, "c"));
        let second = Wanted {
            number: 2,
            text: "b".to_owned(),
        };
        let act = run(&mut desired, &mut present);
        assert_eq!(act, Action::Apply(name("all"), second));
        // In force is the second; the third still waits, and says why.
        assert_eq!(stage(&desired, "all"), (3, Stage::Waiting));
        let reason = desired.progress()[0].reason.clone();
        assert!(reason.starts_with(OTHERS_FIRST), "{reason}");
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        take(&mut desired, policy("all", 4, ALL_PPM, "c"));
        assert!(matches!(run(&mut desired, &mut present), Action::Apply(..)));
        assert_eq!(stage(&desired, "all"), (4, Stage::InForce));
    }

    #[test]
    fn the_label_named_first_comes_first() {
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("web", 7, ALL_PPM, "w"));
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        assert_eq!(present, Some((name("web"), 7)));
        assert_eq!(stage(&desired, "all"), (1, Stage::Waiting));
        take(&mut desired, policy("web", 8, ALL_PPM, ""));
        run(&mut desired, &mut present);
        assert_eq!(present, Some((name("all"), 1)));
        assert_eq!(stage(&desired, "all"), (1, Stage::InForce));
        // A label that the agent lost counts no more; should it come back, no older policy does.
        let left = [name("web")];
        desired.keep(&left);
        assert_eq!(desired.act(&left, present.as_ref()), Action::Remove);
        assert_eq!(desired.progress().len(), 1);
        assert_eq!(desired.numbers()[&name("all")], 1);
        take(&mut desired, policy("all", 2, ALL_PPM, "b"));
        desired.keep(&left);
        assert_eq!(desired.numbers()[&name("all")], 2);
    }

    #[test]
    fn refusal_of_an_earlier_policy_is_none_of_a_canary_for_others() {
        let mine = canary_turn(&name("web1"), &name("all"));
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("all", 2, ALL_PPM, "a"));
        take(&mut desired, policy("all", 3, mine, "b"));
        desired.refused(&name("all"), "no memory".to_owned());
        assert_eq!(stage(&desired, "all"), (3, Stage::Waiting));
        let reason = desired.progress()[0].reason.clone();
        assert_eq!(reason, "policy 2 is refused: no memory");
        assert!(matches!(run(&mut desired, &mut present), Action::Apply(..)));
        assert_eq!(present, Some((name("all"), 2)));
        assert_eq!(desired.progress()[0].reason, OTHERS_FIRST);
    }

    #[test]
    fn what_is_wrong_changes_nothing() {
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        take(&mut desired, policy("all", 2, ALL_PPM, "bad"));
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        assert_eq!(stage(&desired, "all"), (2, Stage::Refused));
        assert_eq!(present, Some((name("all"), 1)));
        // What the kernel refuses is tried again, unless there is a newer one.
        take(&mut desired, policy("all", 3, ALL_PPM, "c"));
        desired.refused(&name("all"), "no memory".to_owned());
        assert_eq!(stage(&desired, "all"), (3, Stage::Refused));
        assert!(matches!(run(&mut desired, &mut present), Action::Apply(..)));
        assert_eq!(stage(&desired, "all"), (3, Stage::InForce));
        take(&mut desired, policy("all", 4, ALL_PPM, "d"));
        desired.refused(&name("all"), "no memory".to_owned());
        take(&mut desired, policy("all", 5, ALL_PPM, "bad"));
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        assert_eq!(stage(&desired, "all"), (5, Stage::Refused));
        assert_eq!(present, Some((name("all"), 3)));
    }

    #[test]
    fn what_is_in_force_outlives_what_is_known_of_it() {
        // The file was lost. There is no server; or only a policy that others take first.
        let (mut desired, mut present) = (DesiredState::default(), Some((name("all"), 7)));
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        let mine = canary_turn(&name("web1"), &name("all"));
        take(&mut desired, policy("all", 8, mine, "b"));
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        take(&mut desired, policy("all", 9, ALL_PPM, ""));
        assert_eq!(run(&mut desired, &mut present), Action::Remove);
    }

    #[test]
    fn a_kill_before_the_note_applies_nothing_twice() {
        let mut desired = DesiredState::default();
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        let mut present = Some((name("all"), 1));
        assert_eq!(run(&mut desired, &mut present), Action::Note(name("all")));
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        assert_eq!(stage(&desired, "all"), (1, Stage::InForce));
    }

    #[test]
    fn what_was_taken_back_stays_so_until_the_next_one() {
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        take(&mut desired, policy("all", 2, ALL_PPM, "b"));
        run(&mut desired, &mut present);
        let before = ((name("all"), 1), "a".to_owned());
        desired.taken_back(&name("all"), "fails".to_owned(), Some(before), false);
        present = Some((name("all"), 1));
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        assert_eq!(stage(&desired, "all"), (2, Stage::RolledBack));
        take(&mut desired, policy("all", 3, ALL_PPM, "b"));
        assert!(matches!(run(&mut desired, &mut present), Action::Apply(..)));
    }

    #[test]
    fn whoever_is_at_the_machine_has_the_last_word_until_the_next_one() {
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        present = None;
        assert_eq!(run(&mut desired, &mut present), Action::Leave(name("all")));
        assert_eq!(stage(&desired, "all"), (1, Stage::RolledBack));
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        // The same text again is a new word.
        take(&mut desired, policy("all", 2, ALL_PPM, "a"));
        assert!(matches!(run(&mut desired, &mut present), Action::Apply(..)));
    }

    #[test]
    fn what_was_replaced_here_does_not_come_back_with_another_label() {
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("web", 7, ALL_PPM, "w"));
        run(&mut desired, &mut present);
        present = None;
        assert_eq!(run(&mut desired, &mut present), Action::Leave(name("web")));
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        assert_eq!(present, Some((name("all"), 1)));
        take(&mut desired, policy("all", 2, ALL_PPM, ""));
        assert_eq!(run(&mut desired, &mut present), Action::Remove);
        assert_eq!(run(&mut desired, &mut present), Action::Nothing);
        assert_eq!(stage(&desired, "web"), (7, Stage::RolledBack));
    }

    #[test]
    fn file_of_an_earlier_version_has_the_same_state() {
        let text = r#"{"labels":{"all":{"number":3,"stage":"waiting","reason":"r","aim":"in-force",
            "next":{"number":3,"text":"b"},"last":{"number":2,"text":"a"},"is_present":true,
            "is_removed":false},"web":{"number":4,"stage":"in-force","reason":"removed",
            "aim":"in-force","next":null,"last":null,"is_present":false,"is_removed":true}},
            "is_local":false}"#;
        let mut desired: DesiredState = serde_json::from_str(text).unwrap();
        let order = [name("web"), name("all")];
        let next = Wanted {
            number: 3,
            text: "b".to_owned(),
        };
        let present = (name("all"), 2);
        assert_eq!(
            desired.act(&order, Some(&present)),
            Action::Apply(name("all"), next)
        );
        assert!(desired.takes_away(&order, Some(&(name("web"), 4))));
        let again: DesiredState =
            serde_json::from_str(&serde_json::to_string(&desired).unwrap()).unwrap();
        assert_eq!(again, desired);
    }

    #[test]
    fn roll_back_to_a_removed_policy_leaves_it_to_be_removed() {
        let (mut desired, mut present) = (DesiredState::default(), None);
        take(&mut desired, policy("all", 1, ALL_PPM, "a"));
        run(&mut desired, &mut present);
        take(&mut desired, policy("web", 1, ALL_PPM, "w"));
        run(&mut desired, &mut present);
        take(&mut desired, policy("all", 2, ALL_PPM, ""));
        let before = ((name("all"), 1), "a".to_owned());
        desired.taken_back(&name("web"), "fails".to_owned(), Some(before), false);
        present = Some((name("all"), 1));
        assert_eq!(run(&mut desired, &mut present), Action::Remove);
    }
}
