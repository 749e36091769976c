//! How late packets were: a histogram of fixed size with bounded relative error.

use serde::Serialize;

/// Values below this have a bucket each; above, each power of two has this many.
const STEPS: u64 = 64;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = (STEPS as usize) * (64 - STEP_BITS as usize + 1);

/// Counts of spans of time in nanoseconds. A percentile is at most 1/64 above
/// the true value, the maximum is exact.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
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
    pub(crate) fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
            max_ns: 0,
        }
    }

    pub(crate) fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    pub(crate) fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50_us: self.at(50) as f64 / 1e3,
            p90_us: self.at(90) as f64 / 1e3,
            p99_us: self.at(99) as f64 / 1e3,
            max_us: self.max_ns as f64 / 1e3,
        }
    }

    /// The nearest-rank percentile in nanoseconds, rounded up to its bucket's end.
    fn at(&self, percent: u64) -> u64 {
        let rank = (self.total * percent).div_ceil(100);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.map_or(0, last_of).min(self.max_ns)
    }
}

fn bucket(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    // The leading one and the STEP_BITS bits below it.
    let shift = ns.ilog2() - STEP_BITS;
    ((u64::from(shift) + 1) * STEPS + (ns >> shift) - STEPS) as usize
}

/// The largest value of a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    let first = (STEPS + bucket % STEPS) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_its_bucket() {
        let mut values: Vec<u64> = (0..10_000).collect();
        values.extend((6..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]));
        values.push(u64::MAX);
        for value in values {
            let last = last_of(bucket(value));
            assert!(last >= value, "{value}: {last}");
            assert!(last - value <= value / STEPS, "{value}: {last}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut histogram = Histogram::new();
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
