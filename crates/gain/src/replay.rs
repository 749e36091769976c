//! Off-policy evaluation: what another rule would have cost, from logged decisions with their
//! probabilities.
//!
//! Two estimates stand side by side. *Inverse propensity weighting* (self-normalised) weighs each
//! outcome by how much more often the other rule chooses its arm. The *doubly robust* estimate adds
//! only what a model of outcomes leaves unexplained: it is right if either the probabilities or the
//! model are (Dudík, Langford and Li 2011). Hosts are the clusters: connections to one host share
//! its path.

use std::collections::BTreeMap;

mod model;
mod rule;
mod student;
mod windows;

use model::Model;
pub use rule::{Connection, Outcome, Replay, Rule, Stretch};
pub use windows::{Cost, First, Judged, OVERLAP_MIN, OfWindow, Untold, Windows};

/// Largest number of arms.
pub const ARMS: usize = thalweg_learner::MAX_ARMS;
/// Number of classes of connections; see [`Decided::class`].
pub const CLASSES: usize = 8;
/// A decision counts if the log gave a chance to all but this share of what the rule chooses.
pub const UNCOVERED_MAX: f64 = 0.05;
/// Least effective sample of connections.
pub const EFFECTIVE_MIN: f64 = 100.0;
/// Least effective sample of hosts.
pub const EFFECTIVE_HOSTS_MIN: f64 = 20.0;

/// A logged decision with its outcome.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// Host of the connection.
    pub host: u64,
    /// Class of the connection, below [`CLASSES`]. It must not depend on the arm.
    pub class: usize,
    /// The logged arm, below [`ARMS`].
    pub arm: usize,
    /// The log's probability of each arm.
    pub logged: &'a [f64; ARMS],
    /// The rule's probability of each arm.
    pub rule: &'a [f64; ARMS],
    /// Number of connections that this one stands for: one over the share that was logged.
    pub stands_for: f64,
    /// Share of a decision that this one is for a rule that learns: the chance that it takes part
    /// in the rule's own past. 1 for a rule that does not learn.
    pub pace: f64,
    /// Compared outcome. Less is better.
    pub outcome: f64,
}

/// A 95 % interval around an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The estimate.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Whether it contains a value.
    pub fn contains_value(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// The rule compared with the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Mean outcome of the log.
    pub logged: f64,
    /// The rule's mean outcome less the log's, by inverse propensity weighting.
    pub weighted: Interval,
    /// Difference by the doubly robust estimator.
    pub robust: Interval,
}

/// The size of a sample, as far as it says something about the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Size {
    /// Connections that count.
    pub connections: u64,
    /// Connections left out: the log gave the rule's choice no chance.
    pub uncovered: u64,
    /// Hosts of those that count.
    pub hosts: u64,
    /// Connections that they stand for: more than those where the log has a share of the host-hours.
    pub stand_for: f64,
    /// Decisions of the rule with a past of its own: fewer than connections if it learns.
    pub decisions: f64,
    /// Effective number of connections (Kish): the square of the sum of weights over the sum of
    /// squares.
    pub effective: f64,
    /// Effective number of hosts, likewise.
    pub effective_hosts: f64,
    /// Mean weight of the connections: about 1 if the log gave the rule's choice a chance in all of
    /// them, and if its probabilities are true.
    pub overlap: f64,
}

/// A sample too small for an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TooSmall {
    /// The sample.
    pub size: Size,
    /// Whether hosts are too few; else connections are.
    pub hosts: bool,
}

impl std::fmt::Display for TooSmall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, found, needed) = if self.hosts {
            ("hosts", self.size.effective_hosts, EFFECTIVE_HOSTS_MIN)
        } else {
            ("connections", self.size.effective, EFFECTIVE_MIN)
        };
        // Rounded down, so that the number found is below the number needed.
        let found = found.floor();
        write!(
            f,
            "an effective sample of {found} {what} is too small, {needed} are needed"
        )
    }
}

impl std::error::Error for TooSmall {}

/// Sums of one host. All but the first two are multiplied by what a decision stands for and its
/// pace.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Decisions of the rule in the log: paces.
    own: f64,
    /// Connections that it stands for.
    connections: f64,
    /// Decisions.
    count: f64,
    /// Outcomes.
    outcome: f64,
    /// Weights.
    weight: f64,
    /// Weighted outcomes.
    weighted: f64,
    /// The model's outcome under the rule less that under the log.
    modelled: f64,
    /// Outcomes less the model's.
    unexplained: f64,
    /// Outcomes less the model's, weighted.
    weighted_unexplained: f64,
    /// Squares of weights.
    squares: f64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.own += other.own;
        self.connections += other.connections;
        self.squares += other.squares;
        self.count += other.count;
        self.outcome += other.outcome;
        self.weight += other.weight;
        self.weighted += other.weighted;
        self.modelled += other.modelled;
        self.unexplained += other.unexplained;
        self.weighted_unexplained += other.weighted_unexplained;
    }

    /// The sums with each host counted by its connections, whatever the rule's pace there. A rule
    /// that disagrees with the log has fewer decisions of its own, just where it matters.
    fn of_connections(&self) -> Self {
        let scale = self.connections / self.count;
        Self {
            own: self.own,
            connections: self.connections,
            count: self.count * scale,
            outcome: self.outcome * scale,
            weight: self.weight * scale,
            weighted: self.weighted * scale,
            modelled: self.modelled * scale,
            unexplained: self.unexplained * scale,
            weighted_unexplained: self.weighted_unexplained * scale,
            squares: self.squares * scale * scale,
        }
    }
}

/// Takes decisions in order of time.
#[derive(Clone, Debug, Default)]
pub struct Estimator {
    model: Model,
    hosts: BTreeMap<u64, Sums>,
    connections: u64,
    uncovered: u64,
}

impl Estimator {
    /// Adds a decision. The model that judges it knows only those before, so that it owes nothing
    /// to the outcome it explains. The first one of all is not judged: without a model its whole
    /// outcome would count as unexplained.
    pub fn add_decision(&mut self, decided: &Decided<'_>) {
        let Decided { logged, rule, .. } = decided;
        let uncovered: f64 = (0..ARMS)
            .filter(|&i| logged[i] <= 0.0)
            .map(|i| rule[i])
            .sum();
        self.add_drawn(decided, logged[decided.arm], uncovered <= UNCOVERED_MAX);
    }

    /// Adds a decision of which the log has the probability of its own arm alone: `chance`.
    /// [`Decided::logged`] has that arm as certain, so that the log's outcome stands for itself.
    /// `covered`: the log gave a chance to what the rule chooses. It must not depend on the arm.
    pub fn add_drawn(&mut self, decided: &Decided<'_>, chance: f64, covered: bool) {
        if self.model.is_empty() {
            return self.model.learn_outcome(decided);
        }
        let Decided { logged, rule, .. } = decided;
        if chance <= 0.0 || !covered || decided.pace <= 0.0 {
            self.uncovered += 1;
        } else {
            let expected = self.model.expected_outcomes(decided.host, decided.class);
            let count = decided.stands_for * decided.pace;
            let weight = count * rule[decided.arm] / chance;
            let modelled: f64 = (0..ARMS).map(|i| (rule[i] - logged[i]) * expected[i]).sum();
            let unexplained = decided.outcome - expected[decided.arm];
            self.hosts.entry(decided.host).or_default().add(&Sums {
                own: decided.pace,
                connections: decided.stands_for,
                count,
                outcome: count * decided.outcome,
                weight,
                weighted: weight * decided.outcome,
                modelled: count * modelled,
                unexplained: count * unexplained,
                weighted_unexplained: weight * unexplained,
                squares: weight * weight,
            });
            self.connections += 1;
        }
        self.model.learn_outcome(decided);
    }

    fn sums_by_host(&self) -> Vec<Sums> {
        self.hosts.values().map(Sums::of_connections).collect()
    }

    /// The size of the sample so far.
    pub fn sample_size(&self) -> Size {
        let sums = self.sums_by_host();
        let of_hosts: f64 = sums.iter().map(|host| host.weight.powi(2)).sum();
        let total = total_sums(&sums);
        let square = total.weight.powi(2);
        let effective = |squares: f64| if squares > 0.0 { square / squares } else { 0.0 };
        Size {
            connections: self.connections,
            uncovered: self.uncovered,
            hosts: self.hosts.len() as u64,
            stand_for: sums.iter().map(|host| host.connections).sum(),
            decisions: sums.iter().map(|host| host.own).sum(),
            effective: effective(sums.iter().map(|host| host.squares).sum()),
            effective_hosts: effective(of_hosts),
            overlap: if total.count > 0.0 {
                total.weight / total.count
            } else {
                0.0
            },
        }
    }

    /// The estimate.
    ///
    /// # Errors
    /// A sample too small.
    pub fn estimate(&self) -> Result<Estimate, TooSmall> {
        let size = self.sample_size();
        let hosts = size.effective_hosts < EFFECTIVE_HOSTS_MIN;
        if hosts || size.effective < EFFECTIVE_MIN {
            return Err(TooSmall { size, hosts });
        }
        let sums = self.sums_by_host();
        let total = total_sums(&sums);
        let logged = total.outcome / total.count;
        let weighted = total.weighted / total.weight;
        let modelled = total.modelled / total.count;
        let plain = total.unexplained / total.count;
        let unexplained = total.weighted_unexplained / total.weight;
        // Each host's share in the estimate's error, to first order (ratios of sums).
        let of_weighted = |host: &Sums| {
            (host.weighted - weighted * host.weight) / total.weight
                - (host.outcome - logged * host.count) / total.count
        };
        let of_robust = |host: &Sums| {
            (host.modelled - modelled * host.count) / total.count
                + (host.weighted_unexplained - unexplained * host.weight) / total.weight
                - (host.unexplained - plain * host.count) / total.count
        };
        Ok(Estimate {
            logged,
            weighted: interval_around(weighted - logged, size, sums.iter().map(of_weighted)),
            robust: interval_around(
                modelled + unexplained - plain,
                size,
                sums.iter().map(of_robust),
            ),
        })
    }
}

fn total_sums(sums: &[Sums]) -> Sums {
    let mut total = Sums::default();
    sums.iter().for_each(|host| total.add(host));
    total
}

/// The interval around a mean, from each host's share in its error.
fn interval_around(mean: f64, size: Size, errors: impl Iterator<Item = f64>) -> Interval {
    let hosts = size.hosts as f64;
    let squares: f64 = errors.map(|error| error * error).sum();
    let deviation = (squares * hosts / (hosts - 1.0)).sqrt();
    let half = student::quantile_975(size.effective_hosts - 1.0) * deviation;
    Interval {
        mean,
        low: mean - half,
        high: mean + half,
    }
}
