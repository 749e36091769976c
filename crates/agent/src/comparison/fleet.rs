//! Comparisons for the fleet.

use thalweg_gain::{Group, Row, Side, SideReport};

/// A comparison that is reported to the fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The rule; `None`: the learner.
    pub rule: Option<String>,
    /// Sums of the comparison.
    pub told: Vec<SideReport>,
}

impl Compared {
    /// Takes the sums of both sides of a group.
    pub fn new(rule: Option<String>, group: &Group) -> Self {
        let sides = [Side::Control, Side::Treated].into_iter();
        let all = sides.flat_map(|side| Row::MEASURES.map(|row| (side, row)));
        let told = all.map(|(side, row)| SideReport {
            row,
            side,
            moments: group.side_rows(side)[row.index()],
        });
        Self {
            rule,
            told: told.filter(|it| it.moments.clusters > 0).collect(),
        }
    }

    /// Number of clusters of both sides.
    pub fn clusters(&self) -> u64 {
        let time = self.told.iter().filter(|it| it.row == Row::Time);
        time.map(|it| it.moments.clusters).sum()
    }
}
