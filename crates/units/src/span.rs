//! Times of simulated networks, finer than [`Delay`](crate::Delay).

use std::fmt;
use std::sync::LazyLock;

use serde::Serialize;

use crate::grammar;
use crate::quantity::from_text;

/// A span of simulated time, written with a unit: `"80ns"`, `"1.5us"`, `"10ms"`, `"2s"`.
/// It serializes as a number of picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Default)]
#[serde(transparent)]
pub struct Span(u64);

impl Span {
    /// From picoseconds.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// In picoseconds.
    pub fn ps(self) -> u64 {
        self.0
    }
}

impl Span {
    fn parse_text(text: &str) -> Option<Self> {
        let ps = grammar::time_ps(text)?;
        // An hour.
        (ps <= 3_600_000_000_000_000).then_some(Self(ps as u64))
    }
}

from_text!(
    Span,
    "a time from \"0ns\" to \"3600s\" (units ns, us, ms, s)",
    grammar::time_pattern,
    "",
    |_| None
);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (factor, unit) in [
            (1_000_000_000_000, "s"),
            (1_000_000_000, "ms"),
            (1_000_000, "us"),
        ] {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}ns", self.0 as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (text, ps, shown) in [
            ("80ns", 80_000, "80ns"),
            ("0.5ns", 500, "0.5ns"),
            ("1.5us", 1_500_000, "1500ns"),
            ("0.3ms", 300_000_000, "300us"),
            ("2s", 2_000_000_000_000, "2s"),
            ("0s", 0, "0ns"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(
                (span.ps(), span.to_string().as_str()),
                (ps, shown),
                "{text}"
            );
        }
        for text in ["", "1", "1ps", "0.0001ns", "-1us", "3601s", "61m"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
