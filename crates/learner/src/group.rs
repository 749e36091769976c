//! Groups of hosts: what is known of a network decides about a host of which nothing is known.
//!
//! A group's record has the form of a host's. Its costs are relative: bits above what the system's
//! arm costs on the same host, plus 32. So fast and slow hosts can share it. A host tells its groups
//! of measurements ([`group_report`], [`score_group`]), the widest first; a narrower group takes over what
//! the next wider one knows ([`adopt_wider`]). In return the narrowest group that knows enough decides about
//! a host without record ([`decide_group`]), and a new record starts from it ([`inherit_group`]).

use crate::decision::Decision;
use crate::fixed::{ONE_Q16, blend_towards};
use crate::host::{ArmState, Host, MAX_ARMS};
use crate::key::Level;
use crate::params::Params;
use crate::sample::Sample;
use crate::thalweg::{self, Measured};

/// Cost (Q16 bits) and log2 of the rate (Q16) of the system's arm in a group's record.
pub const OFFSET_Q16: u32 = 32 << 16;
/// A group decides, and gives others what it knows, from this evidence of the system's arm on: eight
/// measurements.
const KNOWN_Q16: u32 = 8 << 16;
/// A host tells its groups of the first measurement of each arm, and of one in this many of all: a
/// busy host is one host.
const TOLD_EACH: u32 = 16;
/// Weight of the last new host in the usual cost of the system's arm, and in the queue: 1/2^this.
const USUAL_SHIFT: u32 = 4;
/// Factor of a group's memory in measurements, compared with a host's: 2^this.
const MEMORY_SHIFT: u32 = 3;
/// Factor of a group's half-life, compared with a host's: a day by default.
pub(crate) const HALF_LIVES: u64 = 48;
/// A measurement takes less of the other arms' evidence, by this power of two.
const IDLE_SHIFT: u32 = 8;
/// Reduction of a group's gap scale, a power of two. Groups explore more for the same evidence,
/// because the result serves many hosts.
const GAP_SHIFT: u32 = 5;
/// A group's credit for each full-weight measurement, 1/5 bit: it is told of few.
const EARN_Q16: u32 = ONE_Q16 / 5;
/// A trial costs a group this credit when it begins, 1/10 bit: many hosts may come at once.
const ADVANCE_Q16: u32 = ONE_Q16 / 10;

impl Level {
    pub(crate) fn half_life_ns(self, params: &Params) -> u64 {
        if self.is_group() {
            params.half_life_ns.saturating_mul(HALF_LIVES)
        } else {
            params.half_life_ns
        }
    }

    pub(crate) fn gap_scale(self, params: &Params) -> u32 {
        params.gap_scale >> if self.is_group() { GAP_SHIFT } else { 0 }
    }

    pub(crate) fn weight_max_q16(self, params: &Params) -> u32 {
        params.weight_max_q16 << if self.is_group() { MEMORY_SHIFT } else { 0 }
    }

    pub(crate) fn idle_shift(self, params: &Params) -> u32 {
        let shift = params.idle_shift + if self.is_group() { IDLE_SHIFT } else { 0 };
        shift & 31
    }

    /// Credit for a measurement (Q16).
    pub(crate) fn earn_q16(self) -> Option<u32> {
        self.is_group().then_some(EARN_Q16)
    }
}

/// A host's report of one measurement to its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Cost of the measurement, Q16 bits.
    pub cost_q16: u32,
    /// Measured log2(bytes per second), Q16.
    pub log_rate_q16: u32,
    /// Weight of the measurement, Q16.
    pub weight_q16: u32,
    /// Mean cost of the system's arm on the host before, Q16 bits; 0 = it was not measured.
    pub system_q16: u32,
    /// Mean log2(bytes per second) of the system's arm on the host before, Q16.
    pub system_log_rate_q16: u32,
    /// The host's queue after the measurement, Q16 bits.
    pub queue_q16: u32,
}

/// A host's report to its groups about a measurement of `arm` that was just scored with the given
/// cost and weight; `before` and `after` are the host's record. `None`: nothing to report.
pub fn group_report(
    before: &Host,
    after: &Host,
    arm: usize,
    system_arm: Option<usize>,
    sample: &Sample,
    cost_q16: u64,
    weight_q16: u32,
) -> Option<Report> {
    let system = before.arms[system_arm?];
    if before.arms[arm].scored > 0 && !before.scored.is_multiple_of(TOLD_EACH) {
        return None;
    }
    let (mut system_q16, mut system_log_rate_q16) = (0, 0);
    // What was inherited is no measurement.
    if system.scored > 0 && system.weight_q16 > 0 {
        system_q16 = system.value as u32;
        system_log_rate_q16 = system.log_rate_q16;
    }
    Some(Report {
        cost_q16: cost_q16 as u32,
        log_rate_q16: crate::log2_q16(sample.mean_rate()),
        weight_q16,
        system_q16,
        system_log_rate_q16,
        queue_q16: after.queue_q16,
    })
}

/// A host's value by a group's measure, where the system's arm has `reference`.
fn relative_q16(value: u32, reference: u32) -> u32 {
    let relative = i64::from(OFFSET_Q16) + i64::from(value) - i64::from(reference);
    relative.clamp(0, i64::from(2 * OFFSET_Q16)) as u32
}

/// Adds a host's report on `arm` to the record of one of its groups; [`adopt_wider`] follows.
///
/// The reference is the host's own mean of the system's arm. A host that has none is compared with
/// the usual cost of that arm at such hosts, at half the weight, as hosts differ. Where that is
/// unknown too, nothing is learned from another arm.
pub fn score_group(
    group: &mut Host,
    arm: usize,
    system_arm: Option<usize>,
    report: &Report,
    sample: &Sample,
    params: &Params,
    now_ns: u64,
) {
    group.seen_ns = now_ns;
    let is_system = Some(arm) == system_arm;
    let mut weight_q16 = report.weight_q16;
    let (mut reference, mut rate) = (report.system_q16, report.system_log_rate_q16);
    if reference == 0 {
        weight_q16 /= 2;
        if is_system && group.usual_q16 == 0 {
            (group.usual_q16, group.usual_log_rate_q16) = (report.cost_q16, report.log_rate_q16);
        }
        (reference, rate) = (group.usual_q16, group.usual_log_rate_q16);
        if reference == 0 {
            return;
        }
        if is_system {
            let mix =
                |old: u32, new: u32| blend_towards(old.into(), new.into(), 1, 1 << USUAL_SHIFT);
            group.usual_q16 = mix(reference, report.cost_q16) as u32;
            group.usual_log_rate_q16 = mix(rate, report.log_rate_q16) as u32;
        }
    }
    for state in &mut group.arms {
        (state.value, state.weight_q16) = (state.own_q16.into(), state.own_weight_q16);
    }
    if is_system {
        group.queue_q16 = match group.arms[arm].weight_q16 {
            0 => report.queue_q16,
            _ => {
                let (old, new) = (group.queue_q16.into(), report.queue_q16.into());
                blend_towards(old, new, 1, 1 << USUAL_SHIFT) as u32
            }
        };
    }
    thalweg::discount_evidence(group, arm, params, now_ns);
    let measured = Measured {
        cost: relative_q16(report.cost_q16, reference).into(),
        log_rate_q16: relative_q16(report.log_rate_q16, rate),
        weight_q16,
    };
    thalweg::take_measurement(group, arm, system_arm, &measured, sample, params);
    for state in &mut group.arms {
        (state.own_q16, state.own_weight_q16) = (state.value as u32, state.weight_q16);
    }
}

/// Whether a group knows enough to decide.
pub fn can_decide(group: &Host, system_arm: Option<usize>) -> bool {
    system_arm.is_some_and(|system| group.arms[system].weight_q16 >= KNOWN_Q16)
}

/// Adds to a group's own measurements what a wider one knows of each arm, as if it were a number of
/// measurements: its evidence, `worth_q16` at most.
pub fn adopt_wider(
    group: &mut Host,
    wider: &Host,
    system_arm: Option<usize>,
    worth_q16: &[u32; MAX_ARMS],
) {
    if !can_decide(wider, system_arm) {
        return;
    }
    if !group.level.is_window() && !group.level.is_fleet() {
        group.step = wider.step;
    }
    for (i, &worth) in worth_q16.iter().enumerate() {
        let (own, theirs) = (&mut group.arms[i], &wider.arms[i]);
        let weight = theirs.weight_q16.min(worth);
        if weight == 0 {
            continue;
        }
        let total = u64::from(own.own_weight_q16) + u64::from(weight);
        if own.own_weight_q16 == 0 {
            own.value = theirs.value;
            own.log_rate_q16 = theirs.log_rate_q16;
            own.deviation_q16 = theirs.deviation_q16;
        } else {
            own.value = blend_towards(own.own_q16.into(), theirs.value, weight.into(), total);
        }
        own.weight_q16 = total.min(u64::from(u32::MAX)) as u32;
        group.arms[i].caution_q16 = thalweg::caution_q16(group, i, system_arm);
    }
}

/// Chooses the arm of a connection to a host without record by what a group knows, and counts the
/// decision; `None`: too little is known. As for a host ([`decide`](crate::decide)), except that a
/// part of a trial is paid for when it begins.
pub fn decide_group(
    group: &mut Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
    random: u32,
    now_ns: u64,
) -> Option<Decision> {
    thalweg::halve_evidence(group, params, now_ns);
    if !can_decide(group, system_arm) {
        return None;
    }
    let decision = thalweg::decide_weighted(group, system_arm, allowed, params, random, now_ns);
    if decision.reason.is_trial() && decision.arm != system_arm {
        group.credit_q16 = group.credit_q16.saturating_sub(ADVANCE_Q16);
    }
    group.count_decision(&decision);
    Some(decision)
}

/// Gives a host's record, after its first measurement, what a group knows of the other arms: their
/// distance from `arm`, which was measured, with the evidence `worth_q16` at most.
pub fn inherit_group(
    host: &mut Host,
    group: &Host,
    arm: usize,
    system_arm: Option<usize>,
    worth_q16: &[u32; MAX_ARMS],
) {
    if !can_decide(group, system_arm) || group.arms[arm].weight_q16 == 0 {
        return;
    }
    host.step = group.step;
    let (own, known) = (host.arms[arm], group.arms[arm]);
    let apart = |own: u32, theirs: u32, known: u32| {
        let value = i64::from(own) + i64::from(theirs) - i64::from(known);
        value.clamp(0, i64::from(u32::MAX)) as u32
    };
    for (i, &worth) in worth_q16.iter().enumerate() {
        let theirs = &group.arms[i];
        let weight = theirs.weight_q16.min(worth);
        if i == arm || weight == 0 {
            continue;
        }
        let value = apart(own.value as u32, theirs.value as u32, known.value as u32);
        let log_rate_q16 = apart(own.log_rate_q16, theirs.log_rate_q16, known.log_rate_q16);
        host.arms[i] = ArmState {
            value: value.into(),
            log_rate_q16,
            weight_q16: weight,
            deviation_q16: theirs.deviation_q16,
            caution_q16: theirs.caution_q16,
            srtt_us: own.srtt_us,
            segs: theirs.segs,
            retrans: theirs.retrans,
            ..host.arms[i]
        };
    }
    let state = &mut host.arms[arm];
    state.weight_q16 += known.weight_q16.min(worth_q16[arm]);
    state.deviation_q16 = known.deviation_q16;
    state.caution_q16 = known.caution_q16;
    host.harmful |= group.harmful;
}
