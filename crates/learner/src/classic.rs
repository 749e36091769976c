//! The published connection tuner (bpftune), exact to the digit.
//!
//! Source: "reinforcement learning in BPF" article and manual page of bpftune-tcp-conn. Its
//! constants cannot be set here.

use crate::decision::{Decision, Reason};
use crate::fixed::ONE_Q16;
use crate::host::{ArmState, Host, MAX_ARMS, arms_in};
use crate::sample::Sample;

/// Scale of both terms of the cost.
const SCALE: u64 = 1_000_000;
/// Learning rate 1/2^2.
const RATE_SHIFT: u32 = 2;
/// One choice in this many is random.
pub const EPSILON: u32 = 20;
/// Connections to a host before the first choice.
pub const MIN_CONNECTIONS: u32 = 4;
/// Index of bbr among the four published arms (cubic, bbr, htcp, dctcp).
pub(crate) const BBR: usize = 1;

/// `excess · S / base`, 0 for a base of 0. It saturates at half the range, where the published
/// program would overflow, so that two terms can be added.
fn cost_term(excess: u64, base: u64) -> u64 {
    if base == 0 {
        return 0;
    }
    match excess.checked_mul(SCALE) {
        Some(scaled) => (scaled / base).min(u64::MAX / 2),
        None => u64::MAX / 2,
    }
}

/// The published cost, `(min_rtt − host_min_rtt)·S/host_min_rtt + (host_max_rate −
/// rate)·S/host_max_rate`. As published, it also lowers the host's minimum RTT and raises its
/// maximum rate.
///
/// `rate` is the highest rate of the arm, in bytes per µs.
pub fn published_cost(host: &mut Host, min_rtt_us: u32, rate: u64) -> u64 {
    if host.min_rtt_us == 0 || min_rtt_us < host.min_rtt_us {
        host.min_rtt_us = min_rtt_us;
    }
    if host.max_rate == 0 || rate > host.max_rate {
        host.max_rate = rate;
    }
    cost_term(
        u64::from(min_rtt_us - host.min_rtt_us),
        u64::from(host.min_rtt_us),
    ) + cost_term(host.max_rate - rate, host.max_rate)
}

/// The published delta rule: the first cost unchanged, then a quarter of the way. A cost of 0 also
/// means "unset", as published.
pub fn delta_update(value: u64, cost: u64) -> u64 {
    if value == 0 {
        cost
    } else if cost > value {
        value + ((cost - value) >> RATE_SHIFT)
    } else {
        value - ((value - cost) >> RATE_SHIFT)
    }
}

/// Integer bytes per µs, as published: every rate under 8 Mbit/s is 0.
fn rate_per_us(sample: &Sample) -> u64 {
    sample
        .rate_delivered_bytes
        .checked_div(sample.rate_interval_us)
        .unwrap_or(0)
}

/// Scores a connection that ended in order; returns its cost.
pub(crate) fn score_classic(host: &mut Host, arm: usize, sample: &Sample) -> u64 {
    let state: &mut ArmState = &mut host.arms[arm];
    if state.min_rtt_us == 0 || sample.min_rtt_us < state.min_rtt_us {
        state.min_rtt_us = sample.min_rtt_us;
    }
    state.max_rate = state.max_rate.max(rate_per_us(sample));
    let arm_rate = state.max_rate;

    let cost = published_cost(host, sample.min_rtt_us, arm_rate);
    let state = &mut host.arms[arm];
    state.value = delta_update(state.value, cost);
    state.scored = state.scored.saturating_add(1);
    host.scored = host.scored.saturating_add(1);
    cost
}

/// The arms of `allowed` that share the lowest value.
fn lowest_arms(host: &Host, allowed: u16) -> Vec<usize> {
    let lowest = arms_in(allowed).map(|i| host.arms[i].value).min();
    arms_in(allowed)
        .filter(|&i| Some(host.arms[i].value) == lowest)
        .collect()
}

/// The arm with the lowest value among those with a value; the lowest index on a tie.
pub(crate) fn best_arm(host: &Host, allowed: u16) -> Option<usize> {
    arms_in(allowed)
        .filter(|&i| host.arms[i].value > 0)
        .min_by_key(|&i| (host.arms[i].value, i))
}

/// Lowest value with ties at random; one choice in twenty uniformly at random. `random`: for the
/// tie, for ε, for the random arm.
pub(crate) fn decide_classic(host: &Host, allowed: u16, random: [u32; 3]) -> Decision {
    let arms: Vec<usize> = arms_in(allowed).collect();
    if host.connections <= MIN_CONNECTIONS || arms.is_empty() {
        return Decision {
            arm: None,
            reason: Reason::WarmUp,
            propensity_q16: ONE_Q16,
        };
    }
    let ties = lowest_arms(host, allowed);
    let greedy = ties[random[0] as usize % ties.len()];
    let arm = if random[1].is_multiple_of(EPSILON) {
        arms[random[2] as usize % arms.len()]
    } else {
        greedy
    };
    Decision {
        arm: Some(arm),
        reason: if arm == greedy {
            Reason::Greedy
        } else {
            Reason::Explore
        },
        propensity_q16: arm_propensity(&ties, arms.len(), arm),
    }
}

/// Probability of an arm, rounded down.
fn arm_propensity(ties: &[usize], arms: usize, arm: usize) -> u32 {
    let random = ONE_Q16 / (EPSILON * arms as u32);
    if ties.contains(&arm) {
        random + ONE_Q16 * (EPSILON - 1) / (EPSILON * ties.len() as u32)
    } else {
        random
    }
}

/// Probabilities of all arms. The remainder of rounding goes to the first of the best.
pub(crate) fn propensities_q16(host: &Host, allowed: u16) -> [u32; MAX_ARMS] {
    let mut out = [0; MAX_ARMS];
    let arms = arms_in(allowed).count();
    if host.connections <= MIN_CONNECTIONS || arms == 0 {
        return out;
    }
    let ties = lowest_arms(host, allowed);
    for i in arms_in(allowed) {
        out[i] = arm_propensity(&ties, arms, i);
    }
    out[ties[0]] += ONE_Q16 - out.iter().sum::<u32>();
    out
}
