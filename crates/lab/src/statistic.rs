//! The figures of a mode. Each is defined here once; the tables, the page,
//! `results.json` and the expectations read it.

use std::collections::BTreeMap;

use thalweg_report::sample;

use crate::measure::Better::{Higher, Lower};
use crate::measure::Unit::{BitsPerSecond, Microseconds, Number, Share};
use crate::measure::{Better, Measure, Unit, jain};
use crate::mode::Mode;
use crate::outcome::{Connection, INCUMBENT, ModeOutcome};
use crate::several;

/// How many connections the running median of [`Statistic::Convergence`] covers.
pub const WINDOW: usize = 5;
/// The part of the best fixed arm's median that counts as converged.
const CONVERGED: f64 = 0.9;

thalweg_report::statistics! {
    /// What is computed of a mode's connections.
    Statistic: (&'static str, Unit, Better);
    Median, "median", ("median goodput", BitsPerSecond, Higher),
        "median goodput of all connections";
    MedianLastHalf, "median-last-half", ("median goodput of the last half", BitsPerSecond, Higher),
        "median goodput of the last half of the rounds; compared with the same rounds of the \
         reference";
    Mean, "mean", ("mean goodput", BitsPerSecond, Higher),
        "mean goodput of all connections: it includes what learning costs";
    LowerQuartile, "lower-quartile", ("lower quartile of goodput", BitsPerSecond, Higher),
        "goodput that three quarters of the connections reach";
    Total, "total", ("goodput of a round's flows together", BitsPerSecond, Higher),
        "what the flows of a round carry together within its time; median over the rounds \
         (competing, incast)";
    ConvergedShare, "converged-share", ("share of the most frequent arm in the last half", Share, Higher),
        "share of the last half's connections on the arm most frequent there";
    ArmShare, "arm-share", ("share of an arm in the last half", Share, Higher),
        "share of the last half's connections on the arm that `arm` names";
    Convergence, "convergence", ("connections until converged", Number, Lower),
        "number of connections until the median of the last 5 is 90 % of the best fixed arm's \
         median; at least 5";
    Recovery, "recovery", ("connections until converged after the change", Number, Lower),
        "convergence counted from the last change of the path, against the arm best after it";
    Regret, "regret", ("regret", Number, Lower),
        "sum over the connections of 1 − goodput / the best fixed arm's median: how many of its \
         connections were lost";
    RegretPerConnection, "regret-per-connection", ("regret per connection", Number, Lower),
        "regret divided by the number of connections";
    RetransmissionShare, "retransmission-share", ("share of segments retransmitted", Share, Lower),
        "segments retransmitted, of all data segments of all connections";
    RttMedian, "rtt-median", ("median RTT", Microseconds, Lower),
        "median of single round-trip times of data, by TCP timestamps";
    RttP95, "rtt-p95", ("95th percentile of RTT", Microseconds, Lower),
        "95th percentile of those times";
    RttP99, "rtt-p99", ("99th percentile of RTT", Microseconds, Lower),
        "99th percentile of those times";
    SrttMedian, "srtt-median", ("median smoothed RTT", Microseconds, Lower),
        "median of the samples of smoothed round-trip time";
    SrttP95, "srtt-p95", ("95th percentile of smoothed RTT", Microseconds, Lower),
        "95th percentile of those samples";
    SrttP99, "srtt-p99", ("99th percentile of smoothed RTT", Microseconds, Lower),
        "99th percentile of those samples";
    QueueDelayMedian, "queue-delay-median", ("median queue delay", Microseconds, Lower),
        "median of smoothed round-trip time less the scenario's least round-trip time";
    QueueDelayP95, "queue-delay-p95", ("95th percentile of queue delay", Microseconds, Lower),
        "95th percentile of the same";
    FctMedian, "fct-median", ("median flow-completion time", Microseconds, Lower),
        "median time of flows of known size, from the call of connect until the receiver has the \
         last byte";
    FctP95, "fct-p95", ("95th percentile of flow-completion time", Microseconds, Lower),
        "95th percentile of the same; a failed flow counts as infinite";
    FctP99, "fct-p99", ("99th percentile of flow-completion time", Microseconds, Lower),
        "99th percentile of the same";
    Share, "share", ("share of the bottleneck", Share, Higher),
        "the newcomers' part of all goodput of a round; median over the rounds (competing)";
    Jain, "jain", ("Jain's fairness index", Number, Higher),
        "Jain's index of the goodputs of all flows of a round, 1/n to 1; median over the rounds \
         (competing)";
    Fairness, "fairness", ("least goodput over the greatest", Share, Higher),
        "the least goodput of a round's flows over the greatest; median over the rounds of \
         several flows at a time";
    FairnessLastHalf, "fairness-last-half", ("the same in the last half", Share, Higher),
        "the same of the last half of the rounds; compared with the same rounds of the reference";
    Harm, "harm", ("harm to the incumbents", Number, Lower),
        "1 − the incumbents' mean goodput, median over the rounds, / the same in the mode in \
         which the newcomers run the incumbents' congestion control; negative where they gain \
         (competing)";
    Loss, "loss", ("share of packets dropped", Share, Lower),
        "share of the packets dropped in the data direction";
    Failures, "failures", ("number of failed connections", Number, Lower),
        "number of failed connections";
    OfBestPerHost, "of-best-per-host", ("goodput to each host's best arm", Number, Higher),
        "median goodput of the last half towards each host, to that host's best fixed arm; mean \
         over the hosts (several hosts)";
}

impl Statistic {
    /// Its name for a reader.
    pub fn words(self) -> &'static str {
        self.definition().0
    }

    /// Its unit.
    pub fn unit(self) -> Unit {
        self.definition().1
    }

    /// Which direction is an improvement.
    pub fn better(self) -> Better {
        self.definition().2
    }

    /// Whether a ratio to the same statistic of a reference makes sense.
    pub fn is_comparable(self) -> bool {
        matches!(self.unit(), Unit::BitsPerSecond | Unit::Microseconds)
            || matches!(
                self,
                Self::OfBestPerHost
                    | Self::RetransmissionShare
                    | Self::Fairness
                    | Self::FairnessLastHalf
                    | Self::Share
            )
    }

    /// What of a scenario with several hosts it can be about.
    pub fn scope(self) -> Scope {
        match self {
            Self::OfBestPerHost => Scope::Hosts,
            Self::RetransmissionShare | Self::Loss | Self::Failures => Scope::Any,
            _ => Scope::Path,
        }
    }

    /// Whether a value may lie below zero.
    pub fn may_be_negative(self) -> bool {
        matches!(self, Self::Regret | Self::RegretPerConnection | Self::Harm)
    }

    /// Whether it is about some of the connections only, so that a class can be
    /// named.
    pub fn takes_class(self) -> bool {
        !matches!(
            self,
            Self::Share
                | Self::Jain
                | Self::Harm
                | Self::Loss
                | Self::ArmShare
                | Self::OfBestPerHost
        )
    }
}

/// What of a scenario with several hosts a statistic can be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One host: figures of different paths are not to be mixed.
    Path,
    /// One host, or all together.
    Any,
    /// All together only.
    Hosts,
}

/// A statistic and what it is about.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Which statistic.
    pub statistic: Statistic,
    /// The arm of [`Statistic::ArmShare`].
    pub arm: Option<&'a str>,
    /// Only flows of this class; none: all but incumbents.
    pub class: Option<&'a str>,
}

impl From<Statistic> for Query<'_> {
    fn from(statistic: Statistic) -> Self {
        Self {
            statistic,
            arm: None,
            class: None,
        }
    }
}

impl Query<'_> {
    /// The value of a mode among all that were measured in the scenario; what was
    /// not reached is infinite.
    ///
    /// # Errors
    /// Why it has no value, in words.
    pub fn value(&self, outcome: &ModeOutcome, modes: &[ModeOutcome]) -> Result<f64, String> {
        let chosen = self.chosen(outcome);
        let goodputs: Vec<f64> = chosen.iter().map(|one| one.goodput_bps).collect();
        let last_half: Vec<f64> = chosen
            .iter()
            .filter(|one| one.round >= outcome.rounds / 2)
            .map(|one| one.goodput_bps)
            .collect();
        let quantile = |measure: Measure, share: f64| {
            sample::weighted_quantile(&measure.of(chosen.iter().copied(), outcome), share)
        };
        let value = match self.statistic {
            Statistic::Median => sample::median(&goodputs),
            Statistic::MedianLastHalf => sample::median(&last_half),
            Statistic::Mean => sample::mean(&goodputs),
            Statistic::LowerQuartile => sample::quantile(&goodputs, 0.25),
            Statistic::Total => total(&chosen),
            Statistic::ConvergedShare => outcome.converged_share(),
            Statistic::ArmShare => arm_share(outcome, self.arm.unwrap_or_default()),
            Statistic::Convergence => {
                return Ok(convergence(&goodputs, self.best_median(modes, 0)?));
            }
            Statistic::Recovery => {
                let first = outcome.last_change.ok_or("the path does not change")?;
                let after: Vec<f64> = chosen
                    .iter()
                    .filter(|one| one.round >= first)
                    .map(|one| one.goodput_bps)
                    .collect();
                return Ok(convergence(&after, self.best_median(modes, first)?));
            }
            Statistic::Regret | Statistic::RegretPerConnection => {
                let best = self.best_median(modes, 0)?;
                let sum: f64 = goodputs.iter().map(|goodput| 1.0 - goodput / best).sum();
                if self.statistic == Statistic::Regret {
                    (!goodputs.is_empty()).then_some(sum)
                } else {
                    (!goodputs.is_empty()).then(|| sum / goodputs.len() as f64)
                }
            }
            Statistic::RetransmissionShare => retransmission_share(&chosen),
            Statistic::RttMedian => quantile(Measure::Rtt, 0.5),
            Statistic::RttP95 => quantile(Measure::Rtt, 0.95),
            Statistic::RttP99 => quantile(Measure::Rtt, 0.99),
            Statistic::SrttMedian => quantile(Measure::Srtt, 0.5),
            Statistic::SrttP95 => quantile(Measure::Srtt, 0.95),
            Statistic::SrttP99 => quantile(Measure::Srtt, 0.99),
            Statistic::QueueDelayMedian => quantile(Measure::QueueDelay, 0.5),
            Statistic::QueueDelayP95 => quantile(Measure::QueueDelay, 0.95),
            Statistic::FctMedian => quantile(Measure::Fct, 0.5),
            Statistic::FctP95 => quantile(Measure::Fct, 0.95),
            Statistic::FctP99 => quantile(Measure::Fct, 0.99),
            Statistic::Share => per_round(outcome, share),
            Statistic::Jain => per_round(outcome, |flows| {
                let rates: Vec<f64> = flows.iter().map(|flow| flow.goodput_bps).collect();
                jain(&rates)
            }),
            Statistic::Fairness => fairness(&chosen),
            Statistic::FairnessLastHalf => {
                let mut last_half = chosen.clone();
                last_half.retain(|one| one.round >= outcome.rounds / 2);
                fairness(&last_half)
            }
            Statistic::Harm => return harm(outcome, modes),
            Statistic::Loss => outcome.forward.loss(),
            Statistic::OfBestPerHost => return several::of_best(outcome, modes),
            Statistic::Failures => {
                Some(chosen.iter().filter(|one| one.error.is_some()).count() as f64)
            }
        };
        value.ok_or_else(|| match self.class {
            Some(class) if chosen.is_empty() => format!("no flow of class {class:?} was measured"),
            _ => "nothing was measured".to_owned(),
        })
    }

    fn chosen<'a>(&self, outcome: &'a ModeOutcome) -> Vec<&'a Connection> {
        outcome
            .connections
            .iter()
            .filter(|connection| match self.class {
                Some(class) => connection.class == class,
                None => connection.class != INCUMBENT,
            })
            .collect()
    }

    /// The fixed mode with the highest median goodput of the flows in question,
    /// from a round on; the first of equals.
    pub fn best_fixed<'a>(
        &self,
        modes: &'a [ModeOutcome],
        from_round: u32,
    ) -> Option<(&'a ModeOutcome, f64)> {
        let mut best: Option<(&ModeOutcome, f64)> = None;
        for outcome in modes {
            let goodputs: Vec<f64> = self
                .chosen(outcome)
                .iter()
                .filter(|one| one.round >= from_round)
                .map(|one| one.goodput_bps)
                .collect();
            if matches!(outcome.mode, Mode::Fixed(_))
                && let Some(median) = sample::median(&goodputs)
                && best.is_none_or(|(_, highest)| median > highest)
            {
                best = Some((outcome, median));
            }
        }
        best
    }

    /// The fixed mode that does best by this statistic: by its value over all hosts,
    /// otherwise by median goodput.
    pub fn best_setting<'a>(&self, modes: &'a [ModeOutcome]) -> Option<&'a ModeOutcome> {
        match self.statistic {
            Statistic::OfBestPerHost => several::best_setting(modes).map(|(best, _)| best),
            _ => self.best_fixed(modes, 0).map(|(best, _)| best),
        }
    }

    fn best_median(&self, modes: &[ModeOutcome], from_round: u32) -> Result<f64, String> {
        match self.best_fixed(modes, from_round) {
            Some((_, median)) if median > 0.0 => Ok(median),
            Some((outcome, _)) => Err(format!("the reference {} moved nothing", outcome.mode)),
            None => Err("no mode fixed:ARM was run".to_owned()),
        }
    }
}

/// The number of values until the median of the last [`WINDOW`] is near the
/// best; infinite where that never happens.
fn convergence(values: &[f64], best: f64) -> f64 {
    running_median(values)
        .position(|median| median >= CONVERGED * best)
        .map_or(f64::INFINITY, |place| (place + WINDOW) as f64)
}

/// The median of each [`WINDOW`] values in a row; the first belongs to value
/// number [`WINDOW`].
pub fn running_median(values: &[f64]) -> impl Iterator<Item = f64> {
    values.windows(WINDOW).filter_map(sample::median)
}

fn arm_share(outcome: &ModeOutcome, arm: &str) -> Option<f64> {
    let total = outcome.last_half().count();
    let on_arm = outcome.last_half().filter(|one| one.arm == arm).count();
    (total > 0).then(|| on_arm as f64 / total as f64)
}

fn retransmission_share(connections: &[&Connection]) -> Option<f64> {
    let known = || connections.iter().filter(|one| one.sent_segments.is_some());
    let sent: u64 = known().filter_map(|one| one.sent_segments).sum();
    let again: u64 = known().map(|one| one.retransmits).sum();
    (sent > 0).then(|| (again as f64 / sent as f64).min(1.0))
}

/// The median over the rounds of the sum of what the flows carry.
fn total(connections: &[&Connection]) -> Option<f64> {
    let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
    for one in connections {
        if let Some(part) = one.part_bps {
            *sums.entry(one.round).or_default() += part;
        }
    }
    sample::median(&sums.into_values().collect::<Vec<_>>())
}

/// The median over the rounds of the least goodput over the greatest; of rounds of several
/// flows at a time, which add to the goodput of their round.
fn fairness(connections: &[&Connection]) -> Option<f64> {
    let mut parts: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for one in connections {
        if let Some(part) = one.part_bps {
            parts.entry(one.round).or_default().push(part);
        }
    }
    let figures: Vec<f64> = parts
        .into_values()
        .filter(|parts| parts.len() > 1)
        .filter_map(|parts| {
            let most = sample::quantile(&parts, 1.0).filter(|most| *most > 0.0)?;
            Some(sample::quantile(&parts, 0.0)? / most)
        })
        .collect();
    sample::median(&figures)
}

/// The median over the rounds of a figure of a round's flows; only of rounds that
/// have incumbents, in which flows compete.
fn per_round(outcome: &ModeOutcome, figure: impl Fn(&[&Connection]) -> Option<f64>) -> Option<f64> {
    let figures: Vec<f64> = rounds(outcome)
        .values()
        .filter(|flows| flows.iter().any(|flow| flow.class == INCUMBENT))
        .filter_map(|flows| figure(flows))
        .collect();
    sample::median(&figures)
}

/// The newcomers' part of what the flows of a round carry.
fn share(flows: &[&Connection]) -> Option<f64> {
    let part = |incumbent: bool| -> f64 {
        let of = |flow: &&&Connection| (flow.class == INCUMBENT) == incumbent;
        flows.iter().filter(of).map(|flow| flow.goodput_bps).sum()
    };
    let (old, new) = (part(true), part(false));
    (old + new > 0.0).then(|| new / (old + new))
}

fn rounds(outcome: &ModeOutcome) -> BTreeMap<u32, Vec<&Connection>> {
    let mut rounds: BTreeMap<u32, Vec<&Connection>> = BTreeMap::new();
    for connection in &outcome.connections {
        rounds.entry(connection.round).or_default().push(connection);
    }
    rounds
}

fn harm(outcome: &ModeOutcome, modes: &[ModeOutcome]) -> Result<f64, String> {
    // A round's incumbents together, because which of them has more is not the
    // newcomers' doing.
    let incumbents = |outcome: &ModeOutcome| {
        per_round(outcome, |flows| {
            let theirs: Vec<f64> = flows
                .iter()
                .filter(|flow| flow.class == INCUMBENT)
                .map(|flow| flow.goodput_bps)
                .collect();
            sample::mean(&theirs)
        })
    };
    let with = incumbents(outcome).ok_or("there are no incumbents to be harmed")?;
    let mut all = outcome.connections.iter();
    let arm = all
        .find(|one| one.class == INCUMBENT && !one.arm.is_empty())
        .map(|one| one.arm.as_str())
        .ok_or("every incumbent failed")?;
    let same_group = Mode::Fixed(arm.to_owned());
    let alone = modes
        .iter()
        .find(|other| other.mode == same_group)
        .and_then(incumbents)
        .ok_or_else(|| format!("mode {same_group} was not run"))?;
    if alone > 0.0 {
        Ok(1.0 - with / alone)
    } else {
        Err(format!("the reference {same_group} moved nothing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_files_and_none_is_missing_or_twice() {
        let mut keys = std::collections::BTreeSet::new();
        for statistic in Statistic::ALL {
            assert_eq!(serde_json::to_value(statistic).unwrap(), statistic.key());
            assert!(keys.insert(statistic.key()), "{}", statistic.key());
            assert!(!statistic.description().is_empty() && !statistic.words().is_empty());
        }
        // The page for users has a row for each.
        let page = include_str!("../../../docs/reference/lab.md");
        for key in keys {
            assert!(page.contains(&format!("| `{key}` |")), "{key}");
        }
    }
}
