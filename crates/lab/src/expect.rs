//! Verdicts on the expectations of a scenario.
//!
//! An expectation is "not checked", neither met nor missed, if a mode that it needs was not
//! measured.

use thalweg_report::Verdict;

use crate::figure::Unit;
use crate::mode::Mode;
use crate::outcome::{Check, ModeOutcome};
use crate::query::Query;
use crate::scenario::{Expectation, Reference};
use crate::statistic::Statistic;

/// Compares every expectation with the measured modes.
pub fn evaluate(expectations: &[Expectation], modes: &[ModeOutcome]) -> Vec<Check> {
    expectations
        .iter()
        .map(|expectation| check(expectation, modes))
        .collect()
}

/// What mode `null`, if it ran, makes of the expectations of modes that learn.
pub fn evaluate_null(expectations: &[Expectation], modes: &[ModeOutcome]) -> Vec<Check> {
    if !modes.iter().any(|outcome| outcome.mode == Mode::Null) {
        return Vec::new();
    }
    let learning = expectations.iter().filter(|one| one.mode.learns());
    let of_null = learning.map(|one| Expectation {
        mode: Mode::Null,
        ..one.clone()
    });
    of_null.map(|one| check(&one, modes)).collect()
}

fn check(expectation: &Expectation, modes: &[ModeOutcome]) -> Check {
    let mut check = Check {
        expectation: expectation.clone(),
        text: expectation.to_string(),
        verdict: Verdict::NotChecked,
        value: None,
        reference: None,
        reason: None,
    };
    let result = match &expectation.host {
        // The figures towards one host are taken as if it were the only one.
        Some(host) => {
            let towards: Vec<ModeOutcome> =
                modes.iter().filter_map(|mode| mode.towards(host)).collect();
            measure(expectation, &towards, &mut check.reference)
        }
        None => measure(expectation, modes, &mut check.reference),
    };
    match result {
        Ok(value) => {
            check.value = Some(value);
            check.verdict = Verdict::of(value, expectation.at_least, expectation.at_most);
        }
        Err(reason) => check.reason = Some(reason),
    }
    check
}

fn measure(
    expectation: &Expectation,
    modes: &[ModeOutcome],
    reference_mode: &mut Option<Mode>,
) -> Result<f64, String> {
    let find = |mode: &Mode| {
        modes
            .iter()
            .find(|outcome| outcome.mode == *mode && !outcome.connections.is_empty())
            .ok_or_else(|| format!("mode {mode} was not run"))
    };
    let query = Query {
        statistic: expectation.statistic,
        arm: expectation.arm.as_deref(),
        class: expectation.class.as_deref(),
    };
    let value = query.value(find(&expectation.mode)?, modes)?;
    let Some(reference) = &expectation.relative_to else {
        return Ok(value);
    };
    let outcome = match reference {
        Reference::Mode(mode) => find(mode)?,
        Reference::BestFixed => query
            .best_setting(modes)
            .ok_or_else(|| "no mode fixed:ARM was run".to_owned())?,
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
        .value(outcome, modes)
        .or_else(|_| all.value(outcome, modes))
        .map_err(|why| format!("{why} in mode {}", outcome.mode))?;
    if divisor == 0.0 {
        return Err(match expectation.statistic.unit() {
            Unit::BitsPerSecond => format!("the reference {} moved nothing", outcome.mode),
            _ => format!("the reference {} has 0", outcome.mode),
        });
    }
    if value.is_infinite() && divisor.is_infinite() {
        return Err(format!("neither it nor {} got there", outcome.mode));
    }
    Ok(value / divisor)
}

#[cfg(test)]
#[path = "expect_tests.rs"]
mod tests;
