//! Percentiles of times in constant memory.

use thalweg_units::buckets::{Bounds, Buckets};

use crate::Time;

/// Percentiles are within 1.6 %, mean and maximum are exact.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    buckets: Buckets,
    sum_ps: u128,
    max: Time,
}

/// Midpoint of a bucket, ns.
fn bucket_midpoint((first, last): Bounds) -> f64 {
    first as f64 + (last - first) as f64 / 2.0
}

impl Histogram {
    #[inline]
    pub fn record_time(&mut self, time: Time) {
        self.buckets.add(time.ps() / 1_000);
        self.sum_ps += u128::from(time.ps());
        self.max = self.max.max(time);
    }

    /// Mean in µs, exact; 0 without values.
    pub fn mean_us(&self) -> f64 {
        match self.buckets.total() {
            0 => 0.0,
            count => self.sum_ps as f64 / count as f64 * 1e-6,
        }
    }

    pub fn max_us(&self) -> f64 {
        self.max.us()
    }

    /// Each value that occurs, µs, and the share of values that do not exceed it.
    pub fn cumulative_shares(&self) -> Vec<(f64, f64)> {
        let total = self.buckets.total() as f64;
        let mut seen = 0;
        (self.buckets.filled())
            .map(|(bounds, count)| {
                seen += count;
                (self.value_us(bounds), seen as f64 / total)
            })
            .collect()
    }

    /// The least value, µs, that this share of the values does not exceed.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let rank = (share * self.buckets.total() as f64).ceil().max(1.0) as u64;
        let found = self.buckets.at_rank(rank);
        found.map_or(0.0, |bounds| self.value_us(bounds))
    }

    fn value_us(&self, bounds: Bounds) -> f64 {
        (bucket_midpoint(bounds) * 1e-3).min(self.max_us())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_known_values() {
        let mut histogram = Histogram::default();
        for us in 1..=1000 {
            histogram.record_time(Time::from_us(us));
        }
        assert!((histogram.mean_us() - 500.5).abs() < 1e-9);
        for (share, expected) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let found = histogram.quantile_us(share);
            assert!(
                (found / expected - 1.0).abs() < 1.0 / 64.0,
                "{share}: {found}"
            );
        }
        assert_eq!(
            histogram.quantile_us(1.0).max(990.0),
            histogram.quantile_us(1.0)
        );
    }
}
