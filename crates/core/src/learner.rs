//! The three questions: which arm for a new connection, whether to change it mid-flow, and
//! what a finished stretch of a connection teaches.

use crate::host::{Host, MAX_ARMS};
use crate::params::{Mode, Params};
use crate::sample::{Outcome, Sample};
use crate::{classic, fixed, weighted};

/// Why an arm was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Too little evidence about the host: system default kept.
    WarmUp,
    /// Lowest estimated cost.
    Greedy,
    /// Exploration of an arm that has been measured before.
    Explore,
    /// First trial of an arm without evidence.
    Untried,
}

/// An answer of [`decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Index of the arm; `None`: leave the connection as it is.
    pub arm: Option<usize>,
    /// Why.
    pub reason: Reason,
    /// Probability with which it was chosen, Q16.
    pub propensity_q16: u32,
}

/// An answer of [`score`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the measurement was taken, and if not, why.
    pub outcome: Outcome,
    /// Weight it entered with, Q16; 0 if it was not taken.
    pub weight_q16: u32,
    /// Its cost: scale 1,000,000 in classic, bits in Q16 in thalweg; 0 if it was not taken.
    pub cost: u64,
}

/// Chooses the arm of a new connection, which the caller has already counted in
/// `host.connections`.
///
/// `allowed` is the mask of arms that may be taken, `system_arm` the arm the system gave
/// the connection, `random` three uniform numbers (thalweg uses the first).
pub fn decide(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
    random: [u32; 3],
) -> Decision {
    match params.mode {
        Mode::Classic => classic::decide(host, allowed, random),
        Mode::Thalweg => weighted::decide(host, system_arm, allowed, params, random[0]),
    }
}

impl Host {
    /// Counts a decision that was put into effect (or would have been, in a dry run).
    pub fn count_decision(&mut self, decision: &Decision) {
        if let Some(arm) = decision.arm {
            self.arms[arm].chosen = self.arms[arm].chosen.saturating_add(1);
            if decision.reason == Reason::Greedy {
                self.arms[arm].greedy = self.arms[arm].greedy.saturating_add(1);
            }
        }
    }
}

/// Probability (Q16) with which each arm would be chosen next. They sum to 65536, or are
/// all 0 where the connection would be left alone.
pub fn propensities_q16(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
) -> [u32; MAX_ARMS] {
    match params.mode {
        Mode::Classic => classic::propensities_q16(host, allowed),
        Mode::Thalweg => weighted::propensities_q16(host, system_arm, allowed, params),
    }
}

/// The arm that is judged best by what has been measured, or `None` before the first
/// measurement.
pub fn best_arm(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
) -> Option<usize> {
    match params.mode {
        Mode::Classic => classic::best(host, allowed),
        Mode::Thalweg => weighted::best(host, allowed, system_arm),
    }
}

/// The loss rule: the arm that a connection on `current` moves to after `segs` segments of
/// which `retrans` were retransmissions; `None`: it stays.
pub fn rescue(
    host: &Host,
    current: Option<usize>,
    segs: u64,
    retrans: u64,
    allowed: u16,
    params: &Params,
) -> Option<usize> {
    if retrans <= segs >> (params.loss_shift & 63) {
        return None;
    }
    match params.mode {
        Mode::Classic => (current != Some(classic::BBR)).then_some(classic::BBR),
        Mode::Thalweg => weighted::rescue(host, current, segs, allowed, params),
    }
}

/// Scores one measured stretch of a connection that ran on `arm`, at monotonic time
/// `now_ns`.
pub fn score(
    host: &mut Host,
    arm: usize,
    sample: &Sample,
    params: &Params,
    now_ns: u64,
) -> Verdict {
    host.seen_ns = now_ns;
    match params.mode {
        Mode::Classic => Verdict {
            outcome: Outcome::Scored,
            weight_q16: fixed::ONE_Q16,
            cost: classic::score(host, arm, sample),
        },
        Mode::Thalweg => match sample.assess(params) {
            Outcome::Scored => {
                let (cost, weight_q16) = weighted::score(host, arm, sample, params, now_ns);
                Verdict {
                    outcome: Outcome::Scored,
                    weight_q16,
                    cost,
                }
            }
            outcome => Verdict {
                outcome,
                weight_q16: 0,
                cost: 0,
            },
        },
    }
}
