//! A comparison in words.

use crate::compare::Comparison;
use crate::row::Row;

/// Finding of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The interval lies below 0: less time, fewer failures.
    Better,
    /// The interval lies above 0.
    Worse,
    /// The interval has 0 in it, and nothing as large as [`Row::relevant_effect`].
    Same,
    /// Neither. Number by which the clusters must be multiplied until an effect of [`Row::relevant_effect`]
    /// would show; `None` = not to be foreseen.
    Unknown(Option<f64>),
}

impl Verdict {
    /// Judges a row.
    pub fn judge_row(comparison: &Comparison, row: Row) -> Self {
        match comparison.interval() {
            Some((_, high)) if high < 0.0 => Self::Better,
            Some((low, _)) if low > 0.0 => Self::Worse,
            Some((low, high)) if low > -row.relevant_effect() && high < row.relevant_effect() => {
                Self::Same
            }
            _ => Self::Unknown(comparison.growth_until(row)),
        }
    }

    /// Whether a row is a reason to take back what the treated connections have. Time and failures
    /// must not be worse. Some retransmissions are a price of speed, so that only a whole
    /// percentage point is a reason. So is a queue: one that is worth knowing is a reason unless
    /// the transfers are faster for it, or seem to be while too few have ended to tell.
    pub fn is_reason_to_revert(comparison: &Comparison, row: Row, time: &Comparison) -> bool {
        let Some((low, _)) = comparison.interval() else {
            return false;
        };
        match row {
            Row::Time | Row::TimeOf(_) | Row::Failed => low > 0.0,
            Row::Retransmitted => low > 0.01,
            Row::Inflation => {
                let seems_faster = match Self::judge_row(time, Row::Time) {
                    Self::Better => true,
                    Self::Unknown(_) => time.effect < 0.0,
                    Self::Worse | Self::Same => false,
                };
                low > row.relevant_effect() && !seems_faster
            }
        }
    }

    /// The verdict as one word, the same in text, JSON and metrics.
    pub fn one_word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::Unknown(_) => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Cluster, Moments};
    use crate::compare::compare_groups;
    use crate::row::ROWS;

    /// Clusters of one connection each, around a mean.
    fn comparison(clusters: u64, effect: f64, deviation: f64) -> Comparison {
        let group = |mean: f64| {
            let mut moments = Moments::default();
            for index in 0..clusters {
                let sign = if index % 2 == 0 { 1.0 } else { -1.0 };
                let mut residuals = [None; ROWS];
                residuals[0] = Some(mean + sign * deviation);
                let mut cluster = Cluster::default();
                cluster.add(&residuals);
                moments.add(&cluster, 0);
            }
            moments
        };
        compare_groups(&group(0.0), &group(effect), 0.002)
    }

    #[test]
    fn a_queue_is_taken_back_unless_it_pays_or_seems_to() {
        let is_reason = |queue: &Comparison, time: &Comparison| {
            Verdict::is_reason_to_revert(queue, Row::Inflation, time)
        };
        let queue = comparison(200, 0.2, 0.1);
        for (time, expected) in [
            (comparison(200, -0.5, 0.5), false), // Better.
            (comparison(200, 0.0, 0.1), true),   // The same.
            (comparison(200, 0.5, 0.5), true),   // Worse.
            (comparison(60, -0.2, 2.0), false),  // Not known yet.
            (comparison(60, 0.2, 2.0), true),
            (comparison(10, -0.2, 2.0), false), // Too few for an interval.
        ] {
            assert_eq!(is_reason(&queue, &time), expected, "{time:?}");
        }
        // 3.5 % more RTT, surely more than none.
        let short = comparison(200, 0.05, 0.1);
        assert!(short.interval().unwrap().0 > 0.0);
        assert!(!is_reason(&short, &comparison(200, 0.0, 0.1)));
        assert!(!is_reason(&comparison(10, 0.2, 0.1), &queue), "no interval");
    }
}
