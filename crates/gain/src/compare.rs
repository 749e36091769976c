//! The difference of two groups, with an interval that is valid whenever one looks.

use crate::cluster::Moments;
use crate::row::Row;

/// Clusters in each group below which no interval is given: the sequence is asymptotic.
pub const CLUSTERS_MIN: u64 = 50;
/// Clusters at which the sequence is tightest.
const TIGHTEST: f64 = 500.0;

/// One row: treated minus control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Clusters of the control group.
    pub control: u64,
    /// Clusters of the treated group.
    pub treated: u64,
    /// Difference of the means: bits or shares; above 0 is worse. 0 where a group is empty.
    pub effect: f64,
    /// Half of the interval's width; `None` with too few clusters for one, or where no cluster
    /// differs from its strata.
    pub half_width: Option<f64>,
    /// Effective clusters of both groups together.
    information: f64,
    /// Variance of the effect.
    variance: f64,
    /// Skewness of the effect times its standard deviation: the part of the effect that a single
    /// cluster may be.
    tail: f64,
    alpha: f64,
}

/// Compares two groups with error probability `alpha` over all looks.
///
/// The interval is the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and
/// Ramdas (2024, theorem 2.2), wider by the skewness of the means. Each mean is a ratio of sums over
/// clusters, its variance that of the linearised ratio. With few clusters in the control group its
/// own variance may be far too small (no failure seen yet): each group has at least the variance of
/// both together. The time of the sequence is the harmonic sum of the effective clusters,
/// 1 / (1/a + 1/b): 5 % of 10,000 are worth 475, not 10,000.
///
/// An odd cluster never takes the interval away. Where the sequence has z standard deviations, a
/// skewed mean needs z² / 3 times its skewness more (Johnson 1978, "Modified t tests and confidence
/// intervals for asymmetrical populations"). That is the term of Bernstein's inequality, doubled as
/// the variance is estimated, with the scores' size by their moments in place of a bound.
pub fn compare_groups(control: &Moments, treated: &Moments, alpha: f64) -> Comparison {
    let mut comparison = Comparison::without_interval([control.clusters, treated.clusters], alpha);
    if control.clusters == 0 || treated.clusters == 0 {
        return comparison;
    }
    comparison.effect = treated.mean() - control.mean();
    let groups = [control, treated];
    let effective = groups.map(Moments::effective_clusters);
    comparison.information = 1.0 / (1.0 / effective[0] + 1.0 / effective[1]);
    comparison.variance = difference_variance(groups);
    comparison.tail = score_tail(&groups);
    comparison.conclude_interval();
    comparison
}

/// Judges differences within pairs of clusters in the same way: their mean.
pub fn compare_pairs(pairs: &Moments, alpha: f64) -> Comparison {
    let mut comparison = Comparison::without_interval([pairs.clusters; 2], alpha);
    if pairs.clusters == 0 {
        return comparison;
    }
    comparison.effect = pairs.mean();
    comparison.information = pairs.effective_clusters();
    comparison.variance = squared_error(pairs, pairs.sum_of_squares());
    comparison.tail = score_tail(&[pairs]);
    comparison.conclude_interval();
    comparison
}

/// Variance of the difference.
fn difference_variance(groups: [&Moments; 2]) -> f64 {
    let weight2 = groups[0].weight2 + groups[1].weight2;
    let pooled = (groups[0].sum_of_squares() + groups[1].sum_of_squares()) / weight2;
    let of =
        |group: &Moments| squared_error(group, group.sum_of_squares().max(pooled * group.weight2));
    of(groups[0]) + of(groups[1])
}

/// Squared error of a group's mean, by the squares of its scores around it.
fn squared_error(group: &Moments, squares: f64) -> f64 {
    let clusters = group.clusters as f64;
    let correction = clusters / (clusters - 1.0).max(1.0);
    correction * squares / (group.weight * group.weight)
}

/// See [`Comparison::tail`]: the size of the scores that make up their squares, over the smaller
/// group's weight. Groups that are skewed in opposite directions do not cancel.
fn score_tail(groups: &[&Moments]) -> f64 {
    let sum = |of: fn(&Moments) -> f64| groups.iter().map(|group| of(group)).sum::<f64>();
    let score2 = sum(|group| group.score2);
    if score2 <= 0.0 {
        return 0.0;
    }
    let smaller = groups.iter().map(|group| group.weight);
    sum(|group| group.score3.abs()) / score2 / smaller.fold(f64::INFINITY, f64::min)
}

impl Comparison {
    fn without_interval([control, treated]: [u64; 2], alpha: f64) -> Self {
        Self {
            control,
            treated,
            effect: 0.0,
            half_width: None,
            information: 0.0,
            variance: 0.0,
            tail: 0.0,
            alpha,
        }
    }

    /// Gives the comparison an interval if there are clusters enough, and scores that say how large
    /// a difference may be.
    fn conclude_interval(&mut self) {
        let enough = self.control.min(self.treated) >= CLUSTERS_MIN;
        self.half_width = (enough && self.has_scatter()).then(|| self.half_width_after(1.0));
    }

    fn has_scatter(&self) -> bool {
        self.variance > 0.0 || self.tail > 0.0
    }

    /// Lower and upper end of the interval.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let half = self.half_width?;
        Some((self.effect - half, self.effect + half))
    }

    /// The half width after `growth` times as many clusters of the present variance and skewness.
    pub(crate) fn half_width_after(&self, growth: f64) -> f64 {
        // ρ² as in their appendix B.2: tightest at the given time.
        let log = -2.0 * self.alpha.ln();
        let time = growth * self.information * (log + log.ln() + 1.0) / TIGHTEST;
        let deviations2 = 2.0 * (time + 1.0) / time * ((time + 1.0).sqrt() / self.alpha).ln();
        (deviations2 * self.variance / growth).sqrt() + deviations2 / 3.0 * self.tail / growth
    }

    /// By which factor the clusters must grow until an effect of [`Row::relevant_effect`] shows; `None` where
    /// nothing is known of the variance yet.
    pub(crate) fn growth_until(&self, row: Row) -> Option<f64> {
        let fewest = self.control.min(self.treated);
        if fewest == 0 || !self.has_scatter() {
            return None;
        }
        let mut growth = (CLUSTERS_MIN as f64 / fewest as f64).max(1.0);
        while self.half_width_after(growth) > row.relevant_effect() {
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
    use crate::verdict::Verdict;

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
        let comparison = compare_groups(&group(500, 0.0, 1.0), &group(9500, 0.0, 1.0), 0.05);
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
        let few = compare_groups(&group(25, 0.0, 0.01), &group(9_000, 0.0, 0.01), 0.05);
        assert!(few.half_width.is_none());
        // Twice as many of the smaller group; its scatter alone would show 5 % at once.
        assert_eq!(few.growth_until(row), Some(2.0));
        assert_eq!(
            compare_groups(&Moments::NONE, &Moments::NONE, 0.05).growth_until(row),
            None
        );
    }

    #[test]
    fn skewness_widens_the_interval_by_hand() {
        // Scores of 1 in one cluster of four: third powers are as large as squares.
        let mut control = group(600, 0.0, 0.0);
        control.merge(&group(200, 1.0, 0.0));
        let comparison = compare_groups(&control, &control, 0.05);
        let straight = comparison.half_width.unwrap();
        // n = 400; nρ² = 7.025; z² = 2·8.025/7.025·ln(2.8328/0.05) = 9.225.
        let variance = 2.0 * 0.1875 / 799.0;
        let expected = (9.225f64 * variance).sqrt() + 9.225 / 3.0 / 800.0;
        assert!((straight / expected - 1.0).abs() < 1e-3, "{straight}");
        // The same scatter, half of it below the mean.
        let mut even = control;
        even.score3 = 0.0;
        assert!(compare_groups(&even, &even, 0.05).half_width.unwrap() < straight);
        // Opposite directions do not cancel.
        let mut below = control;
        below.score3 = -below.score3;
        assert_eq!(
            compare_groups(&below, &control, 0.05).half_width,
            Some(straight)
        );
    }

    /// One host-hour of so many connections.
    fn odd(residual: f64, connections: u32) -> Moments {
        let mut residuals = [None; ROWS];
        residuals[0] = Some(residual);
        let mut cluster = Cluster::default();
        (0..connections).for_each(|_| cluster.add(&residuals));
        let mut moments = Moments::NONE;
        moments.add(&cluster, 0);
        moments
    }

    #[test]
    fn odd_clusters_widen_the_interval_and_hide_no_difference() {
        let alpha = crate::share::row_alpha(crate::share::Scope::All);
        let compared = |effect: f64| {
            let groups = [group(440, 0.0, 0.5), group(440, effect, 0.5)];
            (groups, compare_groups(&groups[0], &groups[1], alpha))
        };
        for (effect, expected) in [(-0.81, Verdict::Better), (1.0, Verdict::Worse)] {
            let (groups, even) = compared(effect);
            assert_eq!(Verdict::judge_row(&even, Row::Time), expected);
            // ×1.6 to ×16 and beyond, of one connection or many; 4 bits are the bound.
            for residual in [0.68, 2.0, 4.0, -0.68, -2.0, -4.0] {
                for (connections, number) in [(1, 1), (16, 1), (1000, 1), (1, 8), (16, 4)] {
                    for side in [0, 1] {
                        let mut with = groups;
                        (0..number).for_each(|_| with[side].merge(&odd(residual, connections)));
                        let found = compare_groups(&with[0], &with[1], alpha);
                        let what = format!("{residual} {connections} {number} {side}: {found:?}");
                        assert_eq!(Verdict::judge_row(&found, Row::Time), expected, "{what}");
                        let half = found.half_width.unwrap();
                        let is_far = (residual - if side == 0 { 0.0 } else { effect }).abs() > 1.0;
                        assert!(!is_far || half > even.half_width.unwrap(), "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn many_odd_clusters_leave_the_difference_open_by_a_wide_interval() {
        let mut treated = group(440, -0.81, 0.5);
        (0..60).for_each(|_| treated.merge(&odd(4.0, 16)));
        let found = compare_groups(&group(440, 0.0, 0.5), &treated, 0.002);
        let (low, high) = found.interval().unwrap();
        assert!(low < 0.0 && high > 0.0, "{found:?}");
        assert!(matches!(
            Verdict::judge_row(&found, Row::Time),
            Verdict::Unknown(Some(_))
        ));
    }

    #[test]
    fn busy_clusters_do_not_make_a_group_too_small() {
        let mut control = group(60, 0.0, 0.3);
        (0..3).for_each(|_| control.merge(&odd(0.0, 1000)));
        let found = compare_groups(&control, &group(2_000, 1.0, 0.3), 0.002);
        assert_eq!(Verdict::judge_row(&found, Row::Time), Verdict::Worse);
    }

    #[test]
    fn clusters_that_are_all_alike_have_an_interval() {
        let found = compare_groups(&group(440, 0.0, 0.0), &group(440, -0.81, 0.0), 0.002);
        assert_eq!(Verdict::judge_row(&found, Row::Time), Verdict::Better);
        // Where no cluster differs from its strata nothing is known of what a cluster may be.
        let none = compare_groups(&group(440, 0.0, 0.0), &group(440, 0.0, 0.0), 0.002);
        assert_eq!(none.half_width, None);
    }

    #[test]
    fn too_few_clusters_have_no_interval() {
        assert!(
            compare_groups(&group(48, 0.0, 1.0), &group(900, 0.1, 1.0), 0.05)
                .half_width
                .is_none()
        );
        assert!(
            compare_groups(&group(50, 0.0, 1.0), &group(900, 0.1, 1.0), 0.05)
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
            let comparison = compare_groups(&one, &other, 0.05);
            assert_eq!((comparison.effect, comparison.half_width), (0.0, None));
        }
    }

    #[test]
    fn without_any_failure_few_clusters_tell_nothing() {
        // 1 treated cluster in 50 has failed, and no control cluster of 200, where 4 would have.
        let mut treated = group(20_000, 0.0, 0.0);
        treated.merge(&group(400, 1.0, 0.0));
        let control = group(200, 0.0, 0.0);
        let (low, _) = compare_groups(&control, &treated, 0.05).interval().unwrap();
        assert!(low < 0.0, "{low}");
        // Of 2,000, forty would have.
        let control = group(2_000, 0.0, 0.0);
        let (low, _) = compare_groups(&control, &treated, 0.05).interval().unwrap();
        assert!(low > 0.0, "{low}");
    }

    #[test]
    fn growth_until_an_effect_shows() {
        let comparison = compare_groups(&group(100, 0.0, 1.5), &group(1_900, 0.0, 1.5), 0.05);
        let growth = comparison.growth_until(Row::Time).unwrap();
        let more = compare_groups(
            &group((100.0 * growth) as u64, 0.0, 1.5),
            &group((1_900.0 * growth) as u64, 0.0, 1.5),
            0.05,
        );
        let half = more.half_width.unwrap();
        assert!(
            (half / Row::Time.relevant_effect() - 1.0).abs() < 0.03,
            "{growth}: {half}"
        );
    }
}
