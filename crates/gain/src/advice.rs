//! Which arm would be best for a group of connections, by what its clusters were given or took.

use crate::compare::{Comparison, compare_groups, compare_pairs};
use crate::ledger::{Group, Rows};
use crate::row::Row;
use crate::share::{Scope, advice_alpha, row_alpha};
use crate::side::{Arm, Side};
use crate::verdict::Verdict;

/// Arms beside the system's that are compared in each way, at most: α depends on it.
pub(crate) const CHOICES_MAX: usize = 15;

/// Comparison of one choice with the system's arm.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Who made it.
    pub side: Side,
    /// The measures, in the order of [`Row::MEASURES`].
    pub comparisons: [Comparison; Row::MEASURES.len()],
    /// Joint finding of the measures.
    pub found: Finding,
}

/// Joint finding of the measures of a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finding {
    /// The choice takes less time.
    Better,
    /// The choice takes less time, at a price in this measure that forbids it.
    AtAPrice(Row),
    /// The choice takes more time.
    Worse,
    /// The choice takes as much time, within what matters.
    Same,
    /// Not known yet; as [`Verdict::Unknown`].
    Unknown(Option<f64>),
}

/// Best choice for a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Conclusion {
    /// There is nothing to compare.
    Nothing,
    /// The choice with this index takes least time.
    Take(usize),
    /// The system's arm: no other takes less time without a price.
    Keep,
    /// The choice does not matter.
    Same,
    /// Not known yet; as [`Verdict::Unknown`], until all choices are known.
    Unknown(Option<f64>),
}

/// Advice from a group's clusters.
#[derive(Clone, Debug)]
pub struct Advised {
    /// The choices that have clusters, trials first.
    pub choices: Vec<Choice>,
    /// Best choice for the group.
    pub conclusion: Conclusion,
}

/// Compares each choice of a group with the system's arm. Trials (and the learner's choices) are
/// experiments. What differs by itself counts only where no trial of that arm has said anything.
pub fn advise_group(group: &Group, scope: Scope, system: Arm) -> Advised {
    let drawn = Side::Drawn(system);
    let mut control = *group.control();
    // The same arm, given by another draw.
    for (sum, more) in control.iter_mut().zip(group.side_rows(drawn)) {
        sum.merge(more);
    }
    let others = group.sides.iter().filter(|(side, _)| match side {
        Side::Control => false,
        Side::Treated => true,
        Side::Drawn(arm) | Side::Itself(arm) => *arm != system && *arm != Arm::UNKNOWN,
    });
    let mut counts = [0; 2];
    let mut choices = Vec::new();
    for (side, rows) in others {
        let count = &mut counts[usize::from(matches!(side, Side::Itself(_)))];
        *count += 1;
        if *count <= CHOICES_MAX {
            choices.push(compare_choice(*side, scope, &control, rows));
        }
    }
    let conclusion = overall_conclusion(&choices);
    Advised {
        choices,
        conclusion,
    }
}

fn compare_choice(side: Side, scope: Scope, control: &Rows, rows: &Rows) -> Choice {
    let comparisons = Row::MEASURES.map(|row| {
        let (control, rows) = (&control[row.index()], &rows[row.index()]);
        match side {
            Side::Treated | Side::Control => compare_groups(control, rows, row_alpha(scope)),
            Side::Drawn(_) => compare_groups(control, rows, advice_alpha(scope)),
            Side::Itself(_) => compare_pairs(rows, advice_alpha(scope)),
        }
    });
    let time = Verdict::judge_row(&comparisons[0], Row::Time);
    let price = || {
        let measures = Row::MEASURES.into_iter().zip(&comparisons);
        let mut forbids = measures.filter(|(row, comparison)| {
            Verdict::is_reason_to_revert(comparison, *row, &comparisons[0])
        });
        forbids.next().map(|(row, _)| row)
    };
    let found = match time {
        Verdict::Better => price().map_or(Finding::Better, Finding::AtAPrice),
        Verdict::Worse => Finding::Worse,
        Verdict::Same => Finding::Same,
        Verdict::Unknown(growth) => Finding::Unknown(growth),
    };
    Choice {
        side,
        comparisons,
        found,
    }
}

fn overall_conclusion(choices: &[Choice]) -> Conclusion {
    let is_known = |choice: &Choice| !matches!(choice.found, Finding::Unknown(_));
    let tried = |arm: Arm| {
        let trial = choices.iter().find(|it| it.side == Side::Drawn(arm));
        trial.is_some_and(is_known)
    };
    let counts = |choice: &Choice| match choice.side {
        Side::Itself(arm) => !tried(arm),
        _ => true,
    };
    let counted = || choices.iter().enumerate().filter(|(_, it)| counts(it));
    if counted().next().is_none() {
        return Conclusion::Nothing;
    }
    let is_trial = |choice: &Choice| !matches!(choice.side, Side::Itself(_));
    let best = |trials: bool| {
        let better =
            counted().filter(|(_, it)| it.found == Finding::Better && is_trial(it) == trials);
        // Of equal ones the first.
        better.min_by(|a, b| time_effect(a.1).total_cmp(&time_effect(b.1)))
    };
    if let Some((index, _)) = best(true).or_else(|| best(false)) {
        return Conclusion::Take(index);
    }
    let mut unknown = counted().filter_map(|(_, it)| match it.found {
        Finding::Unknown(growth) => Some(growth),
        _ => None,
    });
    if let Some(first) = unknown.next() {
        // Those that will never be known hold up nobody.
        return Conclusion::Unknown(unknown.fold(first, |most, growth| match (most, growth) {
            (Some(most), Some(growth)) => Some(most.max(growth)),
            (one, other) => one.or(other),
        }));
    }
    match counted().all(|(_, it)| it.found == Finding::Same) {
        true => Conclusion::Same,
        false => Conclusion::Keep,
    }
}

fn time_effect(choice: &Choice) -> f64 {
    choice.comparisons[0].effect
}
