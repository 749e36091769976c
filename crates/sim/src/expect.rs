//! The outcome that a scenario expects, and whether runs met it.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::cc::Spec;
use crate::metrics::{Statistic, Summary};
use crate::scenario::Workload;

/// One expectation: bounds of a statistic's mean over the seeds, with one controller.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Expectation {
    /// The controller, as `--cc` has it.
    pub cc: String,
    /// Which statistic.
    pub statistic: Statistic,
    /// Met only if the mean is at least this.
    pub at_least: Option<f64>,
    /// Met only if the mean is at most this.
    pub at_most: Option<f64>,
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.cc, self.statistic.key())?;
        let unit = self.statistic.unit();
        if let Some(least) = self.at_least {
            write!(f, " at least {least}{unit}")?;
        }
        if let Some(most) = self.at_most {
            write!(f, " at most {most}{unit}")?;
        }
        Ok(())
    }
}

/// What became of an expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Within the bounds.
    Met,
    /// Outside the bounds, or there was nothing to measure.
    Missed,
    /// The controller was not run.
    NotChecked,
}

impl Expectation {
    /// Compares with what the controller's runs gave; `None` where it was not run, and a
    /// summary of nothing where the statistic was never measured.
    pub fn verdict(&self, summary: Option<Option<&Summary>>) -> Verdict {
        let Some(measured) = summary else {
            return Verdict::NotChecked;
        };
        let within = measured.is_some_and(|summary| {
            self.at_least.is_none_or(|least| summary.mean >= least)
                && self.at_most.is_none_or(|most| summary.mean <= most)
        });
        if within {
            Verdict::Met
        } else {
            Verdict::Missed
        }
    }
}

/// One `[[expect]]` table as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    cc: Spec,
    statistic: Statistic,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

impl Table {
    pub(crate) fn check(
        &self,
        span: Range<usize>,
        workload: &Workload,
    ) -> Result<Expectation, (Range<usize>, String)> {
        if !self.statistic.applies(workload) {
            let message = format!("this workload has no {}", self.statistic.key());
            return Err((span, message));
        }
        let bounds = [self.at_least, self.at_most];
        if bounds == [None, None] {
            return Err((
                span,
                "expected `at_least` or `at_most` in this table".into(),
            ));
        }
        if bounds.iter().flatten().any(|bound| !bound.is_finite()) {
            return Err((span, "expected finite bounds".into()));
        }
        Ok(Expectation {
            cc: self.cc.to_string(),
            statistic: self.statistic,
            at_least: self.at_least,
            at_most: self.at_most,
        })
    }
}
