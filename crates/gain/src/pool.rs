//! The same comparison of many agents as one. Their sums are added: agents are independent, and each
//! compared its connections with means of its own.
//!
//! What an agent tells is taken at its word, but for sums that no clusters can have. These are refused,
//! and with them all that the agent tells of the comparison.

use std::error::Error;
use std::fmt;

use crate::cluster::Moments;
use crate::compare::{Comparison, compare};
use crate::ledger::Group;
use crate::row::{ROWS, Row};
use crate::share::{Scope, alpha};
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
/// Measures of a comparison.
const MEASURES: usize = Row::MEASURES.len();

/// What an agent tells of one measure of one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// One of [`Row::MEASURES`].
    pub row: Row,
    /// [`Side::Control`] or [`Side::Treated`].
    pub side: Side,
    /// The sums.
    pub moments: Moments,
}

/// Sums that no clusters have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impossible {
    /// The measure.
    pub measure: &'static str,
    /// The side, as in files.
    pub side: String,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for Impossible {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            measure,
            side,
            what,
        } = self;
        write!(formatter, "{measure} of {side}: {what}")
    }
}

impl Error for Impossible {}

impl Told {
    /// Whether there are clusters that have these sums, as far as is easily told.
    ///
    /// # Errors
    /// There are none.
    pub fn check(&self) -> Result<(), Impossible> {
        let wrong = |what| Impossible {
            measure: self.row.measure(),
            side: self.side.text(),
            what,
        };
        if matches!(self.row, Row::TimeOf(_)) {
            return Err(wrong("it is of one size alone"));
        }
        if !matches!(self.side, Side::Control | Side::Treated) {
            return Err(wrong("expected control or treated"));
        }
        impossible(&self.moments, self.row.clip()).map_or(Ok(()), |what| Err(wrong(what)))
    }
}

/// What is wrong with sums of a row whose residuals are at most `clip`.
fn impossible(moments: &Moments, clip: f64) -> Option<&'static str> {
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
            at_most(score3.abs(), most * clip * score2),
            "third powers of scores do not fit their squares",
        ),
    ];
    rules.into_iter().find(|rule| !rule.0).map(|rule| rule.1)
}

/// Sums of one side, by measure.
type Sums = [Moments; MEASURES];

/// What one agent tells.
#[derive(Clone, Debug)]
struct Of {
    agent: String,
    control: Sums,
    treated: Sums,
}

/// A comparison of many agents.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    agents: Vec<Of>,
}

/// How agents differ in a measure: numbers of them, by their own verdicts. The others have too few
/// clusters of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Agents that have an interval of their own.
    pub known: u64,
    /// Of these, those whose interval lies below 0.
    pub better: u64,
    /// And above.
    pub worse: u64,
}

impl Pool {
    /// Adds all that an agent tells.
    ///
    /// # Errors
    /// Something of it cannot be: nothing of it counts.
    pub fn add(&mut self, agent: &str, told: &[Told]) -> Result<(), Impossible> {
        let mut of = Of {
            agent: agent.to_owned(),
            control: [Moments::NONE; MEASURES],
            treated: [Moments::NONE; MEASURES],
        };
        for it in told {
            it.check()?;
            let sums = match it.side {
                Side::Control => &mut of.control,
                _ => &mut of.treated,
            };
            let place = &mut sums[it.row.index()];
            if *place != Moments::NONE {
                return Err(Impossible {
                    measure: it.row.measure(),
                    side: it.side.text(),
                    what: "it is told twice",
                });
            }
            *place = it.moments;
        }
        self.agents.push(of);
        Ok(())
    }

    /// Number of agents.
    pub fn agents(&self) -> usize {
        self.agents.len()
    }

    /// All of them as one group.
    pub fn group(&self) -> Group {
        let mut group = Group::default();
        for (side, of) in [
            (Side::Control, (|it| &it.control) as fn(&Of) -> &Sums),
            (Side::Treated, |it| &it.treated),
        ] {
            let mut rows = [Moments::NONE; ROWS];
            for sums in self.agents.iter().map(of) {
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
    pub fn spread(&self, row: Row) -> Spread {
        let mut spread = Spread::default();
        for of in &self.agents {
            let pair = of.pair(row);
            let comparison = judged(&pair);
            spread.known += u64::from(comparison.half_width.is_some());
            match Verdict::of(&comparison, row) {
                Verdict::Better => spread.better += 1,
                Verdict::Worse => spread.worse += 1,
                Verdict::Same | Verdict::Unknown(_) => {}
            }
        }
        spread
    }

    /// Agents without any one of which a difference would not be found.
    pub fn hinges_on(&self, row: Row) -> Vec<&str> {
        let pairs: Vec<[Moments; 2]> = self.agents.iter().map(|of| of.pair(row)).collect();
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
        let word = |pair: &[Moments; 2]| Verdict::of(&judged(pair), row).word();
        let found = word(&after[after.len() - 1]);
        if ![Verdict::Better.word(), Verdict::Worse.word()].contains(&found) {
            return Vec::new();
        }
        let mut before = [Moments::NONE; 2];
        let mut all = Vec::new();
        for (index, (of, pair)) in self.agents.iter().zip(&pairs).enumerate() {
            if word(&sum(&before, &after[pairs.len() - 1 - index])) != found {
                all.push(&*of.agent);
            }
            before = sum(&before, pair);
        }
        all
    }
}

impl Of {
    fn pair(&self, row: Row) -> [Moments; 2] {
        [self.control[row.index()], self.treated[row.index()]]
    }
}

fn judged([control, treated]: &[Moments; 2]) -> Comparison {
    compare(control, treated, alpha(Scope::All))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::Connection;
    use crate::cluster::Cluster;
    use crate::ledger::{Ledger, Part};
    use thalweg_units::random::Random;

    /// What agents tell whose treated connections take `factor` of the time.
    fn told(group: &Group) -> Vec<Told> {
        let sides = [Side::Control, Side::Treated];
        let rows = Row::MEASURES;
        let all = sides
            .into_iter()
            .flat_map(|side| rows.map(|row| (side, row)));
        all.map(|(side, row)| Told {
            row,
            side,
            moments: group.side(side)[row.index()],
        })
        .filter(|it| it.moments.clusters > 0)
        .collect()
    }

    /// Connections of hosts that are no other agent's.
    fn connections(agent: u64, hosts: u64, factor: f64, one_in: u64) -> Vec<(Part, Connection)> {
        let mut random = Random::new(agent);
        let mut all = Vec::new();
        for host in 0..hosts {
            let control = random.below(one_in) == 0;
            for _ in 0..1 + random.below(30) {
                let noise = (4.0 * random.fraction() - 2.0).exp2();
                let factor = if control { 1.0 } else { factor };
                let connection = Connection {
                    bytes: 500_000,
                    busy_us: (1e6 * noise * factor) as u64,
                    segs_out: 400,
                    retrans: random.below(20) as u32,
                    srtt_us: 20_000 + random.below(20_000) as u32,
                    min_rtt_us: 20_000,
                    handshake_rtt_us: 20_000,
                    failed: Some(random.below(50) == 0),
                    held: None,
                };
                let part = Part {
                    hour: 5,
                    tag: agent * 1_000_000 + host,
                    side: match control {
                        true => Side::Control,
                        false => Side::Treated,
                    },
                    port: 443,
                };
                all.push((part, connection));
            }
        }
        all
    }

    fn group(ledger: &Ledger) -> Group {
        ledger.groups()[&(Scope::All, String::new())].clone()
    }

    fn agent(number: u64, hosts: u64, factor: f64) -> Vec<Told> {
        shared(number, hosts, factor, 4)
    }

    /// With one host in so many in the control group.
    fn shared(number: u64, hosts: u64, factor: f64, one_in: u64) -> Vec<Told> {
        let mut ledger = Ledger::default();
        for (part, connection) in connections(number, hosts, factor, one_in) {
            ledger.add(part, &connection, String::new);
        }
        told(&group(&ledger))
    }

    #[test]
    fn agents_together_are_one_ledger_with_all_clusters() {
        // The means of strata are those that one ledger had before each connection, so that the same
        // residuals are gathered in both ways.
        let mut whole = Ledger::default();
        let mut pool = Pool::default();
        for number in 0..20 {
            let mut own = Ledger::restore(
                whole.baseline().clone(),
                Default::default(),
                Default::default(),
            );
            for (part, connection) in connections(number, 40, 0.8, 4) {
                own.add(part, &connection, String::new);
                whole.add(part, &connection, String::new);
            }
            pool.add(&format!("agent-{number}"), &told(&group(&own)))
                .unwrap();
        }
        let (one, other) = (group(&whole), pool.group());
        for row in Row::MEASURES {
            let (one, other) = [&one, &other]
                .map(|it| {
                    let index = row.index();
                    compare(
                        &it.control()[index],
                        &it.treated()[index],
                        alpha(Scope::All),
                    )
                })
                .into();
            assert_eq!((one.control, one.treated), (other.control, other.treated));
            assert!((one.effect - other.effect).abs() < 1e-9, "{row:?}");
            match (one.half_width, other.half_width) {
                (Some(one), Some(other)) => assert!((one - other).abs() < 1e-9, "{row:?}"),
                (one, other) => assert_eq!(one, other, "{row:?}"),
            }
        }
        let time = compare(&other.control()[0], &other.treated()[0], alpha(Scope::All));
        assert_eq!(Verdict::of(&time, Row::Time), Verdict::Better);
        assert_eq!(pool.agents(), 20);
    }

    #[test]
    fn what_agents_really_have_is_possible_even_rounded() {
        for number in 0..50 {
            for mut it in agent(number, 1 + number * 3, 0.5 + number as f64 / 50.0) {
                assert_eq!(it.check(), Ok(()), "{it:?}");
                for sum in [
                    &mut it.moments.score,
                    &mut it.moments.score2,
                    &mut it.moments.score3,
                ] {
                    *sum = format!("{sum:.9e}").parse().unwrap();
                }
                assert_eq!(it.check(), Ok(()), "{it:?}");
            }
        }
        // Residuals at their bounds, all in one direction, are as far as one can go.
        for row in Row::MEASURES {
            let mut cluster = Cluster::default();
            let mut residuals = [None; ROWS];
            residuals[row.index()] = Some(row.clip());
            (0..40).for_each(|_| cluster.add(&residuals));
            let mut moments = Moments::NONE;
            (0..100).for_each(|_| moments.add(&cluster, row.index()));
            let side = Side::Treated;
            assert_eq!(Told { row, side, moments }.check(), Ok(()));
            moments.score *= 1.001;
            assert!(Told { row, side, moments }.check().is_err());
        }
    }

    #[test]
    fn sums_that_no_clusters_have_are_refused_with_all_else() {
        let honest = agent(1, 200, 0.9);
        let lie = |change: &dyn Fn(&mut Moments)| {
            let mut told = honest.clone();
            change(&mut told[0].moments);
            let mut pool = Pool::default();
            let refused = pool.add("liar", &told).unwrap_err();
            assert_eq!(pool.agents(), 0);
            assert_eq!(pool.group(), Group::default());
            assert!(
                refused.to_string().starts_with("time of control: "),
                "{refused}"
            );
            refused.what
        };
        let starts = |change: &dyn Fn(&mut Moments), with: &str| {
            let what = lie(change);
            assert!(what.starts_with(with), "{what}, expected {with}");
        };
        starts(&|it| it.clusters = 0, "clusters");
        starts(&|it| it.clusters = u64::MAX, "clusters");
        starts(&|it| it.connections = it.clusters - 1, "connections");
        starts(&|it| it.connections = u64::MAX, "connections");
        starts(&|it| it.weight = it.clusters as f64 / 2.0, "weight");
        starts(&|it| it.weight = 17.0 * it.clusters as f64, "weight");
        starts(&|it| it.weight = f64::NAN, "weight");
        starts(&|it| it.connections = it.clusters, "weight");
        starts(&|it| it.weight2 = it.weight / 2.0, "squares of weights");
        starts(&|it| it.weight2 = 20.0 * it.weight, "squares of weights");
        starts(&|it| it.score = -5.0 * it.weight, "score");
        starts(&|it| it.score = f64::NEG_INFINITY, "score");
        starts(&|it| it.cross = 5.0 * it.weight2, "products");
        starts(
            &|it| it.score2 = 17.0 * it.weight2,
            "squares of scores: beyond",
        );
        starts(&|it| it.score2 = -1.0, "squares of scores: beyond");
        // A variance of 0, which would make an interval of a great lie narrow.
        starts(&|it| it.score2 = 0.0, "squares of scores do not fit");
        starts(
            &|it| (it.score, it.score2) = (-3.9 * it.weight, it.score2 / 9.0),
            "squares of scores do not fit",
        );
        starts(&|it| it.score3 = 65.0 * it.score2, "third powers");

        let mut twice = honest.clone();
        twice.push(honest[0]);
        let refused = Pool::default().add("liar", &twice).unwrap_err();
        assert_eq!(refused.what, "it is told twice");
        let mut other = honest[0];
        other.side = Side::Itself(crate::side::Arm::UNKNOWN);
        assert!(other.check().is_err());
        other = Told {
            row: Row::TimeOf(2),
            ..honest[0]
        };
        assert!(other.check().is_err());
    }

    #[test]
    fn shares_that_differ_make_an_effect_smaller_and_no_more() {
        let mut pool = Pool::default();
        pool.add("half", &shared(1, 8000, 0.5, 2)).unwrap();
        pool.add("twentieth", &shared(2, 8000, 0.5, 20)).unwrap();
        let group = pool.group();
        let time = compare(&group.control()[0], &group.treated()[0], 0.05);
        // (p q + P Q) (1 / (q + Q) + 1 / (p + P)), with p = 1/2 and P = 1/20, of one bit.
        assert!((time.effect + 0.746).abs() < 0.03, "{time:?}");
    }

    #[test]
    fn agents_that_differ_are_told_apart_and_so_is_the_one_that_decides() {
        let mut pool = Pool::default();
        for number in 0..6 {
            pool.add(&format!("good-{number}"), &agent(number, 900, 0.5))
                .unwrap();
        }
        pool.add("few", &agent(90, 30, 0.5)).unwrap();
        let alike = pool.spread(Row::Time);
        assert_eq!(
            alike,
            Spread {
                known: 6,
                better: 6,
                worse: 0
            }
        );
        assert!(pool.hinges_on(Row::Time).is_empty());
        assert!(
            pool.hinges_on(Row::Retransmitted).is_empty(),
            "there is no difference"
        );
        // One that has most clusters, and is worse.
        pool.add("great", &agent(91, 40_000, 1.3)).unwrap();
        assert_eq!(
            pool.spread(Row::Time),
            Spread {
                known: 7,
                better: 6,
                worse: 1
            }
        );
        assert_eq!(pool.hinges_on(Row::Time), ["great"]);
    }
}
