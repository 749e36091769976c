//! Checks of parameters.

use std::ops::RangeInclusive;

use crate::Time;

/// A parameter out of its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("`{field}` is {found}; {expected} is expected")]
pub struct ParameterError {
    /// Name of the parameter in scenario files.
    pub field: &'static str,
    /// Value of the parameter.
    pub found: String,
    /// Range of the parameter.
    pub expected: String,
}

/// Refuses a value outside of a range, and NaN.
pub(super) fn check_within(
    field: &'static str,
    value: f64,
    range: RangeInclusive<f64>,
) -> Result<(), ParameterError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(ParameterError {
        field,
        found: value.to_string(),
        expected: format!("a number from {} to {}", range.start(), range.end()),
    })
}

/// Refuses a value that is not below another parameter's.
pub(super) fn check_below(
    field: &'static str,
    value: f64,
    other: &'static str,
    limit: f64,
) -> Result<(), ParameterError> {
    if value < limit {
        return Ok(());
    }
    Err(ParameterError {
        field,
        found: value.to_string(),
        expected: format!("less than `{other}`, {limit},"),
    })
}

/// A parameter in microseconds as simulated time.
pub(super) fn time_from_us(microseconds: f64) -> Time {
    Time::from_secs(microseconds * 1e-6)
}
