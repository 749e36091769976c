//! Units of figures, and the direction in which each improves.

use serde::Serialize;
use thalweg_units::figures::{rate_text, time_text};

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Bits per second.
    #[serde(rename = "bit/s")]
    BitsPerSecond,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// A share of a whole, 0 to 1.
    #[serde(rename = "share")]
    Share,
    /// A count, or a number without a unit.
    #[serde(rename = "number")]
    Number,
}

impl Unit {
    /// The figure with its unit. An infinite one was never reached.
    pub fn with_unit(self, value: f64) -> String {
        if value.is_infinite() {
            return "not reached".into();
        }
        match self {
            Self::BitsPerSecond => rate_text(value),
            Self::Microseconds => time_text(value),
            Self::Share => format!("{:.2}%", value * 100.0),
            Self::Number if value.fract() == 0.0 => format!("{value:.0}"),
            Self::Number => format!("{value:.3}"),
        }
    }
}

/// The direction in which a figure improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// A larger value is better.
    Higher,
    /// A smaller value is better.
    Lower,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_three_figures() {
        for (us, text) in [
            (0.0, "0.00 µs"),
            (48.0, "48.0 µs"),
            (999.7, "1.00 ms"),
            (12_345.0, "12.3 ms"),
            (2_500_000.0, "2.50 s"),
        ] {
            assert_eq!(time_text(us), text);
        }
    }
}
