//! Published distributions of flow sizes.

use serde::{Deserialize, Serialize};

/// A published distribution of flow sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// A web search cluster (Alizadeh et al., DCTCP, SIGCOMM 2010, figure 4).
    Websearch,
    /// A Hadoop cluster (Roy et al., Inside the Social Network's (Datacenter) Network, SIGCOMM
    /// 2015, figure 6).
    Hadoop,
}

/// Bytes, and the share of flows of at most that size, percent; linear in between. Both are as
/// evaluated in HPCC (Li et al., SIGCOMM 2019, §5.1), whose authors published these points with
/// their simulator.
const WEBSEARCH: &[(f64, f64)] = &[
    (0.0, 0.0),
    (10_000.0, 15.0),
    (20_000.0, 20.0),
    (30_000.0, 30.0),
    (50_000.0, 40.0),
    (80_000.0, 53.0),
    (200_000.0, 60.0),
    (1_000_000.0, 70.0),
    (2_000_000.0, 80.0),
    (5_000_000.0, 90.0),
    (10_000_000.0, 97.0),
    (30_000_000.0, 100.0),
];

const HADOOP: &[(f64, f64)] = &[
    (0.0, 0.0),
    (100.0, 1.0),
    (200.0, 2.0),
    (300.0, 5.0),
    (350.0, 15.0),
    (400.0, 20.0),
    (500.0, 30.0),
    (600.0, 40.0),
    (700.0, 50.0),
    (1_000.0, 60.0),
    (2_000.0, 67.0),
    (7_000.0, 70.0),
    (30_000.0, 72.0),
    (50_000.0, 82.0),
    (80_000.0, 87.0),
    (120_000.0, 90.0),
    (300_000.0, 95.0),
    (1_000_000.0, 97.5),
    (2_000_000.0, 99.0),
    (10_000_000.0, 100.0),
];

impl Sizes {
    fn distribution_points(self) -> &'static [(f64, f64)] {
        match self {
            Self::Websearch => WEBSEARCH,
            Self::Hadoop => HADOOP,
        }
    }

    /// The size that this share of flows does not exceed, whole bytes, at least 1.
    pub fn size_quantile(self, share: f64) -> u64 {
        let percent = share * 100.0;
        let points = self.distribution_points();
        let above = points
            .partition_point(|(_, below)| *below <= percent)
            .clamp(1, points.len() - 1);
        let ((low, from), (high, to)) = (points[above - 1], points[above]);
        let bytes = low + (high - low) * ((percent - from) / (to - from)).clamp(0.0, 1.0);
        (bytes.ceil() as u64).max(1)
    }

    /// The share of flows of at most this many bytes.
    pub fn share_up_to(self, bytes: f64) -> f64 {
        let points = self.distribution_points();
        let above = points.partition_point(|(size, _)| *size <= bytes);
        if above == 0 {
            return 0.0;
        }
        if above == points.len() {
            return 1.0;
        }
        let ((low, from), (high, to)) = (points[above - 1], points[above]);
        (from + (to - from) * (bytes - low) / (high - low)) / 100.0
    }

    /// Mean number of packets of a flow: E⌈S/p⌉ = Σ P(S > k·p) over k = 0, 1, ….
    pub fn mean_packets(self, packet_bytes: u32) -> f64 {
        (0u32..)
            .map(|packet| 1.0 - self.share_up_to(f64::from(packet) * f64::from(packet_bytes)))
            .take_while(|more| *more > 0.0)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::random_stream;

    #[test]
    fn means_by_hand() {
        // Mean of a piecewise linear CDF: Σ (share of the piece) · (middle of the piece).
        // Websearch, in kB: .15·5 + .05·15 + .1·25 + .1·40 + .13·65 + .07·140 + .1·600 +
        // .1·1500 + .1·3500 + .07·7500 + .03·20000 = 1711.25. With packets of one byte the
        // number of packets is the size, rounded up: half a byte more.
        let mean = Sizes::Websearch.mean_packets(1);
        assert!((mean - 1_711_250.5).abs() < 1.0, "{mean}");
        // Hadoop, in bytes: .01·50 + .01·150 + .03·250 + .1·325 + .05·375 + .1·450 + .1·550 +
        // .1·650 + .1·850 + .07·1500 + .03·4500 + .02·18500 + .1·40000 + .05·65000 +
        // .03·100000 + .05·210000 + .025·650000 + .015·1500000 + .01·6000000 = 120420.75.
        let mean = Sizes::Hadoop.mean_packets(1);
        assert!((mean - 120_421.25).abs() < 1.0, "{mean}");
    }

    /// Kolmogorov and Smirnov: 1 in 10,000 samples of n differs by more than 2.23/√n anywhere.
    #[test]
    fn samples_follow_the_distribution() {
        for sizes in [Sizes::Websearch, Sizes::Hadoop] {
            let mut rng = random_stream(11, 5);
            let count = 100_000;
            let mut samples: Vec<u64> = (0..count)
                .map(|_| sizes.size_quantile(rng.fraction()))
                .collect();
            samples.sort_unstable();
            let mut worst: f64 = 0.0;
            for (below, size) in samples.iter().enumerate() {
                // Sizes are whole: rounding up moves a sample by less than a byte.
                let low = sizes.share_up_to(*size as f64 - 1.0);
                let high = sizes.share_up_to(*size as f64);
                let (before, after) = (below as f64, below as f64 + 1.0);
                worst = worst
                    .max(low - after / f64::from(count))
                    .max(before / f64::from(count) - high);
            }
            assert!(worst < 2.23 / f64::from(count).sqrt(), "{sizes:?}: {worst}");
        }
    }

    #[test]
    fn extremes() {
        assert_eq!(Sizes::Websearch.size_quantile(0.0), 1);
        assert_eq!(Sizes::Websearch.size_quantile(1.0), 30_000_000);
        assert_eq!(Sizes::Hadoop.size_quantile(0.5), 700);
        assert_eq!(Sizes::Websearch.share_up_to(-1.0), 0.0);
        assert_eq!(Sizes::Websearch.share_up_to(4e7), 1.0);
    }
}
