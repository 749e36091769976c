//! Flow completion times against those of a flow alone.

use serde::Serialize;

use super::Completion;
use crate::Time;

/// Slowdowns of flows in a range of sizes. A slowdown is completion time over that of the flow
/// alone in the network.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slowdown {
    /// Flows are larger than this, bytes.
    pub above_bytes: u64,
    /// Flows are at most this large, bytes; none: no limit.
    pub up_to_bytes: Option<u64>,
    /// Number of flows.
    pub flows: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Maximum.
    pub max: f64,
}

/// Bounds between the ranges, bytes.
const BOUNDS: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];

/// Slowdowns of the flows that started after the warm-up, by size; the last entry is all flows.
/// Ranges without a flow are left out.
pub(super) fn slowdowns_by_size(completions: &[Completion], warmup: Time) -> Vec<Slowdown> {
    let measured = || completions.iter().filter(|one| one.start_us >= warmup.us());
    let mut lows = vec![0];
    lows.extend(BOUNDS);
    let highs = BOUNDS.into_iter().map(Some).chain([None]);
    lows.into_iter()
        .zip(highs)
        .chain([(0, None)])
        .filter_map(|(low, high)| {
            let within = |bytes: u64| bytes > low && high.is_none_or(|high| bytes <= high);
            let values = measured()
                .filter(|one| within(one.bytes))
                .map(|one| one.slowdown)
                .collect();
            size_range_slowdown(low, high, values)
        })
        .collect()
}

fn size_range_slowdown(low: u64, high: Option<u64>, mut values: Vec<f64>) -> Option<Slowdown> {
    values.sort_unstable_by(f64::total_cmp);
    let count = values.len();
    let max = *values.last()?;
    // The least value that this share does not exceed.
    let quantile = |share: f64| values[((share * count as f64).ceil() as usize).max(1) - 1];
    Some(Slowdown {
        above_bytes: low,
        up_to_bytes: high,
        flows: count as u64,
        mean: values.iter().sum::<f64>() / count as f64,
        p50: quantile(0.5),
        p95: quantile(0.95),
        p99: quantile(0.99),
        p999: quantile(0.999),
        max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_size_and_after_the_warmup() {
        let completion = |start_us, bytes, slowdown| Completion {
            flow: 0,
            start_us,
            time_us: 1.0,
            bytes,
            slowdown,
        };
        let mut all: Vec<Completion> = (1..=100)
            .map(|number| completion(10.0, 10_000, f64::from(number)))
            .collect();
        all.push(completion(10.0, 10_001, 7.0));
        all.push(completion(9.0, 1, 1e6));
        let found = slowdowns_by_size(&all, Time::from_us(10));
        // Up to 10 kB, up to 100 kB, all.
        assert_eq!(found.len(), 3);
        assert_eq!(
            (found[0].flows, found[1].flows, found[2].flows),
            (100, 1, 101)
        );
        assert_eq!(
            (found[0].p50, found[0].p99, found[0].max),
            (50.0, 99.0, 100.0)
        );
        assert_eq!(found[0].mean, 50.5);
        assert_eq!((found[1].above_bytes, found[1].p50), (10_000, 7.0));
    }
}
