//! Comparisons for the fleet.

use std::cmp::Reverse;

use thalweg_gain::{Group, Row, Scope, Side, SideReport};

use super::Gain;

/// A comparison that is reported to the fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The rule; `None`: the learner.
    pub rule: Option<String>,
    /// Sums of the comparison.
    pub told: Vec<SideReport>,
}

impl Compared {
    fn new(rule: Option<String>, group: &Group) -> Self {
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

    fn clusters(&self) -> u64 {
        let time = self.told.iter().filter(|it| it.row == Row::Time);
        time.map(|it| it.moments.clusters).sum()
    }
}

impl Gain {
    /// Comparisons for the fleet: the learner's, if `learner` is set, then those of rules with a
    /// share, most clusters first.
    pub fn compared(&self, learner: bool) -> Vec<Compared> {
        let mut all: Vec<Compared> = (self.rules.groups().into_iter())
            .map(|(name, group)| Compared::new(Some(name), &group))
            .collect();
        all.sort_by_key(|it| Reverse(it.clusters()));
        if learner {
            let groups = self.kept.ledger.current_groups();
            let group = groups.get(&(Scope::All, String::new()));
            let own = group.map(|group| Compared::new(None, group));
            all.splice(0..0, own);
        }
        all.retain(|it| !it.told.is_empty());
        all
    }
}
