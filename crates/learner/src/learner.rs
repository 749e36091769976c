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
    /// Mid-flow: the loss rule.
    Loss,
    /// Mid-flow: the arm made losses of its own.
    Withdrawn,
}

impl Reason {
    /// Whether the decision was a trial: an arm taken to learn of it.
    pub fn is_trial(self) -> bool {
        matches!(self, Reason::Explore | Reason::Untried)
    }
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
    now_ns: u64,
) -> Decision {
    match params.mode {
        Mode::Classic => classic::decide(host, allowed, random),
        Mode::Thalweg => weighted::decide(host, system_arm, allowed, params, random[0], now_ns),
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

    /// Notes that a trial has been put into effect at `now_ns`; [`Host::end_trial`] is due
    /// when its connection is over or has been taken back.
    pub fn begin_trial(&mut self, now_ns: u64) {
        self.trials = self.trials_at(now_ns) + 1;
        self.trial_ns = now_ns;
    }

    /// Notes the end of a trial.
    pub fn end_trial(&mut self) {
        self.trials = self.trials.saturating_sub(1);
    }

    /// The base RTT of the path: the lowest of this half-life and of the one before, µs.
    pub fn base_rtt(&self) -> Option<u32> {
        let rtts = [self.base_rtt_us, self.last_base_rtt_us];
        rtts.into_iter().filter(|&rtt_us| rtt_us != 0).min()
    }

    /// Trials under way. One whose end does not come is taken for over after a while.
    pub(crate) fn trials_at(&self, now_ns: u64) -> u32 {
        if now_ns.saturating_sub(self.trial_ns) >= weighted::TRIAL_NS {
            0
        } else {
            self.trials
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
    now_ns: u64,
) -> [u32; MAX_ARMS] {
    match params.mode {
        Mode::Classic => classic::propensities_q16(host, allowed),
        Mode::Thalweg => weighted::propensities_q16(host, system_arm, allowed, params, now_ns),
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

/// A connection mid-flow, as far as the question whether to change its arm goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its arm.
    pub arm: Option<usize>,
    /// The arm that the system gave it.
    pub system_arm: Option<usize>,
    /// Data segments sent on its arm, retransmissions included.
    pub segs: u64,
    /// Of them retransmissions.
    pub retrans: u64,
}

/// Whether to change the arm of a connection mid-flow; `None`: nothing is due.
///
/// The *loss rule* moves a connection on the system's arm that loses much to an arm known to be
/// better here, in three cases of four; in the fourth the answer's arm is the present one. A
/// connection on another arm that loses much more than the system's would is taken back to that.
/// `random` is a uniform number.
///
/// Classic has the published loss rule alone.
pub fn change(
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
        Mode::Thalweg => weighted::change(host, flow, allowed, params, random),
    }
}

/// Scores one measured stretch of a connection that ran on `arm` and that the system had given
/// `system_arm`, at monotonic time `now_ns`.
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
            cost: classic::score(host, arm, sample),
        },
        Mode::Thalweg => match weighted::assess(host, sample, params) {
            Outcome::Scored => {
                let (cost, weight_q16) =
                    weighted::score(host, arm, system_arm, sample, params, now_ns);
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
