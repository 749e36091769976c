//! The fleet: what many agents told of one network, as one record that their kernels can use.
//!
//! An agent tells its own numbers alone ([`own_report`]): what it took over from wider networks, and
//! from other agents, is kept apart in its records, and is never told again. The numbers of all agents
//! become one mean and evidence for each arm ([`aggregate_reports`]), and those a record ([`fleet_record`]).
//!
//! # The influence of one agent
//!
//! Agents lie, or are wrong. An agent's vote on an arm is its evidence, [`VOTE_MAX_Q16`] at most (half a
//! measurement), halved for each [`HALF_LIFE_NS`] of its age, and less if it is not trusted ([`Fleet`]).
//! *W* are the votes of all, *w* that of one agent, *h* is [`AROUND_Q16`] (half a bit). *D* is the distance
//! between two values of the others: those at *w* / 2 of votes on either side of their median. The agent
//! moves the mean by `D + 2 · h · w / W` at most, whatever it tells. *D* is small where the others agree.
//! Several agents that work together count as one with the sum of their votes. Trust is given here: what
//! an agent tells changes it only as it changes means of other networks.
//!
//! In evidence an agent counts for [`EVIDENCE_MAX_Q16`] at most, 4 measurements.
//! A network [knows](crate::knows) from 8 on.

use std::collections::{BTreeMap, BTreeSet};

use crate::fixed::ONE_Q16;
use crate::group::{HALF_LIVES, OFFSET_Q16};
use crate::host::{ArmState, Host, MAX_ARMS};
use crate::key::Level;
use crate::params::Params;
use crate::thalweg;

/// Largest weight of one agent on an arm: 4 measurements.
pub const EVIDENCE_MAX_Q16: u32 = 4 << 16;
/// Largest vote of one agent on a mean: half a measurement, as one host's is worth that has no reference of
/// its own. Whoever lies claims all the evidence there may be.
pub const VOTE_MAX_Q16: u32 = 1 << 15;
/// Largest evidence of all agents for an arm: 64 measurements. Their paths are not this one's.
pub const FLEET_MAX_Q16: u32 = 64 << 16;
/// An agent's weight halves for each of these, ns: a day, as evidence in a network's record.
pub const HALF_LIFE_NS: u64 = 24 * 3_600_000_000_000;
/// Values this far from the median count as this far: half a bit.
pub const AROUND_Q16: u32 = 1 << 15;
/// An arm is at most this many bits better or worse than the system arm: 2. More changes no choice.
pub const CLIP_Q16: u32 = 2 << 16;
/// Least deviation of a measurement: a twelfth of a bit. Without it a few equal values would be
/// certain.
const DEVIATION_MIN_Q16: u32 = 5461;
/// Largest deviation of a measurement: 4 bits.
const DEVIATION_MAX_Q16: u32 = 4 << 16;
/// Deviation of a measurement where no agent knows it: half a bit.
const DEVIATION_Q16: u32 = 1 << 15;
/// Two measurements.
const TWO_Q16: u32 = 2 << 16;
/// Queues are this long at most, bits.
const QUEUE_MAX_Q16: u32 = 16 << 16;
/// Largest number of reporting agents for which one agent's report is worth no more than one
/// agent's evidence. Of a network that few know, all may lie.
const FEW: usize = 5;
/// An agent's error from which it is trusted less, and the largest error of one value, Q16.
const ERROR_Q16: u64 = 2 << 16;
const ERROR_MAX_Q16: u64 = 16 << 16;
/// Values by which an agent is judged, at least.
const CELLS_MIN: u64 = 8;
/// A measurement of the system arm that others told of counts as this many in the share of the default:
/// it is of many hosts.
const TOLD: u32 = 8;
/// Times that agents are judged.
const ROUNDS: usize = 2;
/// Segments that one agent counts for in an arm's share of retransmissions.
const SEGS_MAX: u32 = 1 << 16;

/// One agent's report of one arm in one network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArmReport {
    /// Mean cost by the agent's own measurements: bits above the system arm's, plus 32, Q16.
    pub cost_q16: u32,
    /// Evidence of the agent's own measurements, Q16; 0: the arm was not measured.
    pub evidence_q16: u32,
    /// Mean of log2(bytes per second): above the system arm's, plus 32, Q16.
    pub log_rate_q16: u32,
    /// Mean deviation of a measurement, Q16 bits.
    pub deviation_q16: u32,
    /// Discounted number of data segments.
    pub segs: u32,
    /// Discounted number of retransmissions among the data segments.
    pub retrans: u32,
}

/// One agent's report of one network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentReport {
    /// The agent. Of several reports of one agent the youngest counts.
    pub agent: u64,
    /// Time since its record was read, ns; 0 if that is in the future.
    pub age_ns: u64,
    /// The queue under the system arm, Q16 bits.
    pub queue_q16: u32,
    /// By arm, in the table of the agent that takes the report.
    pub arms: [ArmReport; MAX_ARMS],
}

/// Knowledge of all agents about an arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArmPrior {
    /// Mean cost: bits above the system arm's, plus 32, Q16.
    pub cost_q16: u32,
    /// Measurements of the receiving agent that the prior is worth, Q16; 0: unknown.
    pub evidence_q16: u32,
    /// Mean of log2(bytes per second): above the system arm's, plus 32, Q16.
    pub log_rate_q16: u32,
    /// Mean deviation of a measurement, Q16 bits.
    pub deviation_q16: u32,
    /// Number of data segments.
    pub segs: u32,
    /// Number of retransmissions among the data segments.
    pub retrans: u32,
    /// Agents that told of it.
    pub agents: u32,
}

/// Knowledge of all agents about a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prior {
    /// The queue under the system arm, Q16 bits.
    pub queue_q16: u32,
    /// By arm.
    pub arms: [ArmPrior; MAX_ARMS],
}

/// An agent's own measurements in its record of a network, which it may report. `None`: the record
/// has none, or only what other agents reported.
pub fn own_report(record: &Host) -> Option<[ArmReport; MAX_ARMS]> {
    let level = record.level;
    if !level.is_group() || level.is_window() || level.is_fleet() {
        return None;
    }
    let arms = record.arms.map(|arm| match arm.own_weight_q16 {
        0 => ArmReport::default(),
        evidence_q16 => ArmReport {
            cost_q16: arm.own_q16,
            evidence_q16,
            log_rate_q16: arm.log_rate_q16,
            deviation_q16: arm.deviation_q16,
            segs: arm.segs,
            retrans: arm.retrans,
        },
    });
    let knows = arms.iter().any(|arm| arm.evidence_q16 > 0);
    knows.then_some(arms)
}

/// A value and its weight (Q16, 1 to [`EVIDENCE_MAX_Q16`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Weighed {
    value: i64,
    weight: u64,
}

/// The weighted median, the lower one of two: the least value at which half of the weight is reached.
/// Sorts the values. 0 without any.
fn weighted_median(values: &mut [Weighed]) -> i64 {
    values.sort_unstable();
    let all: u64 = values.iter().map(|value| value.weight).sum();
    let mut reached = 0;
    for value in values.iter() {
        reached += value.weight;
        if 2 * reached >= all {
            return value.value;
        }
    }
    0
}

/// The weighted mean of the values, each taken as [`AROUND_Q16`] from their median at most, and the
/// weighted mean of their distances from it, taken likewise. Sorts the values.
fn robust_mean(values: &mut [Weighed]) -> (i64, u64) {
    let middle = weighted_median(values);
    let around = i64::from(AROUND_Q16);
    let all: u64 = values.iter().map(|value| value.weight).sum();
    if all == 0 {
        return (0, 0);
    }
    let kept = |value: &Weighed| value.value.clamp(middle - around, middle + around);
    // Divided, not shifted: the same for both signs.
    let mean = |of: &dyn Fn(&Weighed) -> i64| {
        let sum: i128 = values
            .iter()
            .map(|value| i128::from(of(value)) * i128::from(value.weight))
            .sum();
        (sum / i128::from(all)) as i64
    };
    let centre = middle + mean(&|value| kept(value) - middle);
    let apart = mean(&|value| (kept(value) - centre).abs());
    (centre, apart as u64)
}

/// The weight of evidence that is so old, Q16.
fn weight_q16(evidence_q16: u32, age_ns: u64) -> u32 {
    let halvings = age_ns / HALF_LIFE_NS;
    let kept = evidence_q16.min(EVIDENCE_MAX_Q16);
    if halvings < 32 { kept >> halvings } else { 0 }
}

/// Knowledge of all agents about one network, from the report of each; `system_arm` is that of the
/// receiving agent. `None`: no agent measured that arm there, so that nothing can be compared.
///
/// An arm counts by its distance from the system arm in the same report, with the lesser of both
/// weights. So agents with other system arms count, too.
pub fn aggregate_reports(
    reports: &[AgentReport],
    fleet: &Fleet,
    system_arm: usize,
) -> Option<Prior> {
    aggregate_sample(reports, 0, fleet, system_arm)
}

/// Knowledge about one network from a random sample of the reports, of so many agents that reported
/// the network. Numbers of agents are those of all, as far as the sample says.
pub fn aggregate_sample(
    reports: &[AgentReport],
    agents: usize,
    fleet: &Fleet,
    system_arm: usize,
) -> Option<Prior> {
    if system_arm >= MAX_ARMS {
        return None;
    }
    let reports = youngest_reports(reports);
    let agents = agents.max(reports.len());
    let mut prior = Prior::default();
    for arm in 0..MAX_ARMS {
        prior.arms[arm] = arm_prior(&reports, agents, fleet, arm, system_arm);
    }
    let mut queues = Vec::with_capacity(reports.len());
    for report in &reports {
        let weight = weight_q16(report.arms[system_arm].evidence_q16, report.age_ns);
        if weight > 0 {
            queues.push(Weighed {
                value: report.queue_q16.min(QUEUE_MAX_Q16).into(),
                weight: weight.into(),
            });
        }
    }
    prior.queue_q16 = weighted_median(&mut queues) as u32;
    (prior.arms[system_arm].evidence_q16 > 0).then_some(prior)
}

/// The agents of a fleet, and how far each is trusted.
///
/// An agent that tells what others do not see, network after network, counts for less. Its *error* is the
/// mean, over the networks and arms of which it told, of its squared distance from what all told, divided
/// by what chance and differing paths explain: d²/e + d²/e' + [`AROUND_Q16`]², 16 at most. Above 2 its
/// weight is multiplied by (2 / error)². It needs [`CELLS_MIN`] such values; only those count that more
/// than a fifth of the agents told of.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    agents: usize,
    /// Trust in agents that are not trusted fully, Q16.
    trust_q16: BTreeMap<u64, u32>,
}

impl Fleet {
    /// Judges the agents by what they told of each network.
    pub fn judge_networks<'a>(
        networks: impl Iterator<Item = &'a [AgentReport]> + Clone,
        system_arm: usize,
    ) -> Self {
        let agents: BTreeSet<u64> = networks.clone().flatten().map(|told| told.agent).collect();
        Self::judge_agents(agents.len(), system_arm, |judge| {
            networks.clone().for_each(|reports| judge(reports, 0));
        })
    }

    /// Judges so many agents. `each` hands over what they told of one network after the other, a sample
    /// and how many told of it; it is called a few times.
    pub fn judge_agents(
        agents: usize,
        system_arm: usize,
        mut each: impl FnMut(&mut dyn FnMut(&[AgentReport], usize)),
    ) -> Self {
        let mut fleet = Self {
            agents,
            trust_q16: BTreeMap::new(),
        };
        // The second time by means in which the first distrust counts.
        for _ in 0..ROUNDS {
            let mut errors: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            each(&mut |reports, agents| {
                fleet.note_errors(reports, agents, system_arm, &mut errors);
            });
            let trust = errors.into_iter().filter_map(|(agent, (sum, count))| {
                let error = sum / count.max(1);
                let trusted = count < CELLS_MIN || error <= ERROR_Q16;
                // The error of one that is not trusted is above ERROR_Q16, so the share is below 1.
                (!trusted).then(|| {
                    let share = (ERROR_Q16 << 16) / error;
                    (agent, ((share * share) >> 16) as u32)
                })
            });
            fleet.trust_q16 = trust.collect();
        }
        fleet
    }

    fn note_errors(
        &self,
        reports: &[AgentReport],
        agents: usize,
        system_arm: usize,
        errors: &mut BTreeMap<u64, (u64, u64)>,
    ) {
        let Some(prior) = aggregate_sample(reports, agents, self, system_arm) else {
            return;
        };
        let around = u128::from(AROUND_Q16).pow(2);
        for (arm, known) in prior.arms.iter().enumerate() {
            if arm == system_arm || known.agents == 0 || self.is_few(known.agents as usize) {
                continue;
            }
            let mean = i64::from(known.cost_q16) - i64::from(OFFSET_Q16);
            for report in youngest_reports(reports) {
                let (own, system) = (&report.arms[arm], &report.arms[system_arm]);
                if own.evidence_q16 == 0 || system.evidence_q16 == 0 {
                    continue;
                }
                let squared = u128::from(known.deviation_q16).pow(2) << 16;
                let chance = squared / u128::from(own.evidence_q16)
                    + squared / u128::from(system.evidence_q16);
                let apart = distance_q16(own.cost_q16, system.cost_q16) - mean;
                let error = (u128::from(apart.unsigned_abs()).pow(2) << 16) / (chance + around);
                let (sum, count) = errors.entry(report.agent).or_default();
                *sum += error.min(ERROR_MAX_Q16.into()) as u64;
                *count += 1;
            }
        }
    }

    /// Number of agents.
    pub fn agents(&self) -> usize {
        self.agents
    }

    /// How far an agent is trusted, Q16.
    pub fn trust_q16(&self, agent: u64) -> u32 {
        self.trust_q16.get(&agent).copied().unwrap_or(ONE_Q16)
    }

    /// Whether so many of the agents are too few to be believed.
    fn is_few(&self, agents: usize) -> bool {
        agents * FEW <= self.agents
    }
}

/// The distance of an arm from the system arm in one report, Q16 bits.
fn distance_q16(own: u32, system: u32) -> i64 {
    let limit = i64::from(CLIP_Q16);
    (i64::from(own) - i64::from(system)).clamp(-limit, limit)
}

/// The youngest report of each agent, in the order of the agents.
fn youngest_reports(reports: &[AgentReport]) -> Vec<&AgentReport> {
    let mut sorted: Vec<&AgentReport> = reports.iter().collect();
    // Equal ages: any order will do, as long as it is always the same.
    sorted.sort_by_key(|report| {
        let numbers = |arm: &ArmReport| (arm.cost_q16, arm.evidence_q16);
        (
            report.agent,
            report.age_ns,
            report.arms.each_ref().map(numbers),
        )
    });
    sorted.dedup_by_key(|report| report.agent);
    sorted
}

fn arm_prior(
    reports: &[&AgentReport],
    of_agents: usize,
    fleet: &Fleet,
    arm: usize,
    system_arm: usize,
) -> ArmPrior {
    let mut known = Vec::with_capacity(reports.len());
    let mut told = 0;
    for report in reports {
        let (own, system) = (&report.arms[arm], &report.arms[system_arm]);
        let of = |arm: &ArmReport| weight_q16(arm.evidence_q16, report.age_ns);
        let weight = of(own).min(of(system));
        let trusted =
            |weight: u32| (u64::from(weight) * u64::from(fleet.trust_q16(report.agent))) >> 16;
        let vote = trusted(weight.min(VOTE_MAX_Q16));
        if vote > 0 {
            known.push((own, system, vote));
            told += trusted(weight);
        }
    }
    if known.is_empty() {
        return ArmPrior::default();
    }
    let agents = known.len() * of_agents / reports.len();
    let weigh = |value: &dyn Fn(&ArmReport, &ArmReport) -> i64| -> Vec<Weighed> {
        known
            .iter()
            .map(|&(own, system, weight)| Weighed {
                value: value(own, system),
                weight,
            })
            .collect()
    };
    let (cost, distance) = robust_mean(&mut weigh(&|own, system| {
        distance_q16(own.cost_q16, system.cost_q16)
    }));
    let (log_rate, _) = robust_mean(&mut weigh(&|own, system| {
        distance_q16(own.log_rate_q16, system.log_rate_q16)
    }));
    let deviation = deviation_q16(&known);
    let share = weighted_median(&mut weigh(&|own, _| {
        let retrans = u64::from(own.retrans.min(own.segs));
        ((retrans << 16) / u64::from(own.segs.max(1))) as i64
    })) as u64;
    let segs: u64 = known
        .iter()
        .map(|(own, ..)| u64::from(own.segs.min(SEGS_MAX)))
        .sum();
    let segs = segs.min(SEGS_MAX.into());
    let few = arm != system_arm && fleet.is_few(agents);
    let limit = if few { EVIDENCE_MAX_Q16 } else { FLEET_MAX_Q16 };
    ArmPrior {
        cost_q16: (i64::from(OFFSET_Q16) + cost) as u32,
        log_rate_q16: (i64::from(OFFSET_Q16) + log_rate) as u32,
        evidence_q16: evidence_q16(&known, told, arm == system_arm, distance, deviation).min(limit),
        deviation_q16: deviation as u32,
        segs: segs as u32,
        retrans: ((segs * share) >> 16) as u32,
        agents: u32::try_from(agents).unwrap_or(u32::MAX),
    }
}

/// The deviation of a measurement, Q16 bits: the median over arms that were measured twice at least. One
/// measurement has none.
fn deviation_q16(known: &[(&ArmReport, &ArmReport, u64)]) -> u64 {
    let told = known.iter().filter_map(|&(own, system, weight)| {
        let of = |arm: &ArmReport| match arm.evidence_q16 {
            TWO_Q16.. => arm.deviation_q16,
            _ => 0,
        };
        let deviation = of(own).max(of(system)).min(DEVIATION_MAX_Q16);
        (deviation > 0).then_some(Weighed {
            value: deviation.into(),
            weight,
        })
    });
    let mut told: Vec<Weighed> = told.collect();
    match told.is_empty() {
        true => DEVIATION_Q16.into(),
        false => (weighted_median(&mut told) as u64).max(DEVIATION_MIN_Q16.into()),
    }
}

/// Measurements of its own that the mean is worth to another agent, Q16: `d² / (s² + d² / W)`, with *d*
/// the deviation of a measurement, *W* the weight of all, and *s* the agents' distance from their mean
/// beyond what chance explains.
///
/// Chance explains d²/e + d²/e' of the squared distance of an agent with *e* measurements of the arm and
/// *e'* of the system arm.
fn evidence_q16(
    known: &[(&ArmReport, &ArmReport, u64)],
    told: u64,
    is_system: bool,
    distance_q16: u64,
    deviation_q16: u64,
) -> u32 {
    let votes: u64 = known.iter().map(|&(.., vote)| vote).sum();
    let limit = told.min(FLEET_MAX_Q16.into());
    // All are at 0.
    if is_system {
        return limit as u32;
    }
    let squared = u128::from(deviation_q16).pow(2);
    let of_one = |evidence_q16: u32| (squared << 16) / u128::from(evidence_q16.max(1));
    let chance: u128 = known
        .iter()
        .map(|&(own, system, weight)| {
            u128::from(weight) * (of_one(own.evidence_q16) + of_one(system.evidence_q16))
        })
        .sum::<u128>()
        / u128::from(votes);
    let spread = u128::from(distance_q16).pow(2).saturating_sub(chance);
    let evidence = (squared << 16) / (spread + (squared << 16) / u128::from(told)).max(1);
    evidence.min(limit.into()) as u32
}

/// The record in which a kernel has what other agents told of a network, at its level of the fleet.
/// `worth_q16` limits the evidence of each arm. Nothing is tried by it: it has no credit, and is never
/// scored.
pub fn fleet_record(
    level: Level,
    prior: &Prior,
    system_arm: usize,
    worth_q16: &[u32; MAX_ARMS],
    params: &Params,
    now_ns: u64,
) -> Host {
    let mut record = Host {
        level,
        queue_q16: prior.queue_q16,
        seen_ns: now_ns,
        forgot_ns: now_ns,
        // Past the warm-up.
        scored: 1,
        step: reported_count(prior.arms[system_arm].evidence_q16),
        step_scored: prior.arms[system_arm].agents,
        ..Host::default()
    };
    for (i, arm) in prior.arms.iter().enumerate() {
        let weight_q16 = arm.evidence_q16.min(worth_q16[i]);
        if weight_q16 == 0 {
            continue;
        }
        record.arms[i] = ArmState {
            value: arm.cost_q16.into(),
            weight_q16,
            own_q16: arm.cost_q16,
            own_weight_q16: weight_q16,
            log_rate_q16: arm.log_rate_q16,
            deviation_q16: arm.deviation_q16,
            segs: arm.segs,
            retrans: arm.retrans,
            ..ArmState::default()
        };
    }
    thalweg::note_cautions(&mut record, Some(system_arm));
    thalweg::note_harm(&mut record, Some(system_arm), params);
    record
}

/// Measurements of the system arm that others told of, as the share of the default counts them.
fn reported_count(evidence_q16: u32) -> u32 {
    (evidence_q16 >> 16) * TOLD
}

/// Lets a record of the fleet age, if nobody tells of its network anew. False: nothing is left of it.
pub fn age_record(record: &mut Host, system_arm: usize, params: &Params, now_ns: u64) -> bool {
    // By the fleet's own half-life, whatever this agent's is.
    let params = Params {
        half_life_ns: HALF_LIFE_NS / HALF_LIVES,
        ..*params
    };
    thalweg::halve_evidence(record, &params, now_ns);
    record.step = reported_count(record.arms[system_arm].own_weight_q16);
    thalweg::note_cautions(record, Some(system_arm));
    record.arms[system_arm].own_weight_q16 > 0
}

/// Takes what the fleet told out of an agent's own record: a prefix or a named network keeps its own
/// measurements alone. A host keeps what it began with, but no longer trusts its default by it. False:
/// there was nothing of the fleet.
pub fn remove_fleet_evidence(
    record: &mut Host,
    system_arm: Option<usize>,
    params: &Params,
) -> bool {
    let level = record.level;
    // Whoever takes over from the fleet's record takes its step as well.
    if record.step == 0 || level.is_window() || level.is_fleet() {
        return false;
    }
    record.step = 0;
    if level.fleet_level().is_some() {
        for arm in &mut record.arms {
            (arm.value, arm.weight_q16) = (arm.own_q16.into(), arm.own_weight_q16);
            if arm.own_weight_q16 == 0 {
                (arm.value, arm.log_rate_q16, arm.deviation_q16) = (0, 0, 0);
            }
        }
        thalweg::note_cautions(record, system_arm);
        thalweg::note_harm(record, system_arm, params);
    }
    true
}

const _: () = assert!(EVIDENCE_MAX_Q16 < 8 * ONE_Q16);
