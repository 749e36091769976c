//! Quantities that only a link has.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thalweg_units::grammar::{self, SIZES};
use thalweg_units::{Delay, Size};

use crate::tun::MTU_BYTES;

/// How much may wait before the bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueLimit {
    /// Bytes of IP packets, one full-sized packet at least.
    Bytes(Size),
    /// A multiple of the bandwidth-delay product: rate × twice the one-way delay.
    Bdp(f64),
}

impl QueueLimit {
    /// However small the product, this much may wait: ten full-sized packets.
    pub const FLOOR_BYTES: u64 = 15_000;

    /// In bytes, for a direction's rate and one-way delay.
    pub fn in_bytes(self, rate_bps: u64, delay: Delay) -> u64 {
        match self {
            Self::Bytes(size) => size.bytes(),
            Self::Bdp(factor) => {
                let bdp_bytes = rate_bps as f64 / 8.0 * 2.0 * delay.ns() as f64 / 1e9;
                ((factor * bdp_bytes).round() as u64).max(Self::FLOOR_BYTES)
            }
        }
    }
}

impl fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(size) => size.fmt(f),
            Self::Bdp(factor) => write!(f, "{factor}bdp"),
        }
    }
}

impl FromStr for QueueLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(factor) = grammar::parse_multiple(text, "bdp")
            && (0.001..=1000.0).contains(&factor)
        {
            return Ok(Self::Bdp(factor));
        }
        let size: Option<Size> = text.parse().ok();
        // Into a smaller queue no full-sized packet ever fits: what sends them stands still.
        let size = size.filter(|size| size.bytes() >= MTU_BYTES as u64);
        size.map(Self::Bytes).ok_or_else(|| {
            format!(
                "expected a multiple of the bandwidth-delay product from \"0.001bdp\" to \
                 \"1000bdp\", or a size of at least \"{MTU_BYTES}B\", one packet (units {SIZES}), \
                 found {text:?}"
            )
        })
    }
}

/// From where on waiting packets are marked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Threshold {
    /// More than this waits, the packet itself included.
    Bytes(Size),
    /// The packet will be gone from the queue only after more than this time.
    Time(Delay),
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = text.parse().map(Self::Bytes);
        let time = text.parse().map(Self::Time);
        size.or(time).map_err(|_: String| {
            format!(
                "expected a size (units {SIZES}) such as \"30kb\", or a time \
                 (units us, ms, s) such as \"1ms\", found {text:?}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_limits() {
        let delay: Delay = "20ms".parse().unwrap();
        for (text, bytes) in [
            // 100 Mbit/s for 40 ms are 4 Mbit.
            ("1bdp", 500_000),
            ("0.5bdp", 250_000),
            ("0.001bdp", 15_000),
            ("64kib", 65_536),
            ("1500b", 1_500),
        ] {
            let limit: QueueLimit = text.parse().unwrap();
            assert_eq!(limit.in_bytes(100_000_000, delay), bytes, "{text}");
        }
        for text in [
            "", "1", "bdp", "0bdp", "2000bdp", "-1bdp", "1dbp", "5ms", "1499b",
        ] {
            let error = text.parse::<QueueLimit>().unwrap_err();
            assert!(error.contains("bandwidth-delay"), "{text}: {error}");
        }
    }

    #[test]
    fn thresholds() {
        assert_eq!(
            "30kb".parse(),
            Ok(Threshold::Bytes(Size::from_bytes(30_000)))
        );
        assert_eq!("1ms".parse(), Ok(Threshold::Time(Delay::from_us(1000))));
        for text in ["", "5", "5%", "ms", "1bdp"] {
            assert!(text.parse::<Threshold>().is_err(), "{text}");
        }
    }
}
