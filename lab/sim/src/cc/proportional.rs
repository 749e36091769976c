//! The proportional rule: the fixed point of ADPG, without a network.
//!
//! Tessler et al., "Reinforcement Learning for Datacenter Congestion Control", 2021, §5.1: with N
//! flows that share a queue fairly, the round-trip time grows with √N. A flow that holds `inflation
//! · √(share of the line rate)` at a target therefore finds its fair share without knowing N. ADPG
//! learns to do so. This rule acts in proportion to the distance from the target.

use serde::{Deserialize, Serialize};

use super::parameter::check_within;
use super::{Command, Context, Controller, Needs, ParameterError, Response, Setup};
use crate::Time;

/// Parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Inflation that counts as no queue, in base round-trip times: 1 plus the bursts of a path
    /// without congestion.
    pub offset: f64,
    /// Target of `(inflation − offset) · √share`. With N flows the inflation settles at `offset +
    /// target · √N`.
    pub target: f64,
    /// Action per unit of distance from the target. The action is at most 1.
    pub gain: f64,
    /// First rate, as a share of the line rate.
    pub initial_fraction: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            offset: 1.0,
            target: 0.05,
            gain: 10.0,
            initial_fraction: 1.0,
        }
    }
}

impl Parameters {
    /// Checks that every parameter is in range.
    pub fn validate(&self) -> Result<(), ParameterError> {
        check_within("offset", self.offset, 0.0..=1e3)?;
        check_within("target", self.target, 1e-6..=1e3)?;
        check_within("gain", self.gain, 1e-6..=1e6)?;
        check_within("initial_fraction", self.initial_fraction, 1e-9..=1.0)
    }
}

/// Factor by which an action from −1 to 1 changes a rate: ·(1+0.2u) upwards, /(1−0.2u) downwards.
/// So u and −u undo each other (0.83 to 1.2).
pub fn action_multiplier(action: f64) -> f64 {
    let step = 1.0 + 0.2 * action.abs();
    // One division serves both signs. A branch would be hard to predict.
    let (above, below) = if action >= 0.0 {
        (step, 1.0)
    } else {
        (1.0, step)
    };
    above / below
}

/// `(inflation − offset) · √share`, not below zero.
pub(super) fn scaled_inflation(rtt: Time, base_rtt_ps: f64, offset: f64, share: f64) -> f64 {
    let inflation = rtt.ps() as f64 / base_rtt_ps;
    (inflation - offset).max(0.0) * share.sqrt()
}

/// The proportional rule's flow.
#[derive(Debug, Clone)]
pub struct Proportional {
    parameters: Parameters,
    base_rtt_ps: f64,
    min_rate_bps: f64,
    line_rate_bps: f64,
    rate_bps: f64,
}

impl Proportional {
    /// A controller for one flow.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            parameters: parameters.clone(),
            base_rtt_ps: 1.0,
            min_rate_bps: 0.0,
            line_rate_bps: 0.0,
            rate_bps: 0.0,
        }
    }

    fn apply_action(&mut self, action: f64, context: &mut Context<'_>) {
        self.rate_bps = (self.rate_bps * action_multiplier(action))
            .max(self.min_rate_bps)
            .min(self.line_rate_bps);
        context.command.rate_bps = self.rate_bps;
    }
}

impl Controller for Proportional {
    fn required_signals(&self) -> Needs {
        Needs::ROUND_TRIPS
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.base_rtt_ps = setup.base_rtt.ps().max(1) as f64;
        self.min_rate_bps = setup.min_rate_bps;
        self.line_rate_bps = setup.line_rate_bps;
        self.rate_bps = setup.limit(self.parameters.initial_fraction * setup.line_rate_bps);
        *context.command = Command {
            rate_bps: self.rate_bps,
            window_bytes: f64::INFINITY,
        };
    }

    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let p = &self.parameters;
        let share = self.rate_bps / self.line_rate_bps;
        let error = p.target - scaled_inflation(response.rtt, self.base_rtt_ps, p.offset, share);
        self.apply_action((p.gain * error).clamp(-1.0, 1.0), context);
    }

    /// The queue is longer than can be measured, so this is the largest decrease.
    fn on_probe_lost(&mut self, _: &Response<'_>, context: &mut Context<'_>) {
        self.apply_action(-1.0, context);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Flow, assert_near, example_setup};
    use super::*;

    fn start(parameters: &Parameters) -> Flow<Proportional> {
        Flow::start_at_zero(Proportional::new(parameters), &example_setup())
    }

    #[test]
    fn actions_undo_each_other_within_bounds() {
        assert_near(action_multiplier(1.0), 1.2);
        assert_near(action_multiplier(0.5), 1.1);
        assert_near(action_multiplier(0.0), 1.0);
        assert_near(action_multiplier(-0.5), 1.0 / 1.1);
        assert_near(action_multiplier(-1.0), 1.0 / 1.2);
    }

    #[test]
    fn in_proportion_to_the_distance() {
        let parameters = Parameters {
            offset: 1.5,
            target: 0.25,
            gain: 2.0,
            ..Parameters::default()
        };
        let mut flow = start(&parameters);
        // Inflation 24/12 = 2, share 1: s = 0.5, error −0.25, action −0.5: / 1.1.
        flow.deliver_response(Time::from_us(24));
        assert_near(flow.rate_gbps(), 100.0 / 1.1);
        // Inflation 1: below the offset, s = 0, error 0.25, action 0.5: · 1.1, the line rate.
        flow.deliver_response(Time::from_us(12));
        assert_near(flow.rate_gbps(), 100.0);
        // Inflation 10: s = 8.5, action −1 at most: / 1.2, four times to 48.2….
        for round in 1..=4 {
            flow.deliver_response(Time::from_us(120));
            assert_near(flow.rate_gbps(), 100.0 / 1.2_f64.powi(round));
        }
    }

    #[test]
    fn a_lost_probe_is_the_largest_step_down() {
        let mut flow = start(&Parameters::default());
        flow.lose_probe();
        assert_near(flow.rate_gbps(), 100.0 / 1.2);
        flow.lose_probe();
        assert_near(flow.rate_gbps(), 100.0 / 1.44);
    }

    #[test]
    fn rests_at_the_fixed_point() {
        // A share of 1/16: inflation 1 + 0.05 · 4 = 1.2, 14.4 µs. The rule must raise lower rates,
        // reduce higher ones, and leave 6.25 Gbit/s unchanged.
        for (gbps, expected) in [(6.25, 0), (6.2, 1), (6.3, -1)] {
            let mut flow = start(&Parameters {
                initial_fraction: gbps / 100.0,
                ..Parameters::default()
            });
            flow.deliver_response(Time::from_ns(14_400));
            let change = flow.rate_gbps() / gbps - 1.0;
            let sign = if change.abs() < 1e-12 {
                0
            } else {
                change.signum() as i32
            };
            assert_eq!(sign, expected, "{gbps}");
        }
    }

    #[test]
    fn not_below_the_lowest_rate() {
        let mut flow = start(&Parameters::default());
        // ln(100e9/1e6)/ln 1.2 = 63.1 full decreases suffice.
        for _ in 0..64 {
            flow.deliver_response(Time::from_us(1_000_000));
        }
        assert_near(flow.command.rate_bps, 1e6);
    }
}
