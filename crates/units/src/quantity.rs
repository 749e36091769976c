//! Quantities in scenario files, parsed into plain numbers.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use serde::Serialize;
use serde::de::{self, Unexpected, Visitor};

use crate::grammar;

/// A probability, written as a percentage: `"5%"`, `"0.1%"`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Default)]
#[serde(transparent)]
pub struct Probability(f64);

impl Probability {
    /// Probability 0.
    pub const ZERO: Self = Self(0.0);
    /// Probability 1.
    pub const ONE: Self = Self(1.0);

    /// From a fraction; `None` unless it is between 0 and 1.
    pub fn from_fraction(fraction: f64) -> Option<Self> {
        (0.0..=1.0).contains(&fraction).then_some(Self(fraction))
    }

    /// As a fraction between 0 and 1.
    pub fn fraction(self) -> f64 {
        self.0
    }

    /// As a Q32 integer, where 2^32 is certainty: the loss program's scale.
    pub fn q32(self) -> u64 {
        (self.0 * (1u64 << 32) as f64).round() as u64
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Six decimals hide the rounding of binary fractions.
        let text = format!("{:.6}", self.0 * 100.0);
        write!(f, "{}%", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl Probability {
    fn parse_text(text: &str) -> Option<Self> {
        grammar::parse_multiple(text, "%").and_then(|percent| Self::from_fraction(percent / 100.0))
    }
}

/// A rate in bits per second, written with tc's decimal units:
/// `"800kbit"`, `"100mbit"`, `"1.5gbit"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Rate(u64);

impl Rate {
    /// From bits per second.
    pub const fn from_bps(bps: u64) -> Self {
        Self(bps)
    }

    /// In bits per second.
    pub fn bps(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (factor, unit) in [
            (1_000_000_000, "gbit"),
            (1_000_000, "mbit"),
            (1_000, "kbit"),
        ] {
            if self.0 >= factor {
                return write!(f, "{}{unit}", self.0 as f64 / factor as f64);
            }
        }
        write!(f, "{}bit", self.0)
    }
}

impl Rate {
    fn parse_text(text: &str) -> Option<Self> {
        let bps = grammar::bits_per_s(text)?;
        (1_000..=1_000_000_000_000)
            .contains(&bps)
            .then_some(Self(bps))
    }
}

/// A size in bytes, written as an integer or with a unit: `65536`, `"64KiB"`,
/// `"1MB"`. kB, MB, GB are decimal, KiB, MiB, GiB binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Size(u64);

impl Size {
    /// From bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (factor, unit) in [
            (1_000_000, "mb"),
            (1 << 20, "mib"),
            (1_000, "kb"),
            (1 << 10, "kib"),
        ] {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}b", self.0)
    }
}

impl Size {
    fn parse_text(text: &str) -> Option<Self> {
        grammar::parse_bytes(text).and_then(Self::within_range)
    }

    fn within_range(bytes: u64) -> Option<Self> {
        (1..=4_000_000_000).contains(&bytes).then_some(Self(bytes))
    }
}

/// A time in whole seconds, written with a unit: `"1s"`, `"2m"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Seconds(u64);

impl Seconds {
    /// From seconds.
    pub const fn new(seconds: u64) -> Self {
        Self(seconds)
    }

    /// As a number of seconds.
    pub fn get(self) -> u64 {
        self.0
    }

    /// As a span of time.
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0)
    }
}

impl Seconds {
    fn parse_text(text: &str) -> Option<Self> {
        let time = grammar::parse_duration(text)?;
        let whole = time.subsec_nanos() == 0 && (1..=3600).contains(&time.as_secs());
        whole.then_some(Self(time.as_secs()))
    }
}

/// A short span of time, written with a unit: `"10ms"`, `"500us"`, `"0.1s"`.
/// It serializes as a number of µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Default)]
#[serde(transparent)]
pub struct Delay(u64);

impl Delay {
    /// No delay.
    pub const ZERO: Self = Self(0);

    /// From microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self(us)
    }

    /// In microseconds.
    pub fn us(self) -> u64 {
        self.0
    }

    /// In nanoseconds.
    pub fn ns(self) -> u64 {
        self.0 * 1000
    }

    /// As a span of time.
    pub fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (factor, unit) in [(1_000_000, "s"), (1_000, "ms")] {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        match self.0 {
            0 => f.write_str("0ms"),
            us => write!(f, "{us}us"),
        }
    }
}

impl Delay {
    fn parse_text(text: &str) -> Option<Self> {
        let time = grammar::parse_duration(text)?;
        (time <= Duration::from_secs(60)).then_some(Self(time.as_micros() as u64))
    }
}

/// Reads a quantity from text; an error has the expected form.
pub(crate) struct Text<T> {
    pub(crate) expected: &'static str,
    pub(crate) read: fn(&str) -> Option<T>,
    /// Reads a number without a unit.
    pub(crate) whole: fn(u64) -> Option<T>,
}

impl<'de, T> Visitor<'de> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_newtype_struct<D: de::Deserializer<'de>>(self, inner: D) -> Result<T, D::Error> {
        inner.deserialize_any(self)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        let whole = u64::try_from(value).ok().and_then(self.whole);
        whole.ok_or_else(|| E::invalid_type(Unexpected::Signed(value), &self))
    }

    // JSON has positive numbers of this type; TOML never does.
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        (self.whole)(value).ok_or_else(|| E::invalid_type(Unexpected::Unsigned(value), &self))
    }
}

/// Reads a type from text, on the command line and in files. The arguments are the expected text,
/// its pattern, the further form in files, and its function. That form is a number without a unit.
macro_rules! from_text {
    ($type:ty, $expected:literal, $pattern:path, $or:literal, $whole:expr) => {
        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::parse_text(text)
                    .ok_or_else(|| format!("expected {}, found {text:?}", $expected))
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                static PATTERN: LazyLock<String> = LazyLock::new($pattern);
                // Deserializers ignore the name, but for the one that asks for the form.
                deserializer.deserialize_newtype_struct(
                    PATTERN.as_str(),
                    $crate::quantity::Text::<Self> {
                        expected: concat!($expected, $or),
                        read: Self::parse_text,
                        whole: $whole,
                    },
                )
            }
        }
    };
}
pub(crate) use from_text;

from_text!(
    Probability,
    "a percentage from \"0%\" to \"100%\"",
    grammar::percent_pattern,
    "",
    |_| None
);
from_text!(
    Rate,
    "a rate from \"1kbit\" to \"1000gbit\" (units bit, kbit, mbit, gbit)",
    grammar::rate_pattern,
    "",
    |_| None
);
from_text!(
    Size,
    "a size from \"1B\" to \"4000MB\" (units B, kB, MB, GB, KiB, MiB, GiB)",
    grammar::size_pattern,
    ", or a whole number of bytes",
    Self::within_range
);
from_text!(
    Seconds,
    "a time in whole seconds from \"1s\" to \"60m\" (units s, m)",
    grammar::time_pattern,
    "",
    |_| None
);
from_text!(
    Delay,
    "a time from \"0ms\" to \"60s\" (units us, ms, s)",
    grammar::time_pattern,
    "",
    |_| None
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities() {
        for (text, fraction, q32) in [
            ("0%", 0.0, 0),
            ("5%", 0.05, 214_748_365),
            ("0.1%", 0.001, 4_294_967),
            ("50%", 0.5, 1 << 31),
            ("100%", 1.0, 1 << 32),
        ] {
            let parsed: Probability = text.parse().unwrap();
            assert!((parsed.fraction() - fraction).abs() < 1e-12, "{text}");
            assert_eq!(parsed.q32(), q32, "{text}");
            assert_eq!(parsed.to_string(), text);
        }
        for text in [
            "", "5", "%", "-1%", "101%", "5 %%", "1e1%", ".5%", "5.%", "nan%", "+5%",
        ] {
            let error = text.parse::<Probability>().unwrap_err();
            assert!(error.contains("expected a percentage"), "{text}: {error}");
        }
    }

    #[test]
    fn rates() {
        for (text, bps) in [
            ("1kbit", 1_000),
            ("100mbit", 100_000_000),
            ("1.5gbit", 1_500_000_000),
            ("9600bit", 9_600),
            ("10 mbit", 10_000_000),
        ] {
            assert_eq!(text.parse::<Rate>().unwrap().bps(), bps, "{text}");
        }
        for text in [
            "", "1", "mbit", "1mbps", "0bit", "999bit", "2000gbit", "-1mbit",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        assert_eq!(Rate::from_bps(1_500_000_000).to_string(), "1.5gbit");
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("1b", 1),
            ("64kib", 65_536),
            ("1mb", 1_000_000),
            ("2mib", 2 << 20),
        ] {
            assert_eq!(text.parse::<Size>().unwrap().bytes(), bytes, "{text}");
            assert_eq!(
                text.parse::<Size>()
                    .unwrap()
                    .to_string()
                    .parse::<Size>()
                    .unwrap()
                    .bytes(),
                bytes
            );
        }
        for text in ["", "0b", "0", "5gb", "5000mb", "kb", "1 kilobyte"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn delays() {
        for (text, us, shown) in [
            ("10ms", 10_000, "10ms"),
            ("500us", 500, "500us"),
            ("0.1s", 100_000, "100ms"),
            ("1.5ms", 1_500, "1500us"),
            ("0ms", 0, "0ms"),
            ("10s", 10_000_000, "10s"),
        ] {
            let parsed: Delay = text.parse().unwrap();
            assert_eq!((parsed.us(), parsed.to_string().as_str()), (us, shown));
        }
        for text in ["", "10", "61s", "-1ms", "2m", "ms", "1e3ms"] {
            assert!(text.parse::<Delay>().is_err(), "{text}");
        }
    }

    /// Messages use the units of the grammar.
    #[test]
    fn units_are_those_of_the_grammar() {
        assert!("".parse::<Rate>().unwrap_err().contains(grammar::RATES));
        assert!("".parse::<Size>().unwrap_err().contains(grammar::SIZES));
    }

    #[test]
    fn times() {
        assert_eq!("1s".parse::<Seconds>().unwrap().get(), 1);
        assert_eq!("2m".parse::<Seconds>().unwrap().get(), 120);
        for text in ["", "1", "0s", "1.5s", "2h", "61m", "-1s"] {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
    }

    #[test]
    fn short_times() {
        for (text, us) in [
            ("0us", 0),
            ("500us", 500),
            ("0.3ms", 300),
            ("5ms", 5_000),
            ("2s", 2_000_000),
        ] {
            assert_eq!(text.parse::<Delay>().unwrap().us(), us, "{text}");
        }
        assert_eq!(Delay::from_us(1_500).to_string(), "1500us");
        for text in ["", "1", "5m", "0.5us", "61s", "-1ms"] {
            assert!(text.parse::<Delay>().is_err(), "{text}");
        }
    }
}
