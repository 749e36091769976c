//! Comparisons for the fleet, and the comparison of many agents in words and numbers.

use thalweg_gain::{Group, Pool, Row, Scope, Side, SideReport};

use super::words::{presented_row, thousands};
use super::{Against, found_in, judged};
use crate::view::{FleetComparison, FleetSpread};

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

/// Comparison of many agents, of the learner or of a rule.
pub fn of_agents(pool: &Pool, rule: Option<&str>) -> FleetComparison {
    let group = pool.pooled_group();
    let against = match rule {
        None => Against::Control,
        Some(_) => Against::LeftAlone,
    };
    let agents = pool.agent_count() as u64;
    let found = found_in(Some(&group), None, against);
    let rows = Row::MEASURES.into_iter().filter_map(|row| {
        let (comparison, verdict) = judged(&group, Scope::All, row);
        let shown = || {
            let row = presented_row(row, &comparison, verdict, 0);
            crate::view::GainRow {
                known_in_s: None,
                ..row
            }
        };
        (comparison.control + comparison.treated > 0).then(shown)
    });
    let spread = Row::MEASURES.map(|row| {
        let spread = pool.agent_spread(row);
        let share = spread.worse as f64 / spread.known as f64;
        FleetSpread {
            measure: row.measure_name().to_owned(),
            known: spread.known,
            better: spread.better,
            worse: spread.worse,
            worse_share: (spread.known > 0).then_some(share),
        }
    });
    let mut hinges_on: Vec<&str> = Vec::new();
    for agent in Row::MEASURES.iter().flat_map(|row| pool.hinges_on(*row)) {
        if !hinges_on.contains(&agent) {
            hinges_on.push(agent);
        }
    }
    let mut summary = match agents {
        0 => "No agent tells of connections that can be compared yet.".to_owned(),
        1 => format!("1 agent: {found}"),
        _ => format!("{} agents: {found}", thousands(agents)),
    };
    if let [only] = hinges_on[..] {
        let without = found_in(Some(&pool.group_without(only)), None, against);
        summary += &format!(" Without {only}: {without}");
    }
    FleetComparison {
        rule: rule.map(str::to_owned),
        summary,
        agents,
        rows: rows.collect(),
        spread: spread.to_vec(),
        hinges_on: hinges_on.into_iter().map(str::to_owned).collect(),
    }
}
