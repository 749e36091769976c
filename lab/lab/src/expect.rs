//! Verdicts on the expectations of a scenario.
//!
//! An expectation is "not checked", neither met nor missed, if a mode that it needs was not run. It
//! is missed if its own mode was run and nothing was measured.

use thalweg_report::Verdict;

use crate::figure::{Better, Unit};
use crate::mode::Mode;
use crate::outcome::{Check, ModeOutcome};
use crate::query::{NoValue, Query};
use crate::scenario::{Expectation, Reference};
use crate::statistic::Statistic;

/// Compares every expectation with the measured modes.
pub fn evaluate_expectations(expectations: &[Expectation], modes: &[ModeOutcome]) -> Vec<Check> {
    expectations
        .iter()
        .map(|expectation| check_expectation(expectation, modes))
        .collect()
}

/// Verdicts on mode `null`, if it ran, by the expectations of modes that learn.
pub fn evaluate_null(expectations: &[Expectation], modes: &[ModeOutcome]) -> Vec<Check> {
    if !modes.iter().any(|outcome| outcome.mode == Mode::Null) {
        return Vec::new();
    }
    let learning = expectations.iter().filter(|one| one.mode.learns());
    let of_null = learning.map(|one| Expectation {
        mode: Mode::Null,
        ..one.clone()
    });
    // Where nothing was measured, no bound has told a learner from one that does nothing.
    of_null
        .map(|one| check_expectation(&one, modes))
        .map(|one| Check {
            verdict: one.value.map_or(Verdict::NotChecked, |_| one.verdict),
            ..one
        })
        .collect()
}

fn check_expectation(expectation: &Expectation, modes: &[ModeOutcome]) -> Check {
    let mut check = Check {
        expectation: expectation.clone(),
        text: expectation.to_string(),
        verdict: Verdict::NotChecked,
        value: None,
        reference: None,
        reason: None,
    };
    let result = find_mode(modes, &expectation.mode).and_then(|_| match &expectation.host {
        // The figures towards one host are taken as if it were the only one.
        Some(host) => {
            let towards: Vec<ModeOutcome> = modes
                .iter()
                .filter_map(|mode| mode.towards_host(host))
                .collect();
            measured_value(expectation, &towards, &mut check.reference)
        }
        None => measured_value(expectation, modes, &mut check.reference),
    });
    match result {
        Ok(value) => {
            check.value = Some(value);
            // A goal that was not reached keeps no bound, not even a lower one.
            check.verdict = if value.is_finite() {
                Verdict::judge_value(value, expectation.at_least, expectation.at_most)
            } else {
                Verdict::Missed
            };
        }
        Err(why) => {
            if matches!(why, NoValue::Unmeasured(_)) {
                check.verdict = Verdict::Missed;
            }
            check.reason = Some(why.to_string());
        }
    }
    check
}

/// The outcome of a mode that was run.
fn find_mode<'a>(modes: &'a [ModeOutcome], mode: &Mode) -> Result<&'a ModeOutcome, NoValue> {
    modes
        .iter()
        .find(|outcome| outcome.mode == *mode && !outcome.connections.is_empty())
        .ok_or_else(|| NoValue::NoReference(format!("mode {mode} was not run")))
}

/// The value of an expectation whose mode was run.
fn measured_value(
    expectation: &Expectation,
    modes: &[ModeOutcome],
    reference_mode: &mut Option<Mode>,
) -> Result<f64, NoValue> {
    let query = Query {
        statistic: expectation.statistic,
        arm: expectation.arm.as_deref(),
        class: expectation.class.as_deref(),
    };
    let own = find_mode(modes, &expectation.mode)
        .map_err(|_| NoValue::not_measured("nothing was measured towards the host"))?;
    let value = query.mode_value(own, modes)?;
    let Some(reference) = &expectation.relative_to else {
        return Ok(value);
    };
    let outcome = match reference {
        Reference::Mode(mode) => find_mode(modes, mode)?,
        Reference::BestFixed => query
            .best_setting(modes)
            .ok_or_else(|| NoValue::no_reference("no mode fixed:ARM was run"))?,
    };
    *reference_mode = Some(outcome.mode.clone());
    // Both cover the same rounds, so that a machine that slows down affects both alike. A reference
    // without connections in the last half does not learn; all of its connections are used.
    let all = Query {
        statistic: match expectation.statistic {
            Statistic::MedianLastHalf => Statistic::Median,
            Statistic::LowerQuartileLastHalf => Statistic::LowerQuartile,
            Statistic::FctMedianLastHalf => Statistic::FctMedian,
            Statistic::FctP99LastHalf => Statistic::FctP99,
            other => other,
        },
        ..query
    };
    let divisor = query
        .mode_value(outcome, modes)
        .or_else(|_| all.mode_value(outcome, modes))
        .map_err(|why| NoValue::NoReference(format!("{why} in mode {}", outcome.mode)))?;
    if divisor == 0.0 {
        let mode = &outcome.mode;
        // Where more is better, a mode that has nothing either is no better off.
        if value == 0.0 && expectation.statistic.better() == Better::Higher {
            let why = format!("neither it nor {mode} has more than 0");
            return Err(NoValue::Unmeasured(why));
        }
        return Err(NoValue::NoReference(match expectation.statistic.unit() {
            Unit::BitsPerSecond => format!("the reference {mode} moved nothing"),
            _ => format!("the reference {mode} has 0"),
        }));
    }
    if value.is_infinite() && divisor.is_infinite() {
        let why = format!("neither it nor {} got there", outcome.mode);
        return Err(NoValue::Unmeasured(why));
    }
    Ok(value / divisor)
}

#[cfg(test)]
#[path = "expect_tests.rs"]
mod tests;
