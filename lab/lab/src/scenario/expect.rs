//! The `[[expect]]` tables: the expected outcome of a scenario.
//!
//! An expectation compares one statistic of one mode with a number, or with the same statistic of a
//! reference from the same run.

use std::fmt;

use serde::{Serialize, Serializer};
use thalweg_units::figures::time_text;
use thalweg_units::reader::{self, Table};
use thalweg_units::schema;
use toml::de::DeValue;

use super::host::{Host, check_name};
use super::policy::PolicyFile;
use super::traffic::Traffic;
use crate::figure::Unit;
use crate::mode::{Mode, ModeError};
use crate::statistic::{Scope, Statistic};
use crate::units::grammar::{CONGESTION_CONTROL, is_congestion_control};
use crate::units::{Delay, Rate};

/// A reference that a statistic is compared with.
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
    /// The mode that is judged.
    pub mode: Mode,
    /// The statistic that is compared.
    pub statistic: Statistic,
    /// The arm of [`Statistic::ArmShare`].
    pub arm: Option<String>,
    /// Only flows of this class.
    pub class: Option<String>,
    /// Only towards this host, of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The value is compared as a ratio to this; none: by itself.
    pub relative_to: Option<Reference>,
    /// Lower bound: a ratio, or in the statistic's unit.
    pub at_least: Option<f64>,
    /// Upper bound.
    pub at_most: Option<f64>,
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.mode, self.statistic.reader_name())?;
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
            (None, Unit::Microseconds) => time_text(value),
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

/// The scenario that expectations belong to. Parts with faults are none.
pub(super) struct Known<'a> {
    pub(super) traffic: Option<&'a Traffic>,
    pub(super) hosts: Option<&'a [Host]>,
    pub(super) policies: Option<&'a [PolicyFile]>,
}

impl Known<'_> {
    /// Reads one `[[expect]]` table; none if there is a fault.
    pub(super) fn read_expectation(&self, mut table: Table<'_>) -> Option<Expectation> {
        let mode = self.take_mode(&mut table, "mode");
        table.declare_required("mode");
        if !table.has("mode") {
            table.fault(table.at, Some("mode"), "nothing", ModeError::EXPECTED);
        }
        let statistic: Option<Statistic> = table.needed("statistic");
        let relative_to = match table.peek("relative_to").and_then(DeValue::as_str) {
            Some("best-fixed") => {
                table.take("relative_to");
                Some(Reference::BestFixed)
            }
            _ => self
                .take_mode(&mut table, "relative_to")
                .map(Reference::Mode),
        };
        table.declare_key("relative_to", || {
            schema::any_of([schema::only("best-fixed"), mode_form()])
        });
        let arm: Option<String> = table.value("arm");
        let class: Option<String> = table.value("class");
        let host: Option<String> = table.value("host");
        for key in ["at_least", "at_most"] {
            let forms = || [schema::any_number(), schema::rate(), schema::time()];
            table.declare_key(key, || schema::any_of(forms()));
        }
        // The form of the bounds depends on it.
        let statistic = statistic?;
        let unit = match table.has("relative_to") {
            true => Unit::Number,
            false => statistic.unit(),
        };
        let at_least = take_bound(&mut table, "at_least", unit, statistic);
        let at_most = take_bound(&mut table, "at_most", unit, statistic);
        table.refuse_unknown_keys();
        let expectation = Expectation {
            mode: mode?,
            statistic,
            arm,
            class,
            host,
            relative_to,
            at_least,
            at_most,
        };
        if table.is_sound() {
            self.check_keys(&table, &expectation);
        }
        table.is_sound().then_some(expectation)
    }

    /// Takes one mode that can be measured.
    fn take_mode(&self, table: &mut Table<'_>, key: &'static str) -> Option<Mode> {
        let mode = |value: &DeValue<'_>| value.as_str()?.parse().ok();
        match table.optional(key, mode, ModeError::EXPECTED, mode_form)? {
            Mode::EveryFixed => {
                let expected = "one mode, such as fixed:bbr";
                table.wrong(key, "\"fixed\", which stands for several", expected);
                None
            }
            Mode::Policy(name) if !self.has_policy(&name) => {
                let names = self.policies.unwrap_or_default().iter();
                let names: Vec<&str> = names.map(|policy| policy.name.as_str()).collect();
                let expected = match &names[..] {
                    [] => "another mode: there are no [[policy]] tables".to_owned(),
                    names => format!("one of the policies ({})", names.join(", ")),
                };
                table.wrong(key, format!("policy {name:?}"), expected);
                None
            }
            mode => Some(mode),
        }
    }

    fn has_policy(&self, name: &str) -> bool {
        self.policies
            .is_none_or(|policies| policies.iter().any(|policy| policy.name == name))
    }

    /// Checks the keys against each other and the scenario.
    fn check_keys(&self, table: &Table<'_>, expectation: &Expectation) {
        let statistic = expectation.statistic;
        let key = statistic.key();
        if expectation.at_least.is_none() && expectation.at_most.is_none() {
            table.fault_here("no bound", "`at_least` or `at_most` in this table");
        }
        if let (Some(least), Some(most)) = (expectation.at_least, expectation.at_most)
            && least > most
        {
            let expected = "at most `at_most`: no value is within both bounds";
            table.wrong("at_least", "a bound above `at_most`", expected);
        }
        if expectation.relative_to.is_some() && !statistic.is_comparable() {
            let expected = "goodput, times, retransmissions, fairness or shares to be compared";
            table.wrong("relative_to", format!("it beside {key}"), expected);
        }
        match (&expectation.arm, statistic) {
            (None, Statistic::ArmShare) => {
                let expected = "the congestion control whose share it is";
                table.wrong("arm", "nothing", expected);
            }
            (Some(arm), Statistic::ArmShare) if !is_congestion_control(arm) => {
                table.wrong("arm", format!("{arm:?}"), CONGESTION_CONTROL);
            }
            (Some(_), other) if other != Statistic::ArmShare => {
                table.wrong(
                    "arm",
                    format!("it beside {key}"),
                    "it beside arm-share only",
                );
            }
            _ => {}
        }
        if let (Some(class), Some(traffic)) = (&expectation.class, self.traffic) {
            let classes = traffic.kind.flow_classes();
            if !statistic.takes_class() {
                let expected = "none: it is about all flows";
                table.wrong("class", format!("it beside {key}"), expected);
            } else if !classes.contains(&class.as_str()) {
                let expected = match &classes[..] {
                    [] => "none: this kind of traffic has no classes of flows".to_owned(),
                    classes => format!("one of this traffic's classes ({})", classes.join(", ")),
                };
                table.wrong("class", format!("{class:?}"), expected);
            }
        }
        if let Some(hosts) = self.hosts {
            check_host(table, expectation, hosts);
        }
    }
}

fn mode_form() -> schema::Form {
    schema::pattern(Mode::PATTERN)
}

/// Checks that an expectation names one of several hosts if it must.
fn check_host(table: &Table<'_>, expectation: &Expectation, hosts: &[Host]) {
    let (key, scope) = (expectation.statistic.key(), expectation.statistic.scope());
    match (&expectation.host, scope) {
        (Some(_), Scope::Hosts | Scope::Run) => {
            let expected = "none: it is about all hosts together";
            table.wrong("host", format!("it beside {key}"), expected);
        }
        (Some(name), _) => check_name(table, name, hosts),
        (None, Scope::Path) if !hosts.is_empty() => {
            let expected = "`host` beside it, which says nothing of several paths together";
            table.wrong("statistic", key, expected);
        }
        (None, Scope::Hosts) if hosts.is_empty() => {
            table.wrong("statistic", key, "[[host]] tables, which it is about");
        }
        _ => {}
    }
}

/// Takes a bound in the unit of its statistic.
fn take_bound(
    table: &mut Table<'_>,
    key: &'static str,
    unit: Unit,
    statistic: Statistic,
) -> Option<f64> {
    let or_ratio = "or a ratio with `relative_to`";
    match unit {
        Unit::BitsPerSecond => {
            let rate = |value: &DeValue<'_>| value.as_str()?.parse::<Rate>().ok();
            let expected = format!("{}, {or_ratio}", reader::expected_form::<Rate>());
            let rate = table.optional(key, rate, &expected, schema::rate);
            rate.map(|rate| rate.bps() as f64)
        }
        Unit::Microseconds => {
            let time = |value: &DeValue<'_>| value.as_str()?.parse::<Delay>().ok();
            let expected = format!("{}, {or_ratio}", reader::expected_form::<Delay>());
            let time = table.optional(key, time, &expected, schema::time);
            time.map(|time| time.us() as f64)
        }
        Unit::Share | Unit::Number => {
            let negative = statistic.may_be_negative();
            let fits = |value: &f64| value.is_finite() && (*value >= 0.0 || negative);
            let number = |value: &DeValue<'_>| reader::any_number(value).filter(fits);
            let expected = match negative {
                true => "a number",
                false => "a number that is not negative",
            };
            table.optional(key, number, expected, schema::any_number)
        }
    }
}

#[cfg(test)]
#[path = "expect_tests.rs"]
mod tests;
