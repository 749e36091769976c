//! Times of simulated networks, finer than [`Delay`](crate::Delay).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::grammar;

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

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        grammar::time_ps(text)
            // An hour.
            .filter(|&ps| ps <= 3_600_000_000_000_000)
            .map(|ps| Self(ps as u64))
            .ok_or_else(|| {
                format!(
                    "expected a time from \"0ns\" to \"3600s\" (units ns, us, ms, s), \
                     found {text:?}"
                )
            })
    }
}

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

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl de::Visitor<'_> for Text {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"1us\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Span, E> {
                Err(E::custom(format!(
                    "expected a time with its unit such as \"1us\", found the integer {value}"
                )))
            }
        }

        deserializer.deserialize_any(Text)
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
