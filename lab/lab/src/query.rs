//! The values of statistics, computed from a run's connections.

use std::collections::BTreeMap;

use thalweg_report::sample;

use crate::measure::{Measure, jain_index};
use crate::mode::Mode;
use crate::outcome::{Connection, ModeOutcome, ScenarioOutcome};
use crate::scenario::INCUMBENT;
use crate::statistic::Statistic;
use crate::web;

/// Number of connections in the running median of [`Statistic::Convergence`].
pub const WINDOW: usize = 5;
/// Share of the best fixed arm's median that counts as converged.
const CONVERGED: f64 = 0.9;

/// Why a statistic has no value, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoValue {
    /// The mode was run, and nothing was measured that the statistic needs.
    #[error("{0}")]
    Unmeasured(String),
    /// The statistic compares with what is not there: a mode that was not run or moved nothing, or
    /// a change of the path.
    #[error("{0}")]
    NoReference(String),
}

impl NoValue {
    pub(crate) fn not_measured(why: impl Into<String>) -> Self {
        Self::Unmeasured(why.into())
    }

    pub(crate) fn no_reference(why: impl Into<String>) -> Self {
        Self::NoReference(why.into())
    }

    /// A reference that moved nothing excuses only a mode that did move something.
    fn of_dead_reference(reference: &Mode, has_moved: bool) -> Self {
        if has_moved {
            Self::NoReference(format!("the reference {reference} moved nothing"))
        } else {
            Self::Unmeasured(format!("neither it nor {reference} moved anything"))
        }
    }

    /// The reason, for one of several hosts.
    fn at_host(self, host: &str) -> Self {
        match self {
            Self::Unmeasured(why) => Self::Unmeasured(format!("{why} (host {host})")),
            Self::NoReference(why) => Self::NoReference(format!("{why} (host {host})")),
        }
    }
}

/// A statistic, with the arm or class that it is restricted to.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Which statistic.
    pub statistic: Statistic,
    /// The arm of [`Statistic::ArmShare`].
    pub arm: Option<&'a str>,
    /// Only flows of this class; none: all but incumbents, whose failures count.
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
    /// The value of a mode, among all modes of the scenario. A goal that was not reached is
    /// infinite.
    ///
    /// # Errors
    /// Why there is no value.
    pub fn mode_value(&self, outcome: &ModeOutcome, modes: &[ModeOutcome]) -> Result<f64, NoValue> {
        let chosen = self.chosen_connections(outcome);
        let goodputs: Vec<f64> = chosen.iter().map(|one| one.goodput_bps).collect();
        let last: Vec<&Connection> = chosen
            .iter()
            .filter(|one| one.round >= outcome.rounds / 2)
            .copied()
            .collect();
        let last_half: Vec<f64> = last.iter().map(|one| one.goodput_bps).collect();
        let quantile = |measure: Measure, share: f64| {
            sample::weighted_quantile(&measure.mode_values(chosen.iter().copied(), outcome), share)
        };
        let time_of_last = |share: f64| {
            sample::weighted_quantile(
                &Measure::Fct.mode_values(last.iter().copied(), outcome),
                share,
            )
        };
        let value = match self.statistic {
            Statistic::Median => sample::median(&goodputs),
            Statistic::MedianLastHalf => sample::median(&last_half),
            Statistic::Mean => sample::mean(&goodputs),
            Statistic::LowerQuartile => sample::quantile(&goodputs, 0.25),
            Statistic::LowerQuartileLastHalf => sample::quantile(&last_half, 0.25),
            Statistic::Total => total_goodput(&chosen),
            Statistic::ConvergedShare => outcome.converged_share(),
            Statistic::ArmShare => arm_share(outcome, self.arm.unwrap_or_default()),
            Statistic::Convergence => {
                let best = self.best_median(modes, 0, &goodputs)?;
                return Ok(rounds_to_converge(&goodputs, best));
            }
            Statistic::Recovery => {
                let first = outcome
                    .last_change
                    .ok_or_else(|| NoValue::no_reference("the path does not change"))?;
                let after: Vec<f64> = chosen
                    .iter()
                    .filter(|one| one.round >= first)
                    .map(|one| one.goodput_bps)
                    .collect();
                let best = self.best_median(modes, first, &after)?;
                return Ok(rounds_to_converge(&after, best));
            }
            Statistic::Regret | Statistic::RegretPerConnection => {
                let best = self.best_median(modes, 0, &goodputs)?;
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
            Statistic::FctMean => {
                sample::weighted_mean(&Measure::Fct.mode_values(chosen.iter().copied(), outcome))
            }
            Statistic::FctMedian => quantile(Measure::Fct, 0.5),
            Statistic::FctP95 => quantile(Measure::Fct, 0.95),
            Statistic::FctP99 => quantile(Measure::Fct, 0.99),
            Statistic::FctMedianLastHalf => time_of_last(0.5),
            Statistic::FctP99LastHalf => time_of_last(0.99),
            Statistic::PageMean => sample::mean(&page_times(outcome)),
            Statistic::PageMedian => sample::median(&page_times(outcome)),
            Statistic::PageP95 => sample::quantile(&page_times(outcome), 0.95),
            Statistic::PageP99 => sample::quantile(&page_times(outcome), 0.99),
            Statistic::Share if has_dead_round(outcome) => {
                return Err(NoValue::not_measured("nothing arrived in a round"));
            }
            Statistic::Share => per_round(outcome, newcomer_share),
            Statistic::Jain => per_round(outcome, |flows| {
                let rates: Vec<f64> = flows.iter().map(|flow| flow.goodput_bps).collect();
                // Without it the rounds of a starving controller would not count.
                Some(jain_index(&rates).unwrap_or(0.0))
            }),
            Statistic::Fairness => round_fairness(&chosen),
            Statistic::FairnessLastHalf => round_fairness(&last),
            Statistic::Harm => return median_harm(outcome, modes),
            Statistic::Loss => outcome.forward.loss_share(),
            Statistic::QueueLoss => outcome.forward.queue_loss(),
            Statistic::OfBestPerHost => return of_best(outcome, modes),
            Statistic::Gain | Statistic::GainLow | Statistic::GainHigh | Statistic::GainMisses => {
                return gain_value(outcome, self.statistic);
            }
            Statistic::Failures => {
                Some(chosen.iter().filter(|one| one.error.is_some()).count() as f64)
            }
        };
        value.ok_or_else(|| match self.class {
            Some(class) if chosen.is_empty() => {
                NoValue::Unmeasured(format!("no flow of class {class:?} was measured"))
            }
            _ => NoValue::not_measured("nothing was measured"),
        })
    }

    fn chosen_connections<'a>(&self, outcome: &'a ModeOutcome) -> Vec<&'a Connection> {
        outcome
            .connections
            .iter()
            .filter(|connection| match self.class {
                Some(class) => connection.class == class,
                None if self.statistic == Statistic::Failures => true,
                None => connection.class != INCUMBENT,
            })
            .collect()
    }

    /// The fixed mode with the highest median goodput of these flows, from a round on; the first of
    /// equals.
    pub fn best_fixed<'a>(
        &self,
        modes: &'a [ModeOutcome],
        from_round: u32,
    ) -> Option<(&'a ModeOutcome, f64)> {
        let mut best: Option<(&ModeOutcome, f64)> = None;
        for outcome in modes {
            let goodputs: Vec<f64> = self
                .chosen_connections(outcome)
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

    /// The fixed mode that is best by this statistic. All but [`Statistic::OfBestPerHost`] go by
    /// median goodput.
    pub fn best_setting<'a>(&self, modes: &'a [ModeOutcome]) -> Option<&'a ModeOutcome> {
        match self.statistic {
            Statistic::OfBestPerHost => best_setting(modes).map(|(best, _)| best),
            _ => self.best_fixed(modes, 0).map(|(best, _)| best),
        }
    }

    /// The best fixed median from a round on, to compare goodputs of a mode with.
    fn best_median(
        &self,
        modes: &[ModeOutcome],
        from_round: u32,
        own: &[f64],
    ) -> Result<f64, NoValue> {
        match self.best_fixed(modes, from_round) {
            Some((_, median)) if median > 0.0 => Ok(median),
            Some((outcome, _)) => {
                let has_moved = own.iter().any(|goodput| *goodput > 0.0);
                Err(NoValue::of_dead_reference(&outcome.mode, has_moved))
            }
            None => Err(NoValue::no_reference("no mode fixed:ARM was run")),
        }
    }
}

/// Number of values until the median of the last [`WINDOW`] is near the best; infinite if it never
/// is.
fn rounds_to_converge(values: &[f64], best: f64) -> f64 {
    running_median(values)
        .position(|median| median >= CONVERGED * best)
        .map_or(f64::INFINITY, |place| (place + WINDOW) as f64)
}

/// The median of each [`WINDOW`] consecutive values. The first belongs to value number [`WINDOW`].
pub fn running_median(values: &[f64]) -> impl Iterator<Item = f64> {
    values.windows(WINDOW).filter_map(sample::median)
}

/// The times of a mode's pages, µs.
fn page_times(outcome: &ModeOutcome) -> Vec<f64> {
    web::page_times(outcome).into_values().collect()
}

fn arm_share(outcome: &ModeOutcome, arm: &str) -> Option<f64> {
    let total = outcome.last_half().count();
    let on_arm = outcome.last_half().filter(|one| one.arm == arm).count();
    (total > 0).then(|| on_arm as f64 / total as f64)
}

fn retransmission_share(connections: &[&Connection]) -> Option<f64> {
    let known = || connections.iter().filter(|one| one.sent_segments.is_some());
    let sent: f64 = known()
        .filter_map(|one| one.sent_segments)
        .map(|it| it as f64)
        .sum();
    let again: f64 = known().map(|one| one.retransmits as f64).sum();
    (sent > 0.0).then(|| (again / sent).min(1.0))
}

/// Median over the rounds: sum of the flows' parts of goodput.
fn total_goodput(connections: &[&Connection]) -> Option<f64> {
    let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
    for one in connections {
        if let Some(part) = one.part_bps {
            *sums.entry(one.round).or_default() += part;
        }
    }
    sample::median(&sums.into_values().collect::<Vec<_>>())
}

/// Median over the rounds: min/max ratio of the flows' parts of goodput, 0 where nothing arrived.
/// Rounds of a single flow are left out.
fn round_fairness(connections: &[&Connection]) -> Option<f64> {
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
            let least = sample::quantile(&parts, 0.0)?;
            let most = sample::quantile(&parts, 1.0)?;
            Some(if most > 0.0 { least / most } else { 0.0 })
        })
        .collect();
    sample::median(&figures)
}

/// Median over the rounds of a figure of their flows. Only rounds with incumbents count, as flows
/// compete there.
fn per_round(outcome: &ModeOutcome, figure: impl Fn(&[&Connection]) -> Option<f64>) -> Option<f64> {
    let figures: Vec<f64> = connections_by_round(outcome)
        .values()
        .filter(|flows| flows.iter().any(|flow| flow.class == INCUMBENT))
        .filter_map(|flows| figure(flows))
        .collect();
    sample::median(&figures)
}

/// Whether flows competed in a round in which nothing arrived. A share of 0 there would keep every
/// upper bound.
fn has_dead_round(outcome: &ModeOutcome) -> bool {
    connections_by_round(outcome).values().any(|flows| {
        flows.iter().any(|flow| flow.class == INCUMBENT) && newcomer_share(flows).is_none()
    })
}

/// The newcomers' share of the goodput of a round's flows; none where nothing arrived.
fn newcomer_share(flows: &[&Connection]) -> Option<f64> {
    let part = |incumbent: bool| -> f64 {
        let of = |flow: &&&Connection| (flow.class == INCUMBENT) == incumbent;
        flows.iter().filter(of).map(|flow| flow.goodput_bps).sum()
    };
    let (old, new) = (part(true), part(false));
    (old + new > 0.0).then(|| new / (old + new))
}

fn connections_by_round(outcome: &ModeOutcome) -> BTreeMap<u32, Vec<&Connection>> {
    let mut rounds: BTreeMap<u32, Vec<&Connection>> = BTreeMap::new();
    for connection in &outcome.connections {
        rounds.entry(connection.round).or_default().push(connection);
    }
    rounds
}

fn median_harm(outcome: &ModeOutcome, modes: &[ModeOutcome]) -> Result<f64, NoValue> {
    // A round's incumbents are averaged: the newcomers do not decide how incumbents share.
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
    let with = incumbents(outcome)
        .ok_or_else(|| NoValue::not_measured("there are no incumbents to be harmed"))?;
    // Their application sets the congestion control, the same in every mode. Another mode tells it
    // where every incumbent failed.
    let mut all = std::iter::once(outcome)
        .chain(modes)
        .flat_map(|mode| &mode.connections);
    let arm = all
        .find(|one| one.class == INCUMBENT && !one.arm.is_empty())
        .map(|one| one.arm.as_str())
        .ok_or_else(|| NoValue::not_measured("every incumbent failed"))?;
    let same_group = Mode::Fixed(arm.to_owned());
    let alone = modes
        .iter()
        .find(|other| other.mode == same_group)
        .and_then(incumbents)
        .ok_or_else(|| NoValue::NoReference(format!("mode {same_group} was not run")))?;
    if alone > 0.0 {
        Ok(1.0 - with / alone)
    } else {
        Err(NoValue::of_dead_reference(&same_group, with > 0.0))
    }
}

/// A statistic of the agent's own account. Without an interval its ends miss every bound.
fn gain_value(outcome: &ModeOutcome, statistic: Statistic) -> Result<f64, NoValue> {
    let gain = outcome
        .gain
        .as_ref()
        .ok_or_else(|| NoValue::not_measured("mode gain alone tells it"))?;
    let of = |percent: Option<f64>, otherwise: f64| percent.map_or(otherwise, |it| it / 100.0);
    let time = gain.transfer_time_row();
    match statistic {
        Statistic::GainMisses if gain.rows.is_empty() => {
            Err(NoValue::not_measured("nothing was compared"))
        }
        Statistic::GainMisses => gain.missed_rows().map_err(NoValue::NoReference),
        Statistic::GainLow => Ok(of(time.and_then(|row| row.low), f64::NEG_INFINITY)),
        Statistic::GainHigh => Ok(of(time.and_then(|row| row.high), f64::INFINITY)),
        _ => {
            let effect = time.and_then(|row| row.effect);
            effect
                .map(|percent| percent / 100.0)
                .ok_or_else(|| NoValue::not_measured("nothing was compared"))
        }
    }
}

/// Goodput of a mode's last half towards one host, relative to that host's best fixed arm. `modes`
/// come from [`ModeOutcome::towards_host`].
pub(crate) fn of_best_here(mode: &ModeOutcome, modes: &[ModeOutcome]) -> Result<f64, NoValue> {
    let query = Query::from(Statistic::MedianLastHalf);
    let settled = query.mode_value(mode, modes)?;
    let (best, median) = query
        .best_fixed(modes, 0)
        .ok_or_else(|| NoValue::no_reference("no mode fixed:ARM was run"))?;
    // Both cover the same rounds, if the reference has any of them.
    let median = query.mode_value(best, modes).unwrap_or(median);
    if median > 0.0 {
        Ok(settled / median)
    } else {
        Err(NoValue::of_dead_reference(&best.mode, settled > 0.0))
    }
}

/// [`Statistic::OfBestPerHost`].
pub(crate) fn of_best(outcome: &ModeOutcome, modes: &[ModeOutcome]) -> Result<f64, NoValue> {
    let parts = outcome
        .remotes
        .iter()
        .map(|remote| {
            let name = &remote.name;
            let modes: Vec<ModeOutcome> = modes
                .iter()
                .filter_map(|mode| mode.towards_host(name))
                .collect();
            let here = outcome
                .towards_host(name)
                .ok_or_else(|| NoValue::not_measured("no such host"))?;
            of_best_here(&here, &modes).map_err(|why| why.at_host(name))
        })
        .collect::<Result<Vec<f64>, NoValue>>()?;
    sample::mean(&parts).ok_or_else(|| NoValue::not_measured("there is one host only"))
}

/// The best single setting for all hosts: the fixed mode with the highest
/// [`Statistic::OfBestPerHost`], with that value; the first of equals.
pub(crate) fn best_setting(modes: &[ModeOutcome]) -> Option<(&ModeOutcome, f64)> {
    let mut best: Option<(&ModeOutcome, f64)> = None;
    for outcome in modes {
        if matches!(outcome.mode, Mode::Fixed(_))
            && let Ok(value) = of_best(outcome, modes)
            && best.is_none_or(|(_, highest)| value > highest)
        {
            best = Some((outcome, value));
        }
    }
    best
}

impl ScenarioOutcome {
    /// The fixed mode with the highest median goodput; the first of equals.
    pub fn best_fixed(&self) -> Option<&ModeOutcome> {
        let (outcome, _) = Query::from(Statistic::Median).best_fixed(&self.modes, 0)?;
        Some(outcome)
    }
}

#[cfg(test)]
#[path = "query_tests.rs"]
mod tests;
