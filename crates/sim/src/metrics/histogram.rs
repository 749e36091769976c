//! Percentiles of times in constant memory.

use crate::Time;

/// Counts in buckets that are 1/64 of their value wide: percentiles are within 1.6 %.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_ps: u128,
    max: Time,
}

const BITS: u32 = 6;

fn bucket(ns: u64) -> usize {
    if ns < 1 << BITS {
        return ns as usize;
    }
    let shift = 63 - ns.leading_zeros() - BITS;
    (((shift + 1) << BITS) as u64 + (ns >> shift) - (1 << BITS)) as usize
}

/// Midpoint of a bucket, ns.
fn value(bucket: usize) -> f64 {
    let (octave, step) = (bucket >> BITS, bucket & ((1 << BITS) - 1));
    if octave == 0 {
        return step as f64;
    }
    let width = (1u64 << (octave - 1)) as f64;
    (((1 << BITS) + step) as f64) * width + (width - 1.0) / 2.0
}

impl Histogram {
    pub fn new() -> Self {
        Self {
            counts: vec![0; bucket(u64::MAX) + 1],
            count: 0,
            sum_ps: 0,
            max: Time::ZERO,
        }
    }

    #[inline]
    pub fn record(&mut self, time: Time) {
        self.counts[bucket(time.ps() / 1_000)] += 1;
        self.count += 1;
        self.sum_ps += u128::from(time.ps());
        self.max = self.max.max(time);
    }

    /// Mean in µs, exact; 0 without values.
    pub fn mean_us(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        self.sum_ps as f64 / self.count as f64 * 1e-6
    }

    pub fn max_us(&self) -> f64 {
        self.max.us()
    }

    /// Each value that occurs, µs, and the share of values that do not exceed it.
    pub fn distribution(&self) -> Vec<(f64, f64)> {
        let mut seen = 0;
        (self.counts.iter().enumerate())
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| {
                seen += count;
                let value = (value(bucket) * 1e-3).min(self.max_us());
                (value, seen as f64 / self.count as f64)
            })
            .collect()
    }

    /// The least value, µs, that this share of the values does not exceed.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return (value(bucket) * 1e-3).min(self.max_us());
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        let mut last = 0;
        for exponent in 0..63 {
            for step in 0..7 {
                let ns = (1u64 << exponent) + (1u64 << exponent) / 7 * step;
                let bucket = bucket(ns);
                assert!(bucket >= last, "{ns}");
                last = bucket;
                let error = (value(bucket) - ns as f64).abs() / ns as f64;
                assert!(error <= 1.0 / 64.0, "{ns}: {error}");
            }
        }
    }

    #[test]
    fn quantiles_of_known_values() {
        let mut histogram = Histogram::new();
        for us in 1..=1000 {
            histogram.record(Time::from_us(us));
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
