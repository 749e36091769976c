//! The outcome that a scenario expects, and whether runs met it.

use std::fmt;

use serde::Serialize;
pub use thalweg_report::Verdict;

use crate::metrics::{Statistic, Summary};

/// The controller that does nothing, in the form of `--cc`: every flow sends at the line's rate.
pub const NULL: &str = "fixed";

/// One expectation: bounds of a statistic's mean over the seeds, with one controller.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Expectation {
    /// The controller, in the form of `--cc`.
    pub cc: String,
    /// The statistic.
    pub statistic: Statistic,
    /// Lower bound of the mean, if any.
    pub at_least: Option<f64>,
    /// Upper bound of the mean, if any.
    pub at_most: Option<f64>,
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.cc, self.statistic.key())?;
        let unit = self.statistic.unit_suffix();
        if let Some(least) = self.at_least {
            write!(f, " at least {least}{unit}")?;
        }
        if let Some(most) = self.at_most {
            write!(f, " at most {most}{unit}")?;
        }
        Ok(())
    }
}

impl Expectation {
    /// Compares the bounds with the controller's runs. `None` where it was not run; a summary of
    /// nothing where the statistic was never measured.
    pub fn judge_summary(&self, summary: Option<Option<&Summary>>) -> Verdict {
        match summary {
            None => Verdict::NotChecked,
            Some(None) => Verdict::Missed,
            Some(Some(summary)) => Verdict::judge_value(summary.mean, self.at_least, self.at_most),
        }
    }
}

/// Controllers that no bound tells from [`NULL`]: of `verdicts`, those that [`NULL`] earned, none of
/// a controller's is missed. In the order of the expectations.
pub fn met_by_null<'a>(verdicts: &[(&'a Expectation, Verdict)]) -> Vec<&'a str> {
    let missed = |cc| {
        let mut of_it = verdicts.iter().filter(|(one, _)| one.cc == cc);
        of_it.any(|(_, verdict)| *verdict == Verdict::Missed)
    };
    let mut met: Vec<&str> = Vec::new();
    for (one, _) in verdicts {
        let cc = one.cc.as_str();
        if cc != NULL && !met.contains(&cc) && !missed(cc) {
            met.push(cc);
        }
    }
    met
}
