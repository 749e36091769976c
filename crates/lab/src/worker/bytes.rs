//! The sizes of flows and responses.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};
use thalweg_units::random::{Random, mix};

use super::calls::HEAD;

/// The bytes of each of a sender's flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Bytes {
    /// All alike.
    Each(u64),
    /// Lognormal. A seed gives the same sizes in the same order.
    Lognormal { median: u64, mean: u64, seed: u64 },
}

impl Bytes {
    /// The bytes of the `n`-th flow, counted from 0.
    pub(crate) fn of(self, n: usize) -> u64 {
        match self {
            Self::Each(bytes) => bytes,
            Self::Lognormal { median, mean, seed } => {
                // mean / median = exp(sigma²/2).
                let sigma = (2.0 * (mean as f64 / median as f64).ln()).sqrt();
                let bytes = median as f64 * (sigma * normal(mix(seed) ^ n as u64)).exp();
                (bytes as u64).max(HEAD as u64)
            }
        }
    }
}

/// One standard normal number of a seed (Box and Muller 1958).
fn normal(seed: u64) -> f64 {
    let mut random = Random::new(seed);
    // 1 − fraction is above 0.
    let radius = (-2.0 * (1.0 - random.fraction()).ln()).sqrt();
    radius * (TAU * random.fraction()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_median_and_the_spread_that_were_asked_for() {
        let bytes = |seed| Bytes::Lognormal {
            median: 17_000,
            mean: 340_000,
            seed,
        };
        let mut sizes: Vec<u64> = (0..10_000).map(|n| bytes(1).of(n)).collect();
        assert_eq!(sizes[7], bytes(1).of(7));
        assert_ne!(sizes[7], bytes(2).of(7));
        sizes.sort_unstable();
        // sigma = sqrt(2 ln 20) = 2.448; the normal quantile of 0.9 is 1.2816. Of 10,000 values the
        // standard error of the logarithm is 0.031 at the median, 0.042 there.
        for (share, expected) in [(0.5, 17_000.0), (0.9, 17_000.0 * (1.2816 * 2.448f64).exp())] {
            let found = sizes[(share * 10_000.0) as usize] as f64;
            assert!((found / expected).ln().abs() < 0.13, "{share}: {found}");
        }
        assert!(sizes[0] >= HEAD as u64);
        assert_eq!(Bytes::Each(5).of(3), 5);
    }
}
