//! Mode `thalweg`: discounted estimates of a cost in bits, inverse gap weighting.

use crate::decision::{Decision, Flow, Reason};
use crate::fixed::{ONE_Q16, blend_towards, log2_q16};
use crate::host::{ArmState, Host, MAX_ARMS, arms_in};
use crate::key::Level;
use crate::params::Params;
use crate::sample::{End, Outcome, Sample};

/// Keeps a cost above 0 whatever the rate: no 64-bit rate has more bits.
const COST_OFFSET_Q16: u64 = 64 << 16;
/// Clip of a worse measurement: this many half mean deviations from the mean.
const CLIP_HALF_DEVIATIONS: u64 = 5;
/// Least clip of a worse measurement, 1 bit, and largest, 4 bits: many things other than the arm
/// can slow one connection. A time-out counts as 1 bit worse at most.
const CLIP_WORSE_Q16: u64 = 1 << 16;
const CLIP_WORSE_MAX_Q16: u64 = 4 << 16;
/// A measurement counts as at most this much better than the mean: 2 bits, a factor of 4.
const CLIP_BETTER_Q16: u64 = 2 << 16;
/// A measurement this much better than the mean of up to one other replaces it: 1 bit. That one had
/// met an accident.
const ACCIDENT_Q16: u64 = 1 << 16;
/// A measurement clipped as worse costs 1/2^this of the evidence.
const SURPRISE_SHIFT: u32 = 2;
/// The clip applies from this evidence on. A new measurement outweighs less evidence.
const CLIP_WEIGHT_Q16: u32 = 1 << 15;
/// Confidence penalty of an arm against the system's arm: this many quarters of the mean deviation,
/// divided by [`CAUTION_EVIDENCE_Q16`] plus the evidence.
const CAUTION_QUARTERS: u64 = 13;
/// Evidence added in the divisor of the confidence penalty. The penalty is about 0.6 standard
/// errors.
const CAUTION_EVIDENCE_Q16: u64 = 4 << 16;
/// Least confidence penalty, a twentieth of a bit, and largest, half a bit.
const CAUTION_MIN_Q16: u64 = ONE_Q16 as u64 / 20;
const CAUTION_MAX_Q16: u64 = 1 << 15;
/// Mean deviations by which memory grows: the mean of a noisy arm needs more measurements.
const MEMORY_DEVIATIONS: u64 = 5;
/// Largest factor by which memory grows.
const MEMORY_MULTIPLE: u64 = 3;
/// Each retransmission of all segments costs this many bits: others had no use of that capacity.
const WASTE_BITS: u64 = 3;
/// Excess over the system's mean and the arm's own mean that makes a measurement slow: 2 1/2 bits.
const SLOW_Q16: u64 = 5 << 15;
/// Excess from which a slow measurement counts twice: 4 bits.
const VERY_SLOW_Q16: u64 = 4 << 16;
/// The counts of slow measurements and of all are halved at this many.
const COUNTED_MAX: u16 = 256;
/// Added to the counts of the system's arm, for its uncertainty.
const SLOW_DOUBT: u64 = 1;
const COUNTED_DOUBT: u64 = 8;
/// Handicap of an arm that is slow more often than the system's: 1 1/2 bits.
const UNSTEADY_Q16: u64 = 3 << 15;
/// Credit of a host for each full-weight measurement: 1/25 bit.
const EARN_Q16: u32 = 2621;
/// Largest credit of a host: 5 bits. A measurement of another arm than the system's costs its loss
/// and earns its gain.
const CREDIT_MAX_Q16: i64 = 5 << 16;
/// Largest charge or gain of one measurement: 4 bits.
const CHARGE_MAX_Q16: i64 = 4 << 16;
/// Surcharge on the excess cost of an arm over the system's, 1/2^this. The same part of a gain is
/// withheld.
const CHARGE_SHIFT: u32 = 2;
/// Least credit for a first trial: 1/5 bit.
const PRICE_Q16: u32 = ONE_Q16 / 5;
/// Credit for a first trial per permitted arm, if the product is more: 1/50 bit.
const PRICE_ARM_Q16: u64 = ONE_Q16 as u64 / 50;
/// A trial of an arm with hardly any evidence left needs this credit at most: 4 bits.
const PRICE_OLD_Q16: u64 = 4 << 16;
const OLD_Q16: u32 = 1 << 8;
/// Evidence below this has faded. No trial is made if that of the best-judged arm has: its result
/// would be forgotten before it is of use.
const FADED_Q16: u32 = 1 << 14;
/// Divisor of the system arm's least share: it gets at least 1 / (this + the host's measurements)
/// of the connections, see [`DEFAULT_GAP_Q16`].
const DEFAULT_SHARE: u32 = 2;
/// Gap to the best arm below which the system's arm keeps its least share: 2 bits.
const DEFAULT_GAP_Q16: u64 = 2 << 16;
/// Trials without a measurement that halve the share of an untried arm.
const FRUITLESS_HALF: u32 = 8;
/// After this many such trials the share falls no further: an eighth is left.
const FRUITLESS_MAX: u32 = 56;
/// Advantage from which the loss rule changes arms: half a bit, a factor of 1.4.
const RESCUE_GAP_Q16: u64 = 1 << 15;
/// Share of such cases in which the loss rule changes arms: three of four, so that the present arm
/// is measured too.
const RESCUE_SHARE_Q16: u32 = ONE_Q16 / 4 * 3;
/// Part of the segments that an arm may retransmit before it overflows a queue, 1/2^this. The other
/// `OWN_LOSS` allowances are added.
const OWN_LOSS_SHIFT: u32 = 8;
/// Retransmissions allowed besides that part.
const OWN_LOSS_GRACE: u64 = 8;
/// No verdict on fewer segments: a lost burst, and what it makes TCP send again, is most of them.
const OWN_LOSS_SEGS: u64 = 1000;
/// Retransmissions added to the system arm's. The limit allows 1.5 times those expected from the
/// sum.
const OWN_LOSS_DOUBT: u64 = 4;
/// Allowance for chance: 2^(this/2) times the root of the expected retransmissions. Losses come in
/// bursts.
const OWN_LOSS_CHANCE_SHIFT: u32 = 8;
/// Segments that the system's arm must retransmit for a full bottleneck.
const FULL_RETRANS: u32 = 4;
/// Excess of the RTT over the base RTT that a full bottleneck also needs: a quarter of a bit.
const QUEUE_Q16: u32 = 1 << 14;
/// Excess of the RTT that shows a full bottleneck without retransmissions: half a bit. A deep queue
/// seldom overflows.
const DEEP_QUEUE_Q16: u32 = 1 << 15;
/// Largest allowance for jitter, µs. Half of the base RTT, up to this, is added to it: jitter is no
/// queue.
const JITTER_US: u64 = 4000;
/// Least sum of base RTT and allowance for jitter, µs.
const LEAST_RTT_US: u64 = 3000;
/// Weight of the last RTT under the system's arm: 1/2^this.
const QUEUE_SHIFT: u32 = 2;
/// At a full bottleneck, an arm whose rate exceeds the system's arm's by this, a quarter of a bit,
/// takes it from others.
const TAKES_Q16: u32 = 1 << 14;
/// If the system's arm loses a little, a gain of up to this counts as taken, too: 1.5 bits. A
/// bolder arm can win that much from others.
const BOLDER_Q16: u32 = 3 << 15;
/// Handicap of a harmful arm against the system's arm: 4 bits.
const HARM_Q16: u64 = 4 << 16;
/// Largest number of segments that one stretch adds to the count.
const SEGS_MAX: u32 = 8192;
/// A stretch discounts the earlier count by 1/2^this.
const SEGS_SHIFT: u32 = 3;
/// Windows: older segments are not discounted by each connection ([`step_window`](crate::window::step_window)).
const WINDOW_SEGS_SHIFT: u32 = 31;
/// Windows: one connection in this many has the kernel's own, for comparison.
const WINDOW_OWN_EACH: u32 = 32;
/// Largest number of open trials per host.
const TRIALS: u32 = 2;
/// A trial expires after this time: 10 s.
pub(crate) const TRIAL_NS: u64 = 10_000_000_000;

/// Cost of a measurement in bits, Q16, below 2^32: `64 − log2(rate) + latency_weight · log2(srtt +
/// guard)`.
///
/// A doubled rate costs one bit less. The logarithm needs no reference rate or RTT of the host: a
/// change of reference would shift all arms alike.
pub fn cost_q16(rate_bytes_per_second: u64, srtt_us: u32, params: &Params) -> u64 {
    let rtt = u64::from(srtt_us) + u64::from(params.latency_guard_us);
    let latency = (u64::from(log2_q16(rtt)) * u64::from(params.latency_weight_q16)) >> 16;
    let cost = COST_OFFSET_Q16 - u64::from(log2_q16(rate_bytes_per_second)) + latency;
    cost.min(u64::from(u32::MAX))
}

/// Cost of a sample's retransmissions, bits in Q16: three times their share of the segments.
pub(crate) fn waste_q16(sample: &Sample) -> u64 {
    let retrans = u64::from(sample.retrans.min(sample.segs_out));
    ((retrans * WASTE_BITS) << 16) / u64::from(sample.segs_out.max(1))
}

/// Halves the evidence of every arm once per elapsed half-life. A trace is left: the mean of an arm
/// that was measured once is never forgotten altogether.
pub fn halve_evidence(host: &mut Host, params: &Params, now_ns: u64) {
    let half_life_ns = host.level.half_life_ns(params);
    if host.forgot_ns == 0 || half_life_ns == 0 {
        host.forgot_ns = now_ns;
        return;
    }
    let steps = now_ns.saturating_sub(host.forgot_ns) / half_life_ns;
    if steps == 0 {
        return;
    }
    host.forgot_ns += steps * half_life_ns;
    for arm in &mut host.arms {
        let trace = arm.weight_q16.min(1);
        for evidence in [&mut arm.weight_q16, &mut arm.segs, &mut arm.retrans] {
            *evidence = if steps < 32 { *evidence >> steps } else { 0 };
        }
        arm.weight_q16 = arm.weight_q16.max(trace);
        arm.own_weight_q16 = if steps < 32 {
            arm.own_weight_q16 >> steps
        } else {
            0
        };
    }
    host.last_base_rtt_us = if steps == 1 { host.base_rtt_us } else { 0 };
    host.base_rtt_us = 0;
}

/// Whether `retrans` of `segs` segments are more than the path itself loses.
///
/// Random loss does not depend on the arm: at less than 2 % bbr and cubic retransmit alike. An arm
/// that retransmits much more than the system's overflows a queue.
fn too_many(system: &ArmState, segs: u64, retrans: u64) -> bool {
    if system.segs == 0 || segs < OWN_LOSS_SEGS {
        return false;
    }
    let expected = (u64::from(system.retrans) + OWN_LOSS_DOUBT) * segs / u64::from(system.segs);
    let usual = expected + expected / 2 + (segs >> OWN_LOSS_SHIFT) + OWN_LOSS_GRACE;
    let over = retrans.saturating_sub(usual);
    over * over > expected << OWN_LOSS_CHANCE_SHIFT
}

/// Updates the base RTT of the path, and the excess of the RTT under the system's arm. That RTT is
/// taken at losses, when an overflowing queue is full, or else at the end. Must be called before
/// the sample is learned.
fn note_queue(host: &mut Host, arm: usize, system_arm: Option<usize>, sample: &Sample) {
    if sample.min_rtt_us != 0 && (host.base_rtt_us == 0 || sample.min_rtt_us < host.base_rtt_us) {
        host.base_rtt_us = sample.min_rtt_us;
    }
    let srtt_us = match sample.loss_srtt_us {
        0 => sample.srtt_us,
        at_losses => at_losses,
    };
    if Some(arm) != system_arm || srtt_us == 0 {
        return;
    }
    let Some(base) = host.base_rtt() else { return };
    let queue_us = u64::from(srtt_us.saturating_sub(base));
    let base_us = u64::from(base);
    let quiet_us = (base_us + JITTER_US.min(base_us / 2)).max(LEAST_RTT_US);
    let queue_q16 = log2_q16(quiet_us + queue_us) - log2_q16(quiet_us);
    host.queue_q16 = if host.arms[arm].weight_q16 == 0 {
        queue_q16
    } else {
        blend_towards(host.queue_q16.into(), queue_q16.into(), 1, 1 << QUEUE_SHIFT) as u32
    };
}

/// Updates which arms gain at the expense of others, by two signs:
///
/// - An arm that retransmits much more than the system's arm for the same host overflows a queue.
///   It gains at the expense of those who share it.
/// - If the system's arm fills the bottleneck, by its RTT and losses, an arm with a higher rate
///   takes it from others. If the system's arm loses a little and no queue shows, this holds up to
///   2.8 times its rate. Random loss would cost the system's arm a multiple.
pub fn note_harm(host: &mut Host, system_arm: Option<usize>, params: &Params) {
    host.harmful = 0;
    let Some(index) = system_arm else { return };
    let system = host.arms[index];
    let known = system.weight_q16 > 0;
    let loses = known && system.retrans >= FULL_RETRANS;
    // Random losses meet a queue of any length.
    let bolder = loses && !is_lossy(&system, params);
    let deep_q16 = if bolder { QUEUE_Q16 } else { DEEP_QUEUE_Q16 };
    // A gain up to this is taken from others.
    let most_q16 = if known && host.queue_q16 > deep_q16 {
        u32::MAX
    } else if bolder {
        BOLDER_Q16
    } else {
        0
    };
    for (i, arm) in host.arms.iter().enumerate() {
        let (segs, retrans) = (arm.segs.into(), arm.retrans.into());
        let gain_q16 = arm.log_rate_q16.saturating_sub(system.log_rate_q16);
        let takes = gain_q16 > TAKES_Q16 && gain_q16 <= most_q16;
        if i != index && arm.weight_q16 > 0 && (takes || too_many(&system, segs, retrans)) {
            host.harmful |= 1 << i;
        }
    }
}

/// The handicap of an arm against luck, which grows with the deviation of its measurements or of the
/// system's, and falls with its evidence. To be taken after each measurement.
pub(crate) fn caution_q16(host: &Host, arm: usize, system_arm: Option<usize>) -> u32 {
    let deviation = |i: usize| host.arms[i].deviation_q16;
    let deviation = deviation(arm).max(system_arm.map_or(0, deviation));
    let evidence = CAUTION_EVIDENCE_Q16 + u64::from(host.arms[arm].weight_q16);
    let caution = ((u64::from(deviation) * CAUTION_QUARTERS) << 14) / evidence;
    caution.clamp(CAUTION_MIN_Q16, CAUTION_MAX_Q16) as u32
}

/// Takes the handicaps of all arms anew, for a record that was kept without them.
pub fn note_cautions(host: &mut Host, system_arm: Option<usize>) {
    for arm in 0..MAX_ARMS {
        if host.arms[arm].weight_q16 > 0 {
            host.arms[arm].caution_q16 = caution_q16(host, arm, system_arm);
        }
    }
}

/// Counts a measurement, and whether it is much slower than the system's arm and its own are on
/// average: an arm that is always slower needs no second handicap. Must be called before the sample
/// is learned.
fn note_slow(host: &mut Host, arm: usize, system_arm: Option<usize>, cost: u64) {
    let Some(system) = system_arm.filter(|&i| host.arms[i].weight_q16 > 0) else {
        return;
    };
    let mean = host.arms[system].value.max(host.arms[arm].value);
    let state = &mut host.arms[arm];
    state.counted += 1;
    state.slow += u16::from(cost > mean + SLOW_Q16) + u16::from(cost > mean + VERY_SLOW_Q16);
    if state.counted >= COUNTED_MAX {
        state.counted /= 2;
        state.slow /= 2;
    }
}

/// Updates whether an arm is *unsteady*: slow more than twice as often as the system's arm, by more
/// than one and a half measurements. Such an arm may be better on average, and still be what users
/// notice.
fn note_unsteady(host: &mut Host, arm: usize, system_arm: Option<usize>) {
    let bit = 1 << arm;
    host.unsteady &= !bit;
    let Some(system) = system_arm.filter(|&i| i != arm) else {
        return;
    };
    let (state, system) = (&host.arms[arm], &host.arms[system]);
    let slow = (2 * u64::from(state.slow)).saturating_sub(3);
    let expected = (u64::from(system.slow) + SLOW_DOUBT) * u64::from(state.counted);
    if slow * (u64::from(system.counted) + COUNTED_DOUBT) > 4 * expected {
        host.unsteady |= bit;
    }
}

/// Judged cost of an arm, bits in Q16: its mean cost, plus a handicap for every arm but the
/// system's, which keeps luck from displacing the default. An arm that [gains at the expense of
/// others](note_harm) is judged 4 bits worse than the system's arm, or than itself if that is more;
/// one that is [much slower now and then](note_unsteady) 1 1/2 bits worse.
pub fn judged_q16(host: &Host, arm: usize, system_arm: Option<usize>) -> u64 {
    let state = &host.arms[arm];
    if Some(arm) == system_arm {
        return state.value;
    }
    let value = match system_arm {
        Some(system) if host.harmful & (1 << arm) != 0 => {
            state.value.max(host.arms[system].value) + HARM_Q16
        }
        _ => state.value,
    };
    let unsteady = match host.unsteady >> arm & 1 {
        0 => 0,
        _ => UNSTEADY_Q16,
    };
    value + u64::from(state.caution_q16) + unsteady
}

/// Best-judged arm among the measured ones of `allowed`. On a tie the system's own wins, else the
/// lowest index.
pub(crate) fn best_arm(host: &Host, allowed: u16, system_arm: Option<usize>) -> Option<usize> {
    arms_in(allowed)
        .filter(|&i| host.arms[i].weight_q16 > 0)
        .min_by_key(|&i| (judged_q16(host, i, system_arm), Some(i) != system_arm, i))
}

/// `1 / (2·arms + gap_scale · gap · evidence)` in Q16 (inverse gap weighting).
fn explore_q16(gap_q16: u64, weight_q16: u32, arms: u64, gap_scale: u32) -> u32 {
    let limit = u64::from(u32::MAX);
    let known = (gap_q16.min(limit) * u64::from(weight_q16)) >> 16;
    let known = known.min(limit) * u64::from(gap_scale.min(1 << 20));
    ((1u64 << 32) / (((2 * arms) << 16) + known)) as u32
}

/// Share (Q16) of an arm without evidence in the first trials: one, falling with its trials that
/// brought no measurement.
fn hope_q16(arm: &ArmState) -> u32 {
    let fruitless = arm.chosen.saturating_sub(arm.scored).min(FRUITLESS_MAX);
    ONE_Q16 * FRUITLESS_HALF / (FRUITLESS_HALF + fruitless)
}

/// Least share (Q16) of the system's arm where it is judged `gap_q16` behind: its first measurements
/// may have been bad luck. What its groups, and the fleet, know of it counts as measurements.
fn default_share_q16(host: &Host, system_arm: usize, gap_q16: u64) -> u32 {
    if gap_q16 >= DEFAULT_GAP_Q16 {
        return 0;
    }
    let system = &host.arms[system_arm];
    let inherited = match system.scored {
        0 => system.weight_q16 >> 16,
        _ => 0,
    };
    let told = match host.level.is_window() {
        true => 0,
        false => host.step.min(ONE_Q16),
    };
    let each = host.scored.min(ONE_Q16) + inherited + told + DEFAULT_SHARE;
    ONE_Q16
        / if host.level.is_window() {
            each.min(WINDOW_OWN_EACH)
        } else {
            each
        }
}

/// Whether the system's arm loses so much that another may be far better.
fn is_lossy(system: &ArmState, params: &Params) -> bool {
    system.retrans > system.segs >> (params.loss_shift & 31)
}

/// Credit (Q16) that the trial of an arm judged `gap_q16` behind needs, among `arms`; 0 for the
/// system's arm.
fn price_q16(arm: &ArmState, gap_q16: u64, arms: u64) -> u64 {
    let least = u64::from(PRICE_Q16).max(arms * PRICE_ARM_Q16);
    if arm.weight_q16 == 0 {
        least
    } else if arm.weight_q16 < OLD_Q16 {
        gap_q16.min(PRICE_OLD_Q16).max(least)
    } else {
        gap_q16.max(least)
    }
}

/// The probabilities (Q16, sum 65536) and the best arm; `None` while warming up. Until the system's
/// arm has been measured, there is nothing to compare with.
fn choice_probabilities(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
    now_ns: u64,
) -> Option<(usize, [u32; MAX_ARMS])> {
    let system = system_arm.filter(|&i| allowed & (1 << i) != 0);
    if host.scored < params.warm_up || system.is_some_and(|i| host.arms[i].weight_q16 == 0) {
        return None;
    }
    let best = best_arm(host, allowed, system_arm)?;
    let mut shares = [0; MAX_ARMS];
    shares[best] = ONE_Q16;
    if host.trials_at(now_ns) >= TRIALS || host.arms[best].weight_q16 < FADED_Q16 {
        return Some((best, shares));
    }
    let arms = arms_in(allowed).count() as u64;
    let is_untried = |i: usize| allowed & (1 << i) != 0 && host.arms[i].weight_q16 == 0;
    let mut untried = arms_in(allowed).filter(|&i| is_untried(i)).count() as u32;
    let lowest = judged_q16(host, best, system_arm);
    // All first trials together take half of the connections. On lossy paths `rescue` goes first,
    // and the others share the rest.
    let mut first_trials = ONE_Q16 / 2;
    let first = params
        .rescue_arm
        .filter(|&i| !host.level.is_window() && is_untried(i))
        .filter(|_| system.is_some_and(|s| is_lossy(&host.arms[s], params)));
    if let Some(first) = first {
        shares[first] = first_trials.min(hope_q16(&host.arms[first]) / 2);
        first_trials -= shares[first];
        untried -= 1;
    }
    for i in arms_in(allowed).filter(|&i| i != best && Some(i) != first) {
        let arm = &host.arms[i];
        let gap = judged_q16(host, i, system_arm).saturating_sub(lowest);
        let share = if is_untried(i) {
            ((u64::from(first_trials) * u64::from(hope_q16(arm))) >> 16) as u32 / untried
        } else {
            explore_q16(gap, arm.weight_q16, arms, host.level.gap_scale(params))
        };
        shares[i] = if Some(i) == system_arm {
            share.max(default_share_q16(host, i, gap))
        } else if u64::from(host.credit_q16) < price_q16(arm, gap, arms) {
            0
        } else {
            share
        };
    }
    shares[best] = 0;
    shares[best] = ONE_Q16 - shares.iter().sum::<u32>();
    Some((best, shares))
}

/// Draws an arm by its share; while warming up, the system's own.
pub(crate) fn decide_weighted(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
    random: u32,
    now_ns: u64,
) -> Decision {
    let Some((best, shares)) = choice_probabilities(host, system_arm, allowed, params, now_ns)
    else {
        return Decision {
            arm: system_arm,
            reason: Reason::WarmUp,
            propensity_q16: ONE_Q16,
        };
    };
    // Tickets 65535, 65534, … go to the other arms in order of index; the rest go to the best.
    let ticket = random & (ONE_Q16 - 1);
    let mut left = ONE_Q16;
    let mut arm = best;
    for i in arms_in(allowed).filter(|&i| i != best) {
        if arm == best && ticket < left && ticket >= left - shares[i] {
            arm = i;
        }
        left -= shares[i];
    }
    let reason = if arm == best {
        Reason::Greedy
    } else if host.arms[arm].weight_q16 == 0 {
        Reason::Untried
    } else {
        Reason::Explore
    };
    Decision {
        arm: Some(arm),
        reason,
        propensity_q16: shares[arm],
    }
}

/// Probabilities of all arms for the next connection.
pub(crate) fn propensities_q16(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
    now_ns: u64,
) -> [u32; MAX_ARMS] {
    match (
        choice_probabilities(host, system_arm, allowed, params, now_ns),
        system_arm,
    ) {
        (Some((_, shares)), _) => shares,
        (None, Some(system)) => {
            let mut only = [0; MAX_ARMS];
            only[system] = ONE_Q16;
            only
        }
        (None, None) => [0; MAX_ARMS],
    }
}

/// The change of arm that is due mid-flow for a connection that has lost much.
pub(crate) fn change_mid_flow(
    host: &Host,
    flow: &Flow,
    allowed: u16,
    params: &Params,
    random: u32,
) -> Option<Decision> {
    if flow.segs < u64::from(params.loss_min_segs) {
        return None;
    }
    let (current, system) = (flow.arm?, flow.system_arm?);
    if current != system {
        let withdraw =
            allowed & (1 << system) != 0 && too_many(&host.arms[system], flow.segs, flow.retrans);
        return withdraw.then_some(Decision {
            arm: Some(system),
            reason: Reason::Withdrawn,
            propensity_q16: ONE_Q16,
        });
    }
    let target = best_arm(host, allowed, Some(current)).filter(|&target| target != current)?;
    let (from, to) = (&host.arms[current], &host.arms[target]);
    if from.weight_q16 == 0 || to.value + RESCUE_GAP_Q16 > from.value {
        return None;
    }
    let moves = random & (ONE_Q16 - 1) < RESCUE_SHARE_Q16;
    Some(Decision {
        arm: Some(if moves { target } else { current }),
        reason: Reason::Loss,
        propensity_q16: if moves {
            RESCUE_SHARE_Q16
        } else {
            ONE_Q16 - RESCUE_SHARE_Q16
        },
    })
}

/// Whether a measurement on `arm` counts, or why not. A time-out needs another measurement to compare
/// with: alone it may be a peer that vanished.
pub(crate) fn assess_weighted(
    host: &Host,
    arm: usize,
    system_arm: Option<usize>,
    sample: &Sample,
    params: &Params,
) -> Outcome {
    match sample.assess_sample(params) {
        Outcome::Scored if sample.end == End::Timeout && least_known(host).is_none() => {
            Outcome::Timeout
        }
        Outcome::Scored
            if sample.is_limited()
                && sample_cost_q16(sample, params) >= least_news(host, arm, system_arm) =>
        {
            Outcome::AppLimited
        }
        outcome => outcome,
    }
}

/// The cost below which a limited measurement on `arm` tells something new: that the path carries
/// more than was known. A lower rate may be the receiver's. With less evidence than a half the system's
/// arm has no such bound, and another arm that of the system's.
fn least_news(host: &Host, arm: usize, system_arm: Option<usize>) -> u64 {
    let known = |arm: usize| host.arms[arm];
    if known(arm).weight_q16 >= CLIP_WEIGHT_Q16 {
        return known(arm).value;
    }
    match system_arm {
        Some(system) if system == arm => u64::MAX,
        Some(system) if known(system).weight_q16 > 0 => known(system).value,
        _ => 0,
    }
}

/// Cost of a sample, retransmissions included, bits in Q16.
fn sample_cost_q16(sample: &Sample, params: &Params) -> u64 {
    let cost = cost_q16(sample.mean_rate(), sample.srtt_us, params) + waste_q16(sample);
    cost.min(u64::from(u32::MAX))
}

/// The least mean cost of any measured arm.
fn least_known(host: &Host) -> Option<u64> {
    let measured = host.arms.iter().filter(|arm| arm.weight_q16 > 0);
    measured.map(|arm| arm.value).min()
}

/// Adds one measurement, already assessed, to the estimates of `arm`; returns its cost and weight.
pub(crate) fn score_weighted(
    host: &mut Host,
    arm: usize,
    system_arm: Option<usize>,
    sample: &Sample,
    params: &Params,
    now_ns: u64,
) -> (u64, u32) {
    let rate = sample.mean_rate();
    let mut cost = sample_cost_q16(sample, params);
    let weight_q16 = sample.weight_q16(params);
    // The arm has less evidence than the clip requires, so its mean does not bound the sample.
    if sample.end == End::Timeout
        && host.arms[arm].weight_q16 < CLIP_WEIGHT_Q16
        && let Some(known) = least_known(host)
    {
        cost = cost.min(known + CLIP_WORSE_Q16);
    }

    discount_evidence(host, arm, params, now_ns);
    note_queue(host, arm, system_arm, sample);
    let measured = Measured {
        cost,
        log_rate_q16: log2_q16(rate),
        weight_q16,
    };
    let before = host.arms[arm];
    take_measurement(host, arm, system_arm, &measured, sample, params);
    move_unmeasured_arms(host, arm, system_arm, &before);
    let state = &mut host.arms[arm];
    state.max_rate = state.max_rate.max(rate);
    host.max_rate = host.max_rate.max(rate);
    // 0 is the kernel's "no sample".
    if sample.min_rtt_us != 0 {
        for lowest in [&mut state.min_rtt_us, &mut host.min_rtt_us] {
            if *lowest == 0 || sample.min_rtt_us < *lowest {
                *lowest = sample.min_rtt_us;
            }
        }
    }
    (cost, weight_q16)
}

/// Content of a measurement, as an arm's estimates take it.
pub(crate) struct Measured {
    /// Bits, Q16.
    pub cost: u64,
    /// log2 of bytes per second, Q16.
    pub log_rate_q16: u32,
    /// Q16.
    pub weight_q16: u32,
}

/// Discounts earlier evidence before a measurement of `arm`.
pub(crate) fn discount_evidence(record: &mut Host, arm: usize, params: &Params, now_ns: u64) {
    halve_evidence(record, params, now_ns);
    let shift = record.level.idle_shift(params);
    for (i, other) in record.arms.iter_mut().enumerate() {
        if i != arm {
            other.weight_q16 -= other.weight_q16 >> shift;
        }
    }
}

/// Adds a measurement to the record of a host or group, and judges its arms anew.
pub(crate) fn take_measurement(
    record: &mut Host,
    arm: usize,
    system_arm: Option<usize>,
    measured: &Measured,
    sample: &Sample,
    params: &Params,
) {
    let &Measured {
        cost, weight_q16, ..
    } = measured;
    note_slow(record, arm, system_arm, cost);
    let earns = sample.end != End::Stretch;
    note_credit(record, arm, system_arm, cost, weight_q16, earns);
    let (level, srtt_us) = (record.level, sample.srtt_us);
    let timeout = sample.end == End::Timeout;
    let state = &mut record.arms[arm];
    update_estimate(state, level, measured, srtt_us, params, timeout);
    let shift = if level.is_window() {
        WINDOW_SEGS_SHIFT
    } else {
        SEGS_SHIFT
    };
    count_segments(state, sample, shift);
    state.scored = state.scored.saturating_add(1);
    record.scored = record.scored.saturating_add(1);
    record.arms[arm].caution_q16 = caution_q16(record, arm, system_arm);
    note_unsteady(record, arm, system_arm);
    note_harm(record, system_arm, params);
}

/// Moves the arms that were never measured on the host along with `arm`: what is known of them is
/// their distance. They follow the system's arm, or any while that is one of them.
fn move_unmeasured_arms(host: &mut Host, arm: usize, system_arm: Option<usize>, before: &ArmState) {
    let Some(system) = system_arm else { return };
    if before.weight_q16 == 0 || (arm != system && host.arms[system].scored > 0) {
        return;
    }
    let after = host.arms[arm];
    let moved = after.value as i64 - before.value as i64;
    let moved_rate = i64::from(after.log_rate_q16) - i64::from(before.log_rate_q16);
    for other in &mut host.arms {
        if other.scored == 0 && other.weight_q16 > 0 {
            other.value = (other.value as i64 + moved).clamp(0, i64::from(u32::MAX)) as u64;
            let log_rate = i64::from(other.log_rate_q16) + moved_rate;
            other.log_rate_q16 = log_rate.clamp(0, i64::from(u32::MAX)) as u32;
        }
    }
}

/// Credits the host with a measurement, and charges it with what an arm other than the system's cost
/// more. A connection that goes on earns nothing: credit pays for connections, and a long one would
/// earn that of many.
fn note_credit(
    host: &mut Host,
    arm: usize,
    system_arm: Option<usize>,
    cost: u64,
    weight_q16: u32,
    earns: bool,
) {
    let earn_q16 = host.level.earn_q16().unwrap_or(EARN_Q16);
    let mut change = if earns { i64::from(earn_q16) } else { 0 };
    let system = system_arm.filter(|&i| i != arm).map(|i| &host.arms[i]);
    if let Some(system) = system.filter(|system| system.weight_q16 > 0) {
        let excess = (cost as i64 - system.value as i64).clamp(-CHARGE_MAX_Q16, CHARGE_MAX_Q16);
        change -= excess;
        // In a group's measurements luck is most of the difference.
        if !host.level.is_group() {
            change -= excess.abs() / (1 << CHARGE_SHIFT);
        }
    }
    // Divided, not shifted: the same for both signs in every language.
    let change = change * i64::from(weight_q16) / i64::from(ONE_Q16);
    host.credit_q16 = (i64::from(host.credit_q16) + change).clamp(0, CREDIT_MAX_Q16) as u32;
}

/// Adds a stretch's segments to the count; a large number counts as [`SEGS_MAX`].
fn count_segments(arm: &mut ArmState, sample: &Sample, shift: u32) {
    let mut segs = sample.steady_segs;
    let mut retrans = sample.steady_retrans.min(segs);
    if segs > SEGS_MAX {
        retrans = (u64::from(retrans) * u64::from(SEGS_MAX) / u64::from(segs)) as u32;
        segs = SEGS_MAX;
    }
    arm.segs = arm.segs - (arm.segs >> shift) + segs;
    arm.retrans = arm.retrans - (arm.retrans >> shift) + retrans;
}

/// Adds one cost to an arm's discounted estimate.
fn update_estimate(
    arm: &mut ArmState,
    level: Level,
    measured: &Measured,
    srtt_us: u32,
    params: &Params,
    timeout: bool,
) {
    let &Measured {
        cost,
        log_rate_q16,
        weight_q16,
    } = measured;
    let weight_max_q16 = level.weight_max_q16(params);
    let weight = u64::from(weight_q16);
    let total = u64::from(arm.weight_q16) + weight;
    let deviations = MEMORY_DEVIATIONS * u64::from(arm.deviation_q16);
    let one = u64::from(ONE_Q16);
    let memory = (u64::from(weight_max_q16) * deviations.clamp(one, MEMORY_MULTIPLE * one)) >> 16;
    let mut kept = total.min(memory);
    let accident = arm.weight_q16 <= ONE_Q16 && cost + ACCIDENT_Q16 < arm.value;
    if arm.weight_q16 == 0 || accident {
        kept = weight.min(memory);
        arm.value = cost;
        arm.deviation_q16 = 0;
        arm.log_rate_q16 = log_rate_q16;
        arm.srtt_us = srtt_us;
    } else {
        let deviations = CLIP_HALF_DEVIATIONS * u64::from(arm.deviation_q16) / 2;
        let clip_worse = match timeout {
            true => CLIP_WORSE_Q16,
            false => deviations.clamp(CLIP_WORSE_Q16, CLIP_WORSE_MAX_Q16),
        };
        let cost = if arm.weight_q16 >= CLIP_WEIGHT_Q16 {
            // One bad connection is luck; several in a row are another path. So the older evidence
            // is discounted, and the next measurement moves the mean further. Of many hosts some are
            // always unlucky.
            if cost > arm.value + clip_worse && !level.is_group() {
                kept -= kept >> SURPRISE_SHIFT;
            }
            cost.clamp(
                arm.value.saturating_sub(CLIP_BETTER_Q16),
                arm.value + clip_worse,
            )
        } else {
            cost
        };
        let mix = |old: u32, new: u64| blend_towards(u64::from(old), new, weight, total) as u32;
        arm.deviation_q16 = mix(arm.deviation_q16, cost.abs_diff(arm.value));
        arm.value = blend_towards(arm.value, cost, weight, total);
        arm.log_rate_q16 = mix(arm.log_rate_q16, u64::from(log_rate_q16));
        arm.srtt_us = mix(arm.srtt_us, u64::from(srtt_us));
    }
    arm.weight_q16 = kept as u32;
}
