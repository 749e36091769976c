//! The outcome that a scenario expects, and whether a run met it.
//!
//! An expectation compares one statistic of one mode with a number, or with the
//! same statistic of a reference that was measured in the same run. Where a mode
//! it needs was not measured it is "not checked": neither met nor missed.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize, Serializer};

use crate::measure::{Unit, time};
use crate::mode::Mode;
use crate::outcome::ModeOutcome;
use crate::scenario::Fault;
pub use crate::statistic::Statistic;
use crate::statistic::{Query, Scope};
use crate::units::grammar::is_congestion_control;
use crate::units::{Delay, Rate};

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
    /// The arm of [`Statistic::ArmShare`].
    pub arm: Option<String>,
    /// Only flows of this class.
    pub class: Option<String>,
    /// Only towards this one of several hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Compared with this, as a ratio; none: compared as it is.
    pub relative_to: Option<Reference>,
    /// Met only if the value is at least this (ratio, or in the statistic's unit).
    pub at_least: Option<f64>,
    /// Met only if the value is at most this.
    pub at_most: Option<f64>,
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.mode, self.statistic.words())?;
        let words = [
            ("on", &self.arm),
            ("of", &self.class),
            ("towards", &self.host),
        ];
        for (preposition, name) in words {
            if let Some(name) = name {
                write!(f, " ({preposition} {name})")?;
            }
        }
        let bound = |value: f64| match (&self.relative_to, self.statistic.unit()) {
            (Some(reference), _) => format!("{value} × that of {reference}"),
            (None, Unit::BitsPerSecond) => Rate::from_bps(value as u64).to_string(),
            (None, Unit::Microseconds) => time(value),
            (None, _) => value.to_string(),
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
    /// The value that was compared (ratio, or in the statistic's unit).
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
    let result = match &expectation.host {
        // As if that host were alone.
        Some(host) => {
            let towards: Vec<ModeOutcome> =
                modes.iter().filter_map(|mode| mode.towards(host)).collect();
            measure(expectation, &towards, &mut check.reference)
        }
        None => measure(expectation, modes, &mut check.reference),
    };
    match result {
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
    // Over the same rounds, so that a machine that slows down meets both alike. A reference
    // with no connection in the last half does not learn: all of its connections will do.
    let all = Query {
        statistic: match expectation.statistic {
            Statistic::MedianLastHalf => Statistic::Median,
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

/// The fixed mode with the highest median goodput; the first of equals.
pub fn best_fixed(modes: &[ModeOutcome]) -> Option<&ModeOutcome> {
    let (outcome, _) = Query::from(Statistic::Median).best_fixed(modes, 0)?;
    Some(outcome)
}

/// One `[[expect]]` table as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    mode: toml::Spanned<String>,
    statistic: toml::Spanned<Statistic>,
    arm: Option<toml::Spanned<String>>,
    class: Option<toml::Spanned<String>>,
    host: Option<toml::Spanned<String>>,
    relative_to: Option<toml::Spanned<String>>,
    at_least: Option<toml::Spanned<Bound>>,
    at_most: Option<toml::Spanned<Bound>>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number, a rate such as \"900mbit\", or a time such as \"5ms\""
)]
enum Bound {
    Number(f64),
    Integer(i64),
    Rate(Rate),
    Time(Delay),
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
            && !statistic.is_comparable()
        {
            return Err((
                text.span(),
                "`relative_to` compares goodput, times, retransmissions, fairness and shares; this statistic is compared as it is"
                    .into(),
            ));
        }
        self.check_subject(&span)?;
        let unit = match relative_to {
            Some(_) => Unit::Number,
            None => statistic.unit(),
        };
        let bound = |bound: Option<toml::Spanned<Bound>>| {
            let Some(bound) = bound else { return Ok(None) };
            let span = bound.span();
            let value = match (bound.into_inner(), unit) {
                (Bound::Rate(rate), Unit::BitsPerSecond) => rate.bps() as f64,
                (Bound::Time(time), Unit::Microseconds) => time.us() as f64,
                (Bound::Number(number), Unit::Share | Unit::Number) => number,
                (Bound::Integer(number), Unit::Share | Unit::Number) => number as f64,
                (_, Unit::BitsPerSecond) => {
                    return Err((
                        span,
                        "expected a rate such as \"900mbit\", or `relative_to` for a ratio".into(),
                    ));
                }
                (_, Unit::Microseconds) => {
                    return Err((
                        span,
                        "expected a time such as \"5ms\", or `relative_to` for a ratio".into(),
                    ));
                }
                (_, Unit::Share | Unit::Number) => return Err((span, "expected a number".into())),
            };
            let negative = statistic.may_be_negative();
            if value.is_finite() && value < 0.0 && negative {
                return Ok(Some(value));
            }
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
            arm: self.arm.map(toml::Spanned::into_inner),
            class: self.class.map(toml::Spanned::into_inner),
            host: self.host.map(toml::Spanned::into_inner),
            relative_to,
            at_least: bound(self.at_least)?,
            at_most: bound(self.at_most)?,
        })
    }
}

impl Table {
    /// Checks `arm` and `class` against the statistic.
    fn check_subject(&self, span: &Range<usize>) -> Result<(), Fault> {
        let statistic = *self.statistic.get_ref();
        match (&self.arm, statistic) {
            (None, Statistic::ArmShare) => {
                return Err((
                    span.clone(),
                    "expected `arm`, the congestion control whose share it is".into(),
                ));
            }
            (Some(arm), Statistic::ArmShare) if !is_congestion_control(arm.get_ref()) => {
                return Err((
                    arm.span(),
                    format!(
                        "expected the name of a congestion control, found {:?}",
                        arm.get_ref()
                    ),
                ));
            }
            (Some(arm), other) if other != Statistic::ArmShare => {
                return Err((
                    arm.span(),
                    "`arm` goes with the statistic arm-share only".into(),
                ));
            }
            _ => {}
        }
        if let Some(host) = &self.host
            && statistic.scope() == Scope::Hosts
        {
            return Err((
                host.span(),
                format!("{} is about all hosts together", statistic.key()),
            ));
        }
        match &self.class {
            Some(class) if !statistic.takes_class() => Err((
                class.span(),
                format!("`class` has no effect on {}", statistic.key()),
            )),
            _ => Ok(()),
        }
    }

    /// The modes that it names, with their places.
    pub(crate) fn modes(&self) -> impl Iterator<Item = &toml::Spanned<String>> {
        [&self.mode].into_iter().chain(&self.relative_to)
    }

    /// The host, with its place.
    pub(crate) fn host(&self) -> Option<&toml::Spanned<String>> {
        self.host.as_ref()
    }

    /// Checks that the statistic says something without `host`, where there are
    /// several hosts or only one.
    pub(crate) fn check_without_host(&self, several: bool) -> Result<(), Fault> {
        let statistic = self.statistic.get_ref();
        match (several, statistic.scope()) {
            (true, Scope::Path) => Err((
                self.statistic.span(),
                format!(
                    "expected `host` beside {}, which says nothing of several paths together",
                    statistic.key()
                ),
            )),
            (false, Scope::Hosts) => Err((
                self.statistic.span(),
                format!("{} goes with [[host]] tables only", statistic.key()),
            )),
            _ => Ok(()),
        }
    }

    /// The class, with its place.
    pub(crate) fn class(&self) -> Option<&toml::Spanned<String>> {
        self.class.as_ref()
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
