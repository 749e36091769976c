//! How late packets were: a histogram of fixed size with bounded relative error.

use serde::Serialize;
use thalweg_units::buckets::Buckets;

/// Counts of spans of time in nanoseconds. A percentile is at most 1/64 above
/// the true value, the maximum is exact.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    buckets: Buckets,
    max_ns: u64,
}

/// Percentiles of the delay error: when a packet had been written, minus when it
/// should have left; in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half of the packets were no later.
    pub p50_us: f64,
    /// Nine of ten were no later.
    pub p90_us: f64,
    /// Ninety-nine of a hundred were no later.
    pub p99_us: f64,
    /// None was later.
    pub max_us: f64,
}

impl Histogram {
    pub(crate) fn add(&mut self, ns: u64) {
        self.buckets.add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    pub(crate) fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50_us: self.percentile_us(50) as f64 / 1e3,
            p90_us: self.percentile_us(90) as f64 / 1e3,
            p99_us: self.percentile_us(99) as f64 / 1e3,
            max_us: self.max_ns as f64 / 1e3,
        }
    }

    /// The nearest-rank percentile in nanoseconds, rounded up to its bucket's end.
    fn percentile_us(&self, percent: u64) -> u64 {
        let rank = (self.buckets.total() * percent).div_ceil(100);
        let found = self.buckets.at_rank(rank);
        found.map_or(0, |(_, last)| last.min(self.max_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentiles(), Percentiles::default());
        for us in 1..=1000 {
            histogram.add(us * 1000);
        }
        let found = histogram.percentiles();
        for (value, expected) in [
            (found.p50_us, 500.0),
            (found.p90_us, 900.0),
            (found.p99_us, 990.0),
        ] {
            assert!(
                (expected..expected * (1.0 + 1.0 / 64.0)).contains(&value),
                "{value} for {expected}"
            );
        }
        assert_eq!(found.max_us, 1000.0);
    }
}
