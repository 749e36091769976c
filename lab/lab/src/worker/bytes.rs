//! The sizes of flows and responses.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};
use thalweg_units::random::{Random, mix};

use super::calls::{HEAD, MOST_BYTES};

/// The bytes of each of a sender's flows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Bytes {
    /// All alike.
    Each(u64),
    /// Lognormal. A seed gives the same sizes in the same order.
    Lognormal {
        median: u64,
        mean: u64,
        tail: Option<Tail>,
        seed: u64,
    },
}

/// A part of the sizes by a Pareto distribution that is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tail {
    /// The part, 0 to 1.
    pub(crate) share: f64,
    pub(crate) least: u64,
    /// The exponent.
    pub(crate) shape: f64,
    /// Where it is cut off, as are all sizes.
    pub(crate) most: u64,
}

impl Tail {
    /// A size, if a draw says that it is one of these.
    fn draw_size(self, seed: u64) -> Option<f64> {
        // Another seed than that of the other sizes.
        let mut random = Random::new(!seed);
        let is_one = random.fraction() < self.share;
        // By inversion; 1 − fraction is above 0.
        is_one.then(|| self.least as f64 * (1.0 - random.fraction()).powf(-1.0 / self.shape))
    }
}

impl Bytes {
    /// The bytes of the `n`-th flow, counted from 0.
    pub(crate) fn of_flow(self, n: usize) -> u64 {
        match self {
            Self::Each(bytes) => bytes,
            Self::Lognormal {
                median,
                mean,
                tail,
                seed,
            } => {
                let drawn = mix(seed) ^ n as u64;
                let body = || {
                    // mean / median = exp(sigma²/2).
                    let sigma = (2.0 * (mean as f64 / median as f64).ln()).sqrt();
                    median as f64 * (sigma * standard_normal(drawn)).exp()
                };
                let bytes = tail
                    .and_then(|tail| tail.draw_size(drawn))
                    .unwrap_or_else(body);
                let most = tail.map_or(MOST_BYTES, |tail| tail.most);
                (bytes as u64).min(most).max(HEAD as u64)
            }
        }
    }
}

/// One standard normal number of a seed (Box and Muller 1958).
fn standard_normal(seed: u64) -> f64 {
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
            tail: None,
            seed,
        };
        let mut sizes: Vec<u64> = (0..10_000).map(|n| bytes(1).of_flow(n)).collect();
        assert_eq!(sizes[7], bytes(1).of_flow(7));
        assert_ne!(sizes[7], bytes(2).of_flow(7));
        sizes.sort_unstable();
        // sigma = sqrt(2 ln 20) = 2.448; the normal quantile of 0.9 is 1.2816. Of 10,000 values the
        // standard error of the logarithm is 0.031 at the median, 0.042 there.
        for (share, expected) in [(0.5, 17_000.0), (0.9, 17_000.0 * (1.2816 * 2.448f64).exp())] {
            let found = sizes[(share * 10_000.0) as usize] as f64;
            assert!((found / expected).ln().abs() < 0.13, "{share}: {found}");
        }
        assert!(sizes[0] >= HEAD as u64);
        assert_eq!(Bytes::Each(5).of_flow(3), 5);
    }

    #[test]
    fn the_tail_is_a_pareto_distribution_that_is_cut_off() {
        let tail = Tail {
            share: 0.07,
            least: 133_000,
            shape: 1.1,
            most: 5_000_000,
        };
        let sizes = Bytes::Lognormal {
            median: 11_579,
            mean: 27_600,
            tail: Some(tail),
            seed: 3,
        };
        let sizes: Vec<u64> = (0..100_000).map(|n| sizes.of_flow(n)).collect();
        let above = |bytes: u64| sizes.iter().filter(|size| **size > bytes).count() as f64 / 1e5;
        // Of the body, ln(133/11.579)/1.318 = 1.852 deviations, 3.2 % lie above 133 kB, and
        // 2.163 deviations for 200 kB, 1.5 %. Standard deviations are below 0.1 %.
        let both = |part: f64, body: f64| 0.07 * part + 0.93 * body;
        for (bytes, expected) in [
            (133_000, both(1.0, 0.0320)),
            (200_000, both((133.0f64 / 200.0).powf(1.1), 0.0153)),
            (4_999_999, both((133.0f64 / 5000.0).powf(1.1), 0.0)),
        ] {
            let found = above(bytes);
            assert!((found - expected).abs() < 0.005, "{bytes}: {found}");
        }
        assert_eq!(sizes.iter().max(), Some(&5_000_000));
    }
}
