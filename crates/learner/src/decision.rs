//! The learner's three operations: choose the arm of a new connection, change it mid-flow, and
//! score a finished stretch of a connection.

use crate::host::{Host, MAX_ARMS};
use crate::params::{Mode, Params};
use crate::sample::{Outcome, Sample};
use crate::{classic, fixed, thalweg};

/// Why an arm was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Too little evidence about the host: the system default is kept.
    WarmUp,
    /// Lowest estimated cost.
    Greedy,
    /// Exploration of an arm that has been measured before.
    Explore,
    /// First trial of an arm without evidence.
    Untried,
    /// Mid-flow: the loss rule.
    Loss,
    /// Mid-flow: the arm caused losses of its own.
    Withdrawn,
    /// Mid-flow: a long connection is decided anew, by the rule for new ones.
    Anew,
    /// Mid-flow: a long connection leaves a harmful or clearly worse arm for the best one.
    Returned,
}

impl Reason {
    /// Whether the decision was a trial: an arm chosen to learn about it.
    pub fn is_trial(self) -> bool {
        matches!(self, Reason::Explore | Reason::Untried)
    }
}

/// The result of [`decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Index of the arm; `None`: leave the connection as it is.
    pub arm: Option<usize>,
    /// Reason of the choice.
    pub reason: Reason,
    /// Probability of the choice, Q16.
    pub propensity_q16: u32,
}

/// The result of [`score`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the measurement was taken, and if not, why.
    pub outcome: Outcome,
    /// Weight of the measurement, Q16; 0 if it was not taken.
    pub weight_q16: u32,
    /// Cost of the measurement: scale 1,000,000 in classic, bits in Q16 in thalweg; 0 if it was not
    /// taken.
    pub cost: u64,
}

/// Chooses the arm of a new connection, which the caller has already counted in `host.connections`.
///
/// `allowed` is the mask of allowed arms, and `system_arm` the arm that the system gave the
/// connection. `random` has three uniform numbers (thalweg uses the first).
pub fn decide(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
    random: [u32; 3],
    now_ns: u64,
) -> Decision {
    match params.mode {
        Mode::Classic => classic::decide_classic(host, allowed, random),
        Mode::Thalweg => {
            thalweg::decide_weighted(host, system_arm, allowed, params, random[0], now_ns)
        }
    }
}

impl Host {
    /// Counts a decision that was applied (or would have been, in a dry run).
    pub fn count_decision(&mut self, decision: &Decision) {
        if let Some(arm) = decision.arm {
            let arm = &mut self.arms[arm];
            // The counts stop together.
            if arm.chosen < u32::MAX {
                arm.chosen += 1;
                arm.greedy += u32::from(decision.reason == Reason::Greedy);
            }
        }
    }

    /// Records that a trial was applied at `now_ns`. [`Host::end_trial`] is due when its connection
    /// is over or the trial has been reverted.
    pub fn begin_trial(&mut self, now_ns: u64) {
        self.trials = self.trials_at(now_ns) + 1;
        self.trial_ns = now_ns;
    }

    /// Records the end of a trial.
    pub fn end_trial(&mut self) {
        self.trials = self.trials.saturating_sub(1);
    }

    /// The base RTT of the path, µs: the lowest of this half-life and the one before.
    pub fn base_rtt(&self) -> Option<u32> {
        let rtts = [self.base_rtt_us, self.last_base_rtt_us];
        rtts.into_iter().filter(|&rtt_us| rtt_us != 0).min()
    }

    /// Open trials. A trial without an end expires after a while.
    pub(crate) fn trials_at(&self, now_ns: u64) -> u32 {
        if now_ns.saturating_sub(self.trial_ns) >= thalweg::TRIAL_NS {
            0
        } else {
            self.trials
        }
    }
}

/// Probability (Q16) of each arm for the next connection. They sum to 65536, or are all 0 if the
/// connection would be left unchanged.
pub fn propensities_q16(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
    now_ns: u64,
) -> [u32; MAX_ARMS] {
    match params.mode {
        Mode::Classic => classic::propensities_q16(host, allowed),
        Mode::Thalweg => thalweg::propensities_q16(host, system_arm, allowed, params, now_ns),
    }
}

/// The arm judged best by the measurements, or `None` before the first one.
pub fn best_arm(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
) -> Option<usize> {
    match params.mode {
        Mode::Classic => classic::best_arm(host, allowed),
        Mode::Thalweg => thalweg::best_arm(host, allowed, system_arm),
    }
}

/// A connection mid-flow, as input of [`change_due`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Arm of the connection.
    pub arm: Option<usize>,
    /// The arm that the system gave it.
    pub system_arm: Option<usize>,
    /// Data segments sent on its arm, retransmissions included.
    pub segs: u64,
    /// Retransmissions among them.
    pub retrans: u64,
}

/// The change of arm that is due for a connection mid-flow; `None`: no change is due.
///
/// The *loss rule* concerns a connection on the system's arm that loses much. In three cases of
/// four it moves to an arm known to be better here. In the fourth the result is the present arm. A
/// connection on another arm goes back to the system's arm if it loses much more than that arm
/// would. `random` is a uniform number.
///
/// Classic has only the published loss rule.
pub fn change_due(
    host: &Host,
    flow: &Flow,
    allowed: u16,
    params: &Params,
    random: u32,
) -> Option<Decision> {
    if flow.retrans <= flow.segs >> (params.loss_shift & 63) {
        return None;
    }
    match params.mode {
        Mode::Classic => (flow.arm != Some(classic::BBR)).then_some(Decision {
            arm: Some(classic::BBR),
            reason: Reason::Loss,
            propensity_q16: fixed::ONE_Q16,
        }),
        Mode::Thalweg => thalweg::change_mid_flow(host, flow, allowed, params, random),
    }
}

/// Scores one measured stretch of a connection on `arm`, ended at monotonic time `now_ns`. The
/// system had given the connection `system_arm`.
pub fn score(
    host: &mut Host,
    arm: usize,
    system_arm: Option<usize>,
    sample: &Sample,
    params: &Params,
    now_ns: u64,
) -> Verdict {
    host.seen_ns = now_ns;
    match params.mode {
        Mode::Classic => Verdict {
            outcome: Outcome::Scored,
            weight_q16: fixed::ONE_Q16,
            cost: classic::score_classic(host, arm, sample),
        },
        Mode::Thalweg => match thalweg::assess_weighted(host, arm, system_arm, sample, params) {
            Outcome::Scored => {
                let (cost, weight_q16) =
                    thalweg::score_weighted(host, arm, system_arm, sample, params, now_ns);
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
