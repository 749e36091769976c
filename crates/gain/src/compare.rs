//! The difference of two groups, with an interval that is valid whenever one looks.

use crate::cluster::Moments;
use crate::row::Row;

/// Effective clusters in each group below which no interval is given: the sequence is asymptotic.
pub const CLUSTERS_MIN: f64 = 50.0;
/// Clusters at which the sequence is tightest.
const TIGHTEST: f64 = 500.0;
/// Largest squared skewness of the scores, by cluster of the smaller group: beyond, its mean is not
/// near enough to normal. Of rare failures, that asks for 50 expected in the control group.
const SKEWNESS_MAX: f64 = 0.02;

/// One row: treated minus control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Clusters of the control group.
    pub control: u64,
    /// Clusters of the other.
    pub treated: u64,
    /// Difference of the means: bits or shares; above 0 is worse. 0 where a group is empty.
    pub effect: f64,
    /// Half of the interval's width; `None` as long as there are too few clusters for one.
    pub half_width: Option<f64>,
    /// By which factor the clusters must grow for an interval; at most 1: there is one.
    least_growth: f64,
    /// Effective clusters of the two together.
    information: f64,
    /// Variance of the effect, times `information`.
    variance: f64,
    alpha: f64,
}

/// Compares two groups by the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha,
/// Kennedy and Ramdas (2024, theorem 2.2), with error probability `alpha` over all looks.
///
/// Each mean is a ratio of sums over clusters, its variance that of the linearised ratio. With so
/// few clusters in the control group its own variance may be far too small (no failure seen yet):
/// each group has at least the variance of both together. The time of the sequence is the harmonic
/// sum of the effective clusters, 1 / (1/a + 1/b): 5 % of 10,000 are worth 475, not 10,000.
pub fn compare(control: &Moments, treated: &Moments, alpha: f64) -> Comparison {
    let mut comparison = Comparison::empty([control.clusters, treated.clusters], alpha);
    if control.clusters == 0 || treated.clusters == 0 {
        return comparison;
    }
    comparison.effect = treated.mean() - control.mean();
    let groups = [control, treated];
    let effective = groups.map(Moments::effective);
    let information = 1.0 / (1.0 / effective[0] + 1.0 / effective[1]);
    let fewest = effective[0].min(effective[1]);
    comparison.conclude(information, fewest, variance(groups), skewness2(groups));
    comparison
}

/// Judges differences within pairs of clusters in the same way: their mean.
pub fn compare_pairs(pairs: &Moments, alpha: f64) -> Comparison {
    let mut comparison = Comparison::empty([pairs.clusters; 2], alpha);
    if pairs.clusters == 0 {
        return comparison;
    }
    comparison.effect = pairs.mean();
    let variance = squared_error(pairs, pairs.squares());
    let skewness2 = pairs.score3 * pairs.score3 / pairs.score2.powi(3);
    comparison.conclude(pairs.effective(), pairs.effective(), variance, skewness2);
    comparison
}

/// Variance of the difference.
fn variance(groups: [&Moments; 2]) -> f64 {
    let weight2 = groups[0].weight2 + groups[1].weight2;
    let pooled = (groups[0].squares() + groups[1].squares()) / weight2;
    let of = |group: &Moments| squared_error(group, group.squares().max(pooled * group.weight2));
    of(groups[0]) + of(groups[1])
}

/// Of a group's mean, by the squares of its scores around it.
fn squared_error(group: &Moments, squares: f64) -> f64 {
    let clusters = group.clusters as f64;
    let correction = clusters / (clusters - 1.0).max(1.0);
    correction * squares / (group.weight * group.weight)
}

/// Squared skewness of the scores, by cluster of the smaller group.
fn skewness2(groups: [&Moments; 2]) -> f64 {
    let clusters = groups.map(|group| group.clusters as f64);
    let score2 = groups[0].score2 + groups[1].score2;
    let score3 = groups[0].score3 + groups[1].score3;
    let skewness2 = (clusters[0] + clusters[1]) * score3 * score3 / score2.powi(3);
    skewness2 / clusters[0].min(clusters[1])
}

impl Comparison {
    fn empty([control, treated]: [u64; 2], alpha: f64) -> Self {
        Self {
            control,
            treated,
            effect: 0.0,
            half_width: None,
            least_growth: f64::INFINITY,
            information: 0.0,
            variance: 0.0,
            alpha,
        }
    }

    /// Gives it an interval if there are clusters enough, and their mean is near enough to normal.
    fn conclude(&mut self, information: f64, fewest: f64, variance: f64, skewness2: f64) {
        self.information = information;
        self.variance = variance * information;
        // The skewness of a mean falls with the number of clusters.
        self.least_growth = (CLUSTERS_MIN / fewest).max(skewness2 / SKEWNESS_MAX);
        let enough = fewest >= CLUSTERS_MIN && skewness2 <= SKEWNESS_MAX;
        self.half_width = (enough && variance > 0.0).then(|| self.half_width_at(information));
    }

    /// Lower and upper end of the interval.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let half = self.half_width?;
        Some((self.effect - half, self.effect + half))
    }

    /// The half width after `information` effective clusters of the present variance.
    fn half_width_at(&self, information: f64) -> f64 {
        // ρ² as in their appendix B.2: tightest at the given time.
        let log = -2.0 * self.alpha.ln();
        let time = information * (log + log.ln() + 1.0) / TIGHTEST;
        let factor = 2.0 * (time + 1.0) / time * ((time + 1.0).sqrt() / self.alpha).ln();
        (self.variance / information * factor).sqrt()
    }

    /// By which factor the clusters must grow until an effect of [`Row::worth`] shows; `None` where
    /// nothing is known of the variance yet.
    pub(crate) fn growth_until(&self, row: Row) -> Option<f64> {
        if self.variance <= 0.0 || !self.least_growth.is_finite() {
            return None;
        }
        let mut growth = self.least_growth.max(1.0);
        while self.half_width_at(self.information * growth) > row.worth() {
            growth *= 1.05;
            if growth > 1e6 {
                return None;
            }
        }
        Some(growth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::row::ROWS;

    /// A group of single connections whose residuals alternate around `mean` by `deviation`.
    fn group(clusters: u64, mean: f64, deviation: f64) -> Moments {
        let mut moments = Moments::default();
        for index in 0..clusters {
            let mut residuals = [None; ROWS];
            let sign = if index % 2 == 0 { 1.0 } else { -1.0 };
            residuals[0] = Some(mean + sign * deviation);
            let mut cluster = Cluster::default();
            cluster.add(&residuals);
            moments.add(&cluster, 0);
        }
        moments
    }

    #[test]
    fn width_by_hand() {
        let comparison = compare(&group(500, 0.0, 1.0), &group(9500, 0.0, 1.0), 0.05);
        // n = 475; ρ² = (5.991 + 1.790 + 1) / 500, nρ² = 8.342; √(2·9.342/8.342·ln(3.0565/0.05))
        // = 3.0354; variance 1/499 + 1/9499.
        let half = comparison.half_width.unwrap();
        assert!(
            (half - 3.0354 * (1.0f64 / 499.0 + 1.0 / 9499.0).sqrt()).abs() < 1e-4,
            "{half}"
        );
        assert_eq!(comparison.effect, 0.0);
    }

    #[test]
    fn what_has_no_interval_yet_grows_until_there_is_one() {
        let row = Row::Time;
        let few = compare(&group(25, 0.0, 0.01), &group(9_000, 0.0, 0.01), 0.05);
        assert!(few.half_width.is_none());
        // Twice as many of the smaller group; its scatter alone would show 5 % at once.
        assert_eq!(few.growth_until(row), Some(2.0));
        // One in a hundred is far above the others: skewed until there are many.
        let mut skewed = group(990, 0.0, 0.01);
        skewed.merge(&group(10, 4.0, 0.01));
        let comparison = compare(&skewed, &skewed, 0.05);
        assert!(comparison.half_width.is_none());
        let growth = comparison.growth_until(row).unwrap();
        // n · score3² / score2³ with 2,000 clusters, by 1,000: 2 · (20 · 64)² / (20 · 16)³ / 0.02.
        assert!((4.9..5.3).contains(&growth), "{growth}");
        assert_eq!(
            compare(&Moments::NONE, &Moments::NONE, 0.05).growth_until(row),
            None
        );
    }

    #[test]
    fn too_few_clusters_have_no_interval() {
        assert!(
            compare(&group(48, 0.0, 1.0), &group(900, 0.1, 1.0), 0.05)
                .half_width
                .is_none()
        );
        assert!(
            compare(&group(50, 0.0, 1.0), &group(900, 0.1, 1.0), 0.05)
                .half_width
                .is_some()
        );
        let empty = Moments::default();
        for (control, treated) in [(0, 100), (100, 0), (0, 0)] {
            let one = if control == 0 {
                empty
            } else {
                group(control, 0.0, 1.0)
            };
            let other = if treated == 0 {
                empty
            } else {
                group(treated, 0.0, 1.0)
            };
            let comparison = compare(&one, &other, 0.05);
            assert_eq!((comparison.effect, comparison.half_width), (0.0, None));
        }
    }

    #[test]
    fn without_any_failure_nothing_is_known() {
        // 1 treated cluster in 50 has failed, and no control cluster.
        let mut treated = group(20_000, 0.0, 0.0);
        treated.merge(&group(400, 1.0, 0.0));
        let control = group(1_000, 0.0, 0.0);
        assert!(compare(&control, &treated, 0.05).half_width.is_none());
        // Of 40,000, hundreds should have failed.
        let control = group(40_000, 0.0, 0.0);
        let (low, _) = compare(&control, &treated, 0.05).interval().unwrap();
        assert!(low > 0.0, "{low}");
    }

    #[test]
    fn growth_until_an_effect_shows() {
        let comparison = compare(&group(100, 0.0, 1.5), &group(1_900, 0.0, 1.5), 0.05);
        let growth = comparison.growth_until(Row::Time).unwrap();
        let more = compare(
            &group((100.0 * growth) as u64, 0.0, 1.5),
            &group((1_900.0 * growth) as u64, 0.0, 1.5),
            0.05,
        );
        let half = more.half_width.unwrap();
        assert!(
            (half / Row::Time.worth() - 1.0).abs() < 0.03,
            "{growth}: {half}"
        );
    }
}
