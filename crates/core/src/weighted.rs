//! Mode `thalweg`: discounted estimates of a cost in bits, inverse gap weighting.

use crate::fixed::{ONE_Q16, blend, log2_q16};
use crate::host::{ArmState, Host, MAX_ARMS, arms_in};
use crate::learner::{Decision, Reason};
use crate::params::Params;
use crate::sample::Sample;

/// Keeps a cost above 0 whatever the rate: no 64-bit rate has more bits.
const COST_OFFSET_Q16: u64 = 64 << 16;
/// A measurement counts as no worse than the mean by more than this: 1 bit, a factor of 2.
/// Much can slow one connection that is not its arm's doing.
const CLIP_WORSE_Q16: u64 = 1 << 16;
/// A measurement counts as no better than the mean by more than this: 4 bits, a factor of 16.
const CLIP_BETTER_Q16: u64 = 4 << 16;
/// A sample clipped for being worse leaves 1/2^this of the evidence.
const SURPRISE_SHIFT: u32 = 1;
/// Evidence from which on the clip applies: a fresh measurement outweighs less than this.
const CLIP_WEIGHT_Q16: u32 = 1 << 15;
/// Handicap of an arm without evidence against the system's own: half a bit. It falls as
/// 1 / (1 + evidence).
const CAUTION_Q16: u64 = 1 << 15;
/// After this many trials without a measurement the share of an untried arm halves.
const FRUITLESS_HALF: u32 = 8;
/// It does not fall further after this many: an eighth is left.
const FRUITLESS_MAX: u32 = 56;
/// The loss rule changes arms for an advantage of half a bit (a factor of 1.4) at least.
const RESCUE_GAP_Q16: u64 = 1 << 15;

/// Cost of a measurement in bits, Q16, below 2^32:
/// `64 − log2(rate) + latency_weight · log2(srtt + guard)`.
///
/// A rate twice as high costs one bit less. Being a logarithm, it needs no reference rate
/// or RTT of the host: a change of reference would shift all arms alike.
pub fn cost_q16(rate_bytes_per_second: u64, srtt_us: u32, params: &Params) -> u64 {
    let rtt = u64::from(srtt_us) + u64::from(params.latency_guard_us);
    let latency = (u64::from(log2_q16(rtt)) * u64::from(params.latency_weight_q16)) >> 16;
    let cost = COST_OFFSET_Q16 - u64::from(log2_q16(rate_bytes_per_second)) + latency;
    cost.min(u64::from(u32::MAX))
}

/// Halves the evidence of every arm once for each half-life that has passed.
pub fn forget(host: &mut Host, params: &Params, now_ns: u64) {
    if host.forgot_ns == 0 || params.half_life_ns == 0 {
        host.forgot_ns = now_ns;
        return;
    }
    let steps = now_ns.saturating_sub(host.forgot_ns) / params.half_life_ns;
    if steps == 0 {
        return;
    }
    host.forgot_ns += steps * params.half_life_ns;
    for arm in &mut host.arms {
        arm.weight_q16 = if steps < 32 {
            arm.weight_q16 >> steps
        } else {
            0
        };
    }
}

/// What an arm is judged by, bits in Q16: its mean cost, and for every arm but the system's
/// own a handicap of `CAUTION / (1 + evidence)`, so that luck does not displace the default.
pub fn judged_q16(host: &Host, arm: usize, system_arm: Option<usize>) -> u64 {
    let state = &host.arms[arm];
    if Some(arm) == system_arm {
        return state.value;
    }
    state.value + (CAUTION_Q16 << 16) / (u64::from(ONE_Q16) + u64::from(state.weight_q16))
}

/// Best-judged arm among the measured ones of `allowed`; on a tie the system's own, else
/// the lowest index.
pub(crate) fn best(host: &Host, allowed: u16, system_arm: Option<usize>) -> Option<usize> {
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

/// Share (Q16) of an arm without evidence: all first trials together take half of the
/// connections, less the more of an arm's trials have brought no measurement. An arm that
/// moves nothing is so left with a sixteenth at most.
fn untried_q16(arm: &ArmState, untried: u32) -> u32 {
    let fruitless = arm.chosen.saturating_sub(arm.scored).min(FRUITLESS_MAX);
    ONE_Q16 / 2 * FRUITLESS_HALF / (untried * (FRUITLESS_HALF + fruitless))
}

/// The probabilities (Q16, sum 65536) and the best arm, or `None` while warming up.
fn shares(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
) -> Option<(usize, [u32; MAX_ARMS])> {
    let best = best(host, allowed, system_arm)?;
    if host.scored < params.warm_up {
        return None;
    }
    let arms = arms_in(allowed).count() as u64;
    let untried = arms_in(allowed)
        .filter(|&i| host.arms[i].weight_q16 == 0)
        .count() as u32;
    let lowest = judged_q16(host, best, system_arm);
    let mut shares = [0; MAX_ARMS];
    for i in arms_in(allowed).filter(|&i| i != best) {
        let arm = &host.arms[i];
        shares[i] = if arm.weight_q16 == 0 {
            untried_q16(arm, untried)
        } else {
            let gap = judged_q16(host, i, system_arm) - lowest;
            explore_q16(gap, arm.weight_q16, arms, params.gap_scale)
        };
    }
    shares[best] = ONE_Q16 - shares.iter().sum::<u32>();
    Some((best, shares))
}

/// Draws an arm by its share. While warming up: the system's own.
pub(crate) fn decide(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
    random: u32,
) -> Decision {
    let Some((best, shares)) = shares(host, system_arm, allowed, params) else {
        return Decision {
            arm: system_arm,
            reason: Reason::WarmUp,
            propensity_q16: ONE_Q16,
        };
    };
    // Tickets 65535, 65534, … go to the other arms in order of index; the rest is the best's.
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
) -> [u32; MAX_ARMS] {
    match (shares(host, system_arm, allowed, params), system_arm) {
        (Some((_, shares)), _) => shares,
        (None, Some(system)) => {
            let mut only = [0; MAX_ARMS];
            only[system] = ONE_Q16;
            only
        }
        (None, None) => [0; MAX_ARMS],
    }
}

/// The arm the loss rule moves a connection to, if it fires and there is a better one.
pub(crate) fn rescue(
    host: &Host,
    current: Option<usize>,
    segs: u64,
    allowed: u16,
    params: &Params,
) -> Option<usize> {
    if segs < u64::from(params.loss_min_segs) {
        return None;
    }
    let target = match best(host, allowed, current) {
        Some(best) if Some(best) != current => best,
        _ => params.rescue_arm?,
    };
    if target >= MAX_ARMS || Some(target) == current || allowed & (1 << target) == 0 {
        return None;
    }
    let to = &host.arms[target];
    if let Some(from) = current.map(|i| &host.arms[i])
        && from.weight_q16 > 0
        && to.weight_q16 > 0
        && to.value + RESCUE_GAP_Q16 > from.value
    {
        return None;
    }
    Some(target)
}

/// Adds one measurement, already assessed, to the estimates of `arm`; returns its cost.
pub(crate) fn score(
    host: &mut Host,
    arm: usize,
    sample: &Sample,
    params: &Params,
    now_ns: u64,
) -> (u64, u32) {
    let rate = sample.rate();
    let cost = cost_q16(rate, sample.srtt_us, params);
    let weight_q16 = sample.weight_q16(params);

    forget(host, params, now_ns);
    for (i, other) in host.arms.iter_mut().enumerate() {
        if i != arm {
            other.weight_q16 -= other.weight_q16 >> (params.idle_shift & 31);
        }
    }
    let state = &mut host.arms[arm];
    learn(
        state,
        cost,
        log2_q16(rate),
        sample.srtt_us,
        weight_q16,
        params.weight_max_q16,
    );
    state.max_rate = state.max_rate.max(rate);
    state.scored = state.scored.saturating_add(1);
    host.max_rate = host.max_rate.max(rate);
    host.scored = host.scored.saturating_add(1);
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

/// Adds one cost to an arm's discounted estimate.
fn learn(
    arm: &mut ArmState,
    cost: u64,
    log_rate_q16: u32,
    srtt_us: u32,
    weight_q16: u32,
    weight_max_q16: u32,
) {
    let weight = u64::from(weight_q16);
    let total = u64::from(arm.weight_q16) + weight;
    let mut kept = total.min(u64::from(weight_max_q16));
    if arm.weight_q16 == 0 {
        arm.value = cost;
        arm.deviation_q16 = 0;
        arm.log_rate_q16 = log_rate_q16;
        arm.srtt_us = srtt_us;
    } else {
        let cost = if arm.weight_q16 >= CLIP_WEIGHT_Q16 {
            // One bad connection is luck, several in a row are another path: what was known
            // before counts less, so the next moves the mean further.
            if cost > arm.value + CLIP_WORSE_Q16 {
                kept >>= SURPRISE_SHIFT;
            }
            cost.clamp(
                arm.value.saturating_sub(CLIP_BETTER_Q16),
                arm.value + CLIP_WORSE_Q16,
            )
        } else {
            cost
        };
        let mix = |old: u32, new: u64| blend(u64::from(old), new, weight, total) as u32;
        arm.deviation_q16 = mix(arm.deviation_q16, cost.abs_diff(arm.value));
        arm.value = blend(arm.value, cost, weight, total);
        arm.log_rate_q16 = mix(arm.log_rate_q16, u64::from(log_rate_q16));
        arm.srtt_us = mix(arm.srtt_us, u64::from(srtt_us));
    }
    arm.weight_q16 = kept as u32;
}
