//! A comparison in words.

use crate::compare::Comparison;
use crate::row::Row;

/// What a comparison has found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The interval lies below 0: less time, fewer failures.
    Better,
    /// The interval lies above 0.
    Worse,
    /// The interval has 0 in it, and nothing as large as [`Row::worth`].
    Same,
    /// Neither. Number by which the clusters must be multiplied until an effect of [`Row::worth`]
    /// would show; `None` = not to be foreseen.
    Unknown(Option<f64>),
}

impl Verdict {
    /// Judges a row.
    pub fn of(comparison: &Comparison, row: Row) -> Self {
        match comparison.interval() {
            Some((_, high)) if high < 0.0 => Self::Better,
            Some((low, _)) if low > 0.0 => Self::Worse,
            Some((low, high)) if low > -row.worth() && high < row.worth() => Self::Same,
            _ => Self::Unknown(comparison.growth_until(row)),
        }
    }

    /// Whether a row is a reason to take back what the treated connections have. Time and failures
    /// must not be worse. Some retransmissions are a price of speed, so that only a whole
    /// percentage point is a reason. A queue is one unless the transfers are faster for it.
    pub fn is_reason_to_revert(comparison: &Comparison, row: Row, time: Self) -> bool {
        let Some((low, _)) = comparison.interval() else {
            return false;
        };
        match row {
            Row::Time | Row::TimeOf(_) | Row::Failed => low > 0.0,
            Row::Retransmitted => low > 0.01,
            Row::Inflation => low > 0.0 && time != Self::Better,
        }
    }

    /// The verdict as one word, the same in text, JSON and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::Unknown(_) => "unknown",
        }
    }
}
