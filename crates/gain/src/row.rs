//! What is compared: the rows of a table.

use crate::class::SIZES;

/// Number of rows: four measures, and time by size class.
pub const ROWS: usize = 4 + SIZES;

/// One comparison. Larger is worse in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// Time with data outstanding, log2.
    Time,
    /// Share of the segments that were retransmissions.
    Retransmitted,
    /// Whether the connection ended by a reset or a time-out.
    Failed,
    /// Smoothed RTT at the end over the lowest one, log2, small queues aside.
    Inflation,
    /// [`Row::Time`] of one size class, below [`SIZES`].
    TimeOf(usize),
}

/// The unit of a row's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Differences of log2, shown as per cent.
    Bits,
    /// Differences of shares, shown as percentage points.
    Share,
}

impl Row {
    /// The four measures over all sizes.
    pub const MEASURES: [Self; 4] = [
        Self::Time,
        Self::Retransmitted,
        Self::Failed,
        Self::Inflation,
    ];

    /// All rows, in the order of [`Row::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        let sizes = (0..SIZES).map(Self::TimeOf);
        Self::MEASURES.into_iter().chain(sizes)
    }

    /// Place in arrays of [`ROWS`].
    pub fn index(self) -> usize {
        match self {
            Self::Time => 0,
            Self::Retransmitted => 1,
            Self::Failed => 2,
            Self::Inflation => 3,
            Self::TimeOf(size) => 4 + size,
        }
    }

    /// The name of its measure, in files and on the command line.
    pub fn measure_name(self) -> &'static str {
        match self {
            Self::Time | Self::TimeOf(_) => "time",
            Self::Retransmitted => "retransmitted",
            Self::Failed => "failed",
            Self::Inflation => "rtt",
        }
    }

    /// The unit of its effects.
    pub fn unit(self) -> Unit {
        match self {
            Self::Retransmitted | Self::Failed => Unit::Share,
            _ => Unit::Bits,
        }
    }

    /// An effect in per cent, or percentage points for shares; negative = less than the control
    /// group.
    pub fn in_percent(self, effect: f64) -> f64 {
        match self.unit() {
            Unit::Bits => (effect.exp2() - 1.0) * 100.0,
            Unit::Share => effect * 100.0,
        }
    }

    /// The effect that is worth knowing: 5 %, or half a percentage point. A comparison whose
    /// interval is narrower and has 0 in it has found no difference that matters.
    pub fn relevant_effect(self) -> f64 {
        match self.unit() {
            Unit::Bits => 0.07,
            Unit::Share => 0.005,
        }
    }

    /// A connection differs from its stratum by at most this. One that hung for an hour would
    /// otherwise outweigh all others.
    pub(crate) fn residual_clip(self) -> f64 {
        match self.unit() {
            Unit::Bits => 4.0,
            Unit::Share => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_follow_the_order() {
        let indices: Vec<usize> = Row::all().map(Row::index).collect();
        assert_eq!(indices, (0..ROWS).collect::<Vec<_>>());
    }

    #[test]
    fn per_cent_and_points() {
        assert_eq!(Row::Time.in_percent(-1.0), -50.0);
        assert_eq!(Row::TimeOf(3).in_percent(1.0), 100.0);
        assert_eq!(Row::Failed.in_percent(0.01), 1.0);
    }
}
