//! The outcome that a scenario expects, and whether a run met it.
//!
//! An expectation compares one statistic of one mode with a number, or with the
//! same statistic of a reference that was measured in the same run. Where a mode
//! it needs was not measured it is "not checked": neither met nor missed.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize, Serializer};

use crate::mode::Mode;
use crate::outcome::ModeOutcome;
use crate::scenario::Fault;
use crate::stats;
use crate::units::Rate;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Statistic {
    /// Median goodput of all connections.
    Median,
    /// Median goodput of the last half of the rounds: after learning.
    MedianLastHalf,
    /// Mean goodput of all connections: what learning costs is in it.
    Mean,
    /// Goodput that three quarters of the connections reach.
    LowerQuartile,
    /// Share (0 to 1) of the connections of the last half on the arm that is
    /// most frequent among them.
    ConvergedShare,
    /// Share (0 to 1) of the packets dropped in the data direction.
    Loss,
    /// How many connections failed.
    Failures,
}

impl Statistic {
    fn is_goodput(self) -> bool {
        !matches!(self, Self::ConvergedShare | Self::Loss | Self::Failures)
    }

    fn words(self) -> &'static str {
        match self {
            Self::Median => "median goodput",
            Self::MedianLastHalf => "median goodput of the last half",
            Self::Mean => "mean goodput",
            Self::LowerQuartile => "lower quartile of goodput",
            Self::ConvergedShare => "share of the most frequent arm in the last half",
            Self::Loss => "share of packets dropped",
            Self::Failures => "number of failed connections",
        }
    }
}

/// What a statistic is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// The fixed mode with the highest median in this run.
    BestFixed,
    /// A named mode.
    Mode(Mode),
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BestFixed => f.write_str("best-fixed"),
            Self::Mode(mode) => mode.fmt(f),
        }
    }
}

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One expectation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Expectation {
    /// Whose statistic.
    pub mode: Mode,
    /// Which statistic.
    pub statistic: Statistic,
    /// Compared with this, as a ratio; none: compared as it is.
    pub relative_to: Option<Reference>,
    /// Met only if the value is at least this (ratio, bit/s, share or count).
    pub at_least: Option<f64>,
    /// Met only if the value is at most this.
    pub at_most: Option<f64>,
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.mode, self.statistic.words())?;
        let bound = |value: f64| match (&self.relative_to, self.statistic.is_goodput()) {
            (Some(reference), _) => format!("{value} × that of {reference}"),
            (None, true) => Rate::from_bps(value as u64).to_string(),
            (None, false) => value.to_string(),
        };
        match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => write!(f, " from {} to {}", bound(least), bound(most)),
            (Some(least), None) => write!(f, " at least {}", bound(least)),
            (None, Some(most)) => write!(f, " at most {}", bound(most)),
            (None, None) => Ok(()),
        }
    }
}

/// Whether an expectation was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Within the bounds.
    Met,
    /// Outside the bounds: the run fails.
    Missed,
    /// A mode it needs was not measured.
    NotChecked,
}

/// An expectation and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// The expectation.
    pub expectation: Expectation,
    /// The expectation in words.
    pub text: String,
    /// What became of it.
    pub verdict: Verdict,
    /// The value that was compared (ratio, bit/s, share or count).
    pub value: Option<f64>,
    /// The mode that the reference turned out to be.
    pub reference: Option<Mode>,
    /// Why it was not checked.
    pub reason: Option<String>,
}

/// Compares every expectation with what was measured.
pub fn evaluate(expectations: &[Expectation], modes: &[ModeOutcome]) -> Vec<Check> {
    expectations
        .iter()
        .map(|expectation| check(expectation, modes))
        .collect()
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
    match measure(expectation, modes, &mut check.reference) {
        Ok(value) => {
            let within = expectation.at_least.is_none_or(|least| value >= least)
                && expectation.at_most.is_none_or(|most| value <= most);
            check.value = Some(value);
            check.verdict = if within {
                Verdict::Met
            } else {
                Verdict::Missed
            };
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
    let value = statistic(find(&expectation.mode)?, expectation.statistic)
        .ok_or_else(|| "nothing was measured".to_owned())?;
    let Some(reference) = &expectation.relative_to else {
        return Ok(value);
    };
    let outcome = match reference {
        Reference::Mode(mode) => find(mode)?,
        Reference::BestFixed => {
            best_fixed(modes).ok_or_else(|| "no mode fixed:ARM was run".to_owned())?
        }
    };
    *reference_mode = Some(outcome.mode.clone());
    // Over the same rounds, so that a machine that slows down meets both alike. A reference
    // with no connection in the last half does not learn: all of its connections will do.
    let divisor = statistic(outcome, expectation.statistic)
        .or_else(|| statistic(outcome, Statistic::Median))
        .ok_or_else(|| format!("nothing was measured in mode {}", outcome.mode))?;
    if divisor == 0.0 {
        return Err(format!("the reference {} moved nothing", outcome.mode));
    }
    Ok(value / divisor)
}

/// The fixed mode with the highest median goodput; the first of equals.
pub fn best_fixed(modes: &[ModeOutcome]) -> Option<&ModeOutcome> {
    let mut best: Option<(&ModeOutcome, f64)> = None;
    for outcome in modes
        .iter()
        .filter(|outcome| matches!(outcome.mode, Mode::Fixed(_)))
    {
        if let Some(median) = statistic(outcome, Statistic::Median)
            && best.is_none_or(|(_, highest)| median > highest)
        {
            best = Some((outcome, median));
        }
    }
    best.map(|(outcome, _)| outcome)
}

fn statistic(outcome: &ModeOutcome, statistic: Statistic) -> Option<f64> {
    let all = outcome.goodputs_bps();
    match statistic {
        Statistic::Median => stats::median(&all),
        Statistic::MedianLastHalf => stats::median(&outcome.last_half_goodputs_bps()),
        Statistic::Mean => stats::mean(&all),
        Statistic::LowerQuartile => stats::quantile(&all, 0.25),
        Statistic::ConvergedShare => outcome.converged_share(),
        Statistic::Loss => outcome.forward.loss(),
        Statistic::Failures => Some(outcome.failures() as f64),
    }
}

/// One `[[expect]]` table as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    mode: toml::Spanned<String>,
    statistic: toml::Spanned<Statistic>,
    relative_to: Option<toml::Spanned<String>>,
    at_least: Option<toml::Spanned<Bound>>,
    at_most: Option<toml::Spanned<Bound>>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number, or a rate such as \"900mbit\""
)]
enum Bound {
    Number(f64),
    Integer(i64),
    Rate(Rate),
}

impl Table {
    pub(crate) fn check(self, span: Range<usize>) -> Result<Expectation, Fault> {
        let statistic = *self.statistic.get_ref();
        let mode = measured_mode(&self.mode)?;
        if self.at_least.is_none() && self.at_most.is_none() {
            return Err((
                span,
                "expected `at_least` or `at_most` in this table".into(),
            ));
        }
        let relative_to = match &self.relative_to {
            Some(text) if text.get_ref() == "best-fixed" => Some(Reference::BestFixed),
            Some(text) => Some(Reference::Mode(measured_mode(text)?)),
            None => None,
        };
        if let Some(text) = &self.relative_to
            && !statistic.is_goodput()
        {
            return Err((
                text.span(),
                "`relative_to` compares goodput; this statistic is compared as it is".into(),
            ));
        }
        let absolute_goodput = statistic.is_goodput() && relative_to.is_none();
        let bound = |bound: Option<toml::Spanned<Bound>>| {
            let Some(bound) = bound else { return Ok(None) };
            let span = bound.span();
            let value = match (bound.into_inner(), absolute_goodput) {
                (Bound::Rate(rate), true) => rate.bps() as f64,
                (Bound::Number(number), false) => number,
                (Bound::Integer(number), false) => number as f64,
                (_, true) => {
                    return Err((
                        span,
                        "expected a rate such as \"900mbit\", or `relative_to` for a ratio".into(),
                    ));
                }
                (Bound::Rate(_), false) => return Err((span, "expected a number".into())),
            };
            if !value.is_finite() || value < 0.0 {
                return Err((
                    span,
                    format!("expected a number that is not negative, found {value}"),
                ));
            }
            Ok(Some(value))
        };
        Ok(Expectation {
            mode,
            statistic,
            relative_to,
            at_least: bound(self.at_least)?,
            at_most: bound(self.at_most)?,
        })
    }
}

fn measured_mode(text: &toml::Spanned<String>) -> Result<Mode, Fault> {
    match text.get_ref().parse() {
        Ok(Mode::EveryFixed) => Err((
            text.span(),
            "expected one mode, such as fixed:bbr, found \"fixed\", which stands for several"
                .into(),
        )),
        Ok(mode) => Ok(mode),
        Err(error) => Err((text.span(), error.to_string())),
    }
}

#[cfg(test)]
#[path = "expect_tests.rs"]
mod tests;
