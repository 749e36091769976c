//! Verdicts on a scenario's expectations.

use std::fmt;

use serde::Serialize;

/// Whether a statistic is within its expected bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Within the bounds.
    Met,
    /// Outside the bounds: the run fails.
    Missed,
    /// The mode, or the one that it is compared with, was not run.
    NotChecked,
}

impl Verdict {
    /// The verdict on a value; bounds are inclusive.
    pub fn judge_value(value: f64, at_least: Option<f64>, at_most: Option<f64>) -> Self {
        let within =
            at_least.is_none_or(|least| value >= least) && at_most.is_none_or(|most| value <= most);
        if within { Self::Met } else { Self::Missed }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::NotChecked => "not checked",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_what_is_no_number_keeps_none() {
        for (value, verdict) in [
            (1.0, Verdict::Met),
            (2.0, Verdict::Met),
            (0.9, Verdict::Missed),
            (2.1, Verdict::Missed),
            (f64::INFINITY, Verdict::Missed),
            (f64::NAN, Verdict::Missed),
        ] {
            assert_eq!(
                Verdict::judge_value(value, Some(1.0), Some(2.0)),
                verdict,
                "{value}"
            );
        }
        assert_eq!(
            Verdict::judge_value(f64::INFINITY, Some(1.0), None),
            Verdict::Met
        );
    }
}
