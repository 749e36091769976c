//! Long connections: scored in stretches on their way, and decided anew where that pays.

use crate::decision::{Decision, Reason};
use crate::fixed::ONE_Q16;
use crate::host::{Host, MAX_ARMS};
use crate::params::{Mode, Params};
use crate::thalweg;

/// Each stretch on an arm is twice as long as the one before, up to 2^this times the first: the
/// stretches of one connection tell less and less that is new.
const LONGEST_SHIFT: u32 = 4;
/// A long connection leaves an arm that is judged at least this much worse than the system's at
/// once: half a bit, a factor of 1.4.
const LEAVE_GAP_Q16: u64 = 1 << 15;
/// Gap to the best arm from which a long connection reselects its arm: an eighth of a bit. A change
/// of congestion control disturbs a connection, so it must pay.
const ANEW_GAP_Q16: u64 = 1 << 13;
/// Shortest time between two reselections of a connection: an hour.
const ANEW_NS: u64 = 3_600_000_000_000;

/// Whether the stretch of an open connection is scored now, and another begins: it is half an
/// interval of looks old, doubled by each of `count` earlier stretches on the same arm, and has full
/// weight.
pub fn is_due(age_ns: u64, bytes: u64, count: u32, params: &Params) -> bool {
    params.stretch_ns != 0
        && age_ns >> count.min(LONGEST_SHIFT) >= params.stretch_ns / 2
        && bytes >= params.score_full_bytes
}

/// A long connection whose stretch was just scored, as input of [`review_connection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Long {
    /// Arm of the connection.
    pub arm: Option<usize>,
    /// The arm that the system gave it.
    pub system_arm: Option<usize>,
    /// Whether it had its arm for a trial, which this stretch has ended.
    pub trial: bool,
    /// Monotonic time when it was last decided anew, ns; 0 = never.
    pub decided_ns: u64,
}

/// The result of [`review_connection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Review {
    /// The arm, perhaps the present one; [`Reason::Returned`] or [`Reason::Anew`].
    pub decision: Decision,
    /// Whether it is a trial.
    pub trial: bool,
    /// Probability (Q16) of each arm.
    pub shares_q16: [u32; MAX_ARMS],
}

/// The decision that is due for a long connection; `None`: it keeps its arm.
///
/// From an arm that is harmful, not allowed any more, or judged half a bit worse than the system's
/// it goes to the best one at once. On the best arm it stays: nothing is tried on it. On another one
/// the rule for new connections decides, at most once an hour. Its arm must be judged an eighth of a
/// bit worse than the best one, or have been a trial. `random` is a uniform number.
pub fn review_connection(
    host: &Host,
    long: &Long,
    allowed: u16,
    params: &Params,
    random: u32,
    now_ns: u64,
) -> Option<Review> {
    if params.mode == Mode::Classic || host.scored < params.warm_up {
        return None;
    }
    let (arm, system) = (long.arm?, long.system_arm?);
    if host.arms[arm].weight_q16 == 0 || host.arms[system].weight_q16 == 0 {
        return None;
    }
    let best = thalweg::best_arm(host, allowed, Some(system)).filter(|&best| best != arm)?;
    let is_allowed = |arm: usize| allowed & (1 << arm) != 0;
    let judged = |arm: usize| thalweg::judged_q16(host, arm, Some(system));
    let is_bad = !is_allowed(arm) || judged(arm) >= judged(system) + LEAVE_GAP_Q16;
    if arm != system && is_allowed(system) && is_bad {
        return Some(return_to_best(best));
    }
    let is_recent = long.decided_ns != 0 && now_ns.saturating_sub(long.decided_ns) < ANEW_NS;
    if is_recent || (!long.trial && judged(arm) < judged(best) + ANEW_GAP_Q16) {
        return None;
    }
    let decision = thalweg::decide_weighted(host, Some(system), allowed, params, random, now_ns);
    Some(Review {
        decision: Decision {
            reason: Reason::Anew,
            ..decision
        },
        trial: decision.reason.is_trial(),
        shares_q16: thalweg::propensities_q16(host, Some(system), allowed, params, now_ns),
    })
}

/// The way to the best arm.
fn return_to_best(best: usize) -> Review {
    let mut shares_q16 = [0; MAX_ARMS];
    shares_q16[best] = ONE_Q16;
    Review {
        decision: Decision {
            arm: Some(best),
            reason: Reason::Returned,
            propensity_q16: ONE_Q16,
        },
        trial: false,
        shares_q16,
    }
}
