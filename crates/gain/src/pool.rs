//! The same comparison of many agents as one. Their sums are added: agents are independent, and each
//! compared its connections with means of its own.
//!
//! What an agent tells is taken at its word, but for sums that no clusters can have, and for those
//! that another agent tells, too, or nearly so. These are refused, and with them all that the agent
//! tells of the comparison.

use crate::cluster::Moments;
use crate::compare::{CLUSTERS_MIN, Comparison, compare_groups};
use crate::ledger::Group;
use crate::row::{ROWS, Row};
use crate::share::{Scope, row_alpha};
use crate::side::Side;
use crate::verdict::Verdict;

/// Most clusters of an agent: in each hour of four weeks as many as may be open.
const CLUSTERS_MAX: u64 = 1 << 25;
/// Most connections of an agent.
const CONNECTIONS_MAX: u64 = 1 << 44;
/// Largest weight of a cluster: agents of earlier versions give busy host-hours up to this one.
const WEIGHT_MAX: f64 = 16.0;
/// Sums may have been rounded by this share of what bounds them.
const ROUNDED: f64 = 1e-6;
/// Sums nearer than this are no chance, in standard deviations ([`are_within`]). Of a million pairs of
/// agents with as many clusters, of one connection each, none is.
const NEAR: f64 = 0.05;
/// Clusters with scores identify an agent where there are more of them.
const SCORES_MIN: f64 = 3.0;
/// Measures of a comparison.
const MEASURES: usize = Row::MEASURES.len();

/// One agent's report of one measure of one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SideReport {
    /// One of [`Row::MEASURES`].
    pub row: Row,
    /// [`Side::Control`] or [`Side::Treated`].
    pub side: Side,
    /// The sums.
    pub moments: Moments,
}

/// Why nothing that an agent tells counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Something of it cannot be.
    #[error(transparent)]
    Impossible(#[from] Impossible),
    /// Another agent tells nearly the same of a measure: one machine is a copy of the other, or an
    /// agent repeats what it heard.
    #[error("nearly the same sums as those of {of}, which count once: is one a copy of the other?")]
    Copy {
        /// The agent that counts.
        of: String,
    },
}

/// Sums that no clusters have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{measure} of {side}: {what}")]
pub struct Impossible {
    /// The measure.
    pub measure: &'static str,
    /// The side, as in files.
    pub side: String,
    /// Description of the error.
    pub what: &'static str,
}

impl SideReport {
    /// Whether there are clusters that have these sums, as far as is easily told.
    ///
    /// # Errors
    /// There are none.
    pub fn check_possible(&self) -> Result<(), Impossible> {
        let wrong = |what| Impossible {
            measure: self.row.measure_name(),
            side: self.side.file_text(),
            what,
        };
        if matches!(self.row, Row::TimeOf(_)) {
            return Err(wrong("it is of one size alone"));
        }
        if !matches!(self.side, Side::Control | Side::Treated) {
            return Err(wrong("expected control or treated"));
        }
        impossible_sums(&self.moments, self.row.residual_clip())
            .map_or(Ok(()), |what| Err(wrong(what)))
    }
}

/// Error in the sums of a row whose residuals are at most `clip`.
fn impossible_sums(moments: &Moments, clip: f64) -> Option<&'static str> {
    let Moments {
        clusters,
        connections,
        weight,
        score,
        weight2,
        cross,
        score2,
        score3,
    } = *moments;
    if clusters == 0 || clusters > CLUSTERS_MAX {
        return Some("clusters: expected 1 to 2^25");
    }
    if connections < clusters || connections > CONNECTIONS_MAX {
        return Some("connections: expected one a cluster at least, at most 2^44");
    }
    let (n, most) = (clusters as f64, WEIGHT_MAX);
    // The largest score.
    let reach = most * clip;
    // NaN is at most nothing.
    let at_most = |value: f64, bound: f64| value <= bound + ROUNDED * bound.abs();
    let is_within = |value: f64, low: f64, high: f64| at_most(low, value) && at_most(value, high);
    let rules = [
        (
            is_within(weight, n, (most * n).min(connections as f64)),
            "weight: expected 1 to 16 a cluster, and at most the connections",
        ),
        (
            is_within(weight2, weight, most * weight) && at_most(weight * weight, n * weight2),
            "squares of weights do not fit the weights",
        ),
        (
            at_most(score.abs(), clip * weight),
            "score: beyond what a connection can differ by",
        ),
        (
            at_most(cross.abs(), clip * weight2),
            "products: beyond what a connection can differ by",
        ),
        (
            is_within(score2, 0.0, clip * clip * weight2),
            "squares of scores: beyond what a connection can differ by",
        ),
        (
            at_most(score * score, n * score2) && at_most(cross * cross, weight2 * score2),
            "squares of scores do not fit the scores",
        ),
        (
            [1.0, -1.0].into_iter().all(|sign| {
                // Of what scores lack to their bound on one side: Σ a · Σ a s² ≥ (Σ a s)².
                let lack = n * reach - sign * score;
                let squares = reach * score2 - sign * score3;
                let cross = reach * score - sign * score2;
                cross * cross <= lack * squares + ROUNDED * n * reach * reach * score2
                    && squares >= -ROUNDED * reach * score2
            }),
            "third powers of scores do not fit scores and squares",
        ),
    ];
    rules.into_iter().find(|rule| !rule.0).map(|rule| rule.1)
}

/// Sums of one side, by measure.
type Sums = [Moments; MEASURES];

/// Report of one agent.
#[derive(Clone, Debug)]
struct AgentSums {
    agent: String,
    control: Sums,
    treated: Sums,
}

/// A comparison of many agents.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    agents: Vec<AgentSums>,
}

/// How agents differ in a measure: numbers of them, by their own verdicts. The others have too few
/// clusters of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Agents that have an interval of their own.
    pub known: u64,
    /// Known agents whose interval lies below 0.
    pub better: u64,
    /// Known agents whose interval lies above 0.
    pub worse: u64,
}

impl Pool {
    /// Adds all that an agent tells.
    ///
    /// # Errors
    /// Something of it cannot be, or another agent tells the same: nothing of it counts.
    pub fn add_agent(&mut self, agent: &str, told: &[SideReport]) -> Result<(), Refused> {
        let mut of = AgentSums {
            agent: agent.to_owned(),
            control: [Moments::NONE; MEASURES],
            treated: [Moments::NONE; MEASURES],
        };
        for it in told {
            it.check_possible()?;
            let sums = match it.side {
                Side::Control => &mut of.control,
                _ => &mut of.treated,
            };
            let place = &mut sums[it.row.index()];
            if *place != Moments::NONE {
                return Err(Refused::Impossible(Impossible {
                    measure: it.row.measure_name(),
                    side: it.side.file_text(),
                    what: "it is told twice",
                }));
            }
            *place = it.moments;
        }
        let mut others = self.agents.iter();
        if let Some(other) = others.find(|other| of.is_copy_of(other)) {
            let of = other.agent.clone();
            return Err(Refused::Copy { of });
        }
        self.agents.push(of);
        Ok(())
    }

    /// Number of agents.
    pub fn agent_count(&self) -> usize {
        self.agents.len()
    }

    /// All of them as one group.
    pub fn pooled_group(&self) -> Group {
        self.group_without("")
    }

    /// All agents but one as one group.
    pub fn group_without(&self, agent: &str) -> Group {
        let mut group = Group::default();
        for (side, of) in [
            (Side::Control, (|it| &it.control) as fn(&AgentSums) -> &Sums),
            (Side::Treated, |it| &it.treated),
        ] {
            let mut rows = [Moments::NONE; ROWS];
            for sums in self.agents.iter().filter(|it| it.agent != agent).map(of) {
                for (row, moments) in rows.iter_mut().zip(sums) {
                    row.merge(moments);
                }
            }
            if rows.iter().any(|moments| moments.clusters > 0) {
                group.sides.insert(side, rows);
            }
        }
        group
    }

    /// How the agents differ.
    pub fn agent_spread(&self, row: Row) -> Spread {
        let mut spread = Spread::default();
        for of in &self.agents {
            let pair = of.moments_pair(row);
            let comparison = judge_agents(&pair);
            spread.known += u64::from(comparison.half_width.is_some());
            match Verdict::judge_row(&comparison, row) {
                Verdict::Better => spread.better += 1,
                Verdict::Worse => spread.worse += 1,
                Verdict::Same | Verdict::Unknown(_) => {}
            }
        }
        spread
    }

    /// Agents without any one of which the verdict would be another, in either direction. An honest
    /// agent is left out that others miss only as clusters towards [`Verdict::Same`].
    pub fn hinges_on(&self, row: Row) -> Vec<&str> {
        if self.agents.len() < 2 {
            return Vec::new();
        }
        let pairs: Vec<[Moments; 2]> = self.agents.iter().map(|of| of.moments_pair(row)).collect();
        let sum = |a: &[Moments; 2], b: &[Moments; 2]| {
            let mut sum = *a;
            sum[0].merge(&b[0]);
            sum[1].merge(&b[1]);
            sum
        };
        // Those after each: what is added is never subtracted, which would cost precision.
        let mut after = vec![[Moments::NONE; 2]];
        for pair in pairs.iter().rev() {
            let sums = sum(&after[after.len() - 1], pair);
            after.push(sums);
        }
        let verdict = |pair: &[Moments; 2]| Verdict::judge_row(&judge_agents(pair), row);
        let whole = after[after.len() - 1];
        let found = verdict(&whole);
        let mut before = [Moments::NONE; 2];
        let mut all = Vec::new();
        for (index, (of, pair)) in self.agents.iter().zip(&pairs).enumerate() {
            let others = sum(&before, &after[pairs.len() - 1 - index]);
            let without = verdict(&others);
            let is_other = without.one_word() != found.one_word();
            let lacks_clusters = found == Verdict::Same
                && matches!(without, Verdict::Unknown(_))
                && only_clusters_lack(&others, &whole, row);
            if is_other && !lacks_clusters {
                all.push(&*of.agent);
            }
            before = sum(&before, pair);
        }
        all
    }
}

impl AgentSums {
    /// Whether both sides of a measure that two agents tell are [alike](are_alike).
    fn is_copy_of(&self, other: &Self) -> bool {
        Row::MEASURES.into_iter().any(|row| {
            let mut sides = self
                .moments_pair(row)
                .into_iter()
                .zip(other.moments_pair(row));
            sides.all(|(one, other)| are_alike(&one, &other, row))
        })
    }

    fn moments_pair(&self, row: Row) -> [Moments; 2] {
        [self.control[row.index()], self.treated[row.index()]]
    }
}

/// Whether sums of one side are more alike than those of two agents are by chance: the same but for
/// rounding and one cluster more or less, or, where each connection has a value of its own, within
/// [`NEAR`]. Few clusters, or few that differ from their strata, may be alike by chance.
fn are_alike(one: &Moments, other: &Moments, row: Row) -> bool {
    let [few, more] = match one.clusters <= other.clusters {
        true => [one, other],
        false => [other, one],
    };
    // Of k equal scores, all others 0, the ratio is k.
    let has_scores = few.score2.powi(3) > SCORES_MIN * few.score3.powi(2);
    if few.clusters < CLUSTERS_MIN || !has_scores {
        return false;
    }
    let near = match row {
        Row::Time | Row::TimeOf(_) | Row::Inflation => NEAR,
        Row::Retransmitted | Row::Failed => ROUNDED,
    };
    are_within(near, few, more)
        || more.clusters == few.clusters + 1 && are_within(ROUNDED, &with_one_of(few, more), more)
}

/// Sums with one cluster more: the one that makes weights and scores those of `more`.
fn with_one_of(few: &Moments, more: &Moments) -> Moments {
    let connections = more.connections.saturating_sub(few.connections);
    let (weight, score) = (more.weight - few.weight, more.score - few.score);
    let mut sums = *few;
    sums.push_mean(weight, score / weight, connections);
    sums
}

/// Whether no two sums over clusters differ by more than so many standard deviations of what they do
/// between independent agents. The variance of a sum over a random number of clusters is the sum of
/// the squares. That of powers of the scores is at least as if all were of equal size (Jensen).
fn are_within(distance: f64, one: &Moments, other: &Moments) -> bool {
    /// A sum, and its variance at least.
    type SumOf = fn(&Moments) -> (f64, f64);
    let sums: [SumOf; 5] = [
        |it| (it.clusters as f64, it.clusters as f64),
        |it| (it.weight, it.weight2),
        |it| (it.score, it.score2),
        |it| (it.score2, it.score2.powi(2) / it.clusters as f64),
        |it| (it.score3, it.score2.powi(3) / (it.clusters as f64).powi(2)),
    ];
    sums.into_iter().all(|of| {
        let ((one, variance), (other, more)) = (of(one), of(other));
        (one - other).abs() <= distance * (variance + more).sqrt()
    })
}

/// Whether `others` lack only clusters to [`Verdict::Same`]: at least half of the weight of each side
/// is theirs, and as many clusters as in `whole`, with their own scatter, would make the interval
/// narrow enough. A young fleet needs many agents for that verdict, and none of them is to be named.
/// An agent without scatter, or with most of the clusters, is named.
fn only_clusters_lack(others: &[Moments; 2], whole: &[Moments; 2], row: Row) -> bool {
    let growth = [0, 1].map(|side| whole[side].weight / others[side].weight);
    let growth = growth[0].max(growth[1]);
    growth <= 2.0 && judge_agents(others).half_width_after(growth) <= row.relevant_effect()
}

fn judge_agents([control, treated]: &[Moments; 2]) -> Comparison {
    compare_groups(control, treated, row_alpha(Scope::All))
}

#[cfg(test)]
mod tests;
