//! TIMELY: rates that follow the gradient of the round-trip time.
//!
//! Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015, §4,
//! algorithm 1. A round-trip probe takes the place of the paper's completion event.

use serde::{Deserialize, Serialize};

use super::parameter::{check_below, check_within, time_from_us};
use super::{Command, Context, Controller, Needs, ParameterError, Response, Setup};
use crate::Time;

/// Parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// α, weight of the newest difference of round-trip times (0.875 from Zhu et al., "ECN or
    /// Delay", CoNEXT 2016, table 2).
    pub alpha: f64,
    /// β, multiplicative decrease (§4.3: 0.8).
    pub beta: f64,
    /// δ, additive increase, Mbit/s (10).
    pub additive_mbps: f64,
    /// Round-trip time below which the rate only grows, microseconds (§4.3: 50).
    pub low_us: f64,
    /// Round-trip time above which the rate falls whatever the gradient, microseconds (§4.3: 500).
    pub high_us: f64,
    /// Unit of gradients: a round-trip time, microseconds (§4.2; 20).
    pub min_rtt_us: f64,
    /// Completion events in a row without a positive gradient that start the hyperactive increase
    /// (§4.3: 5).
    pub hyper_after: u32,
    /// Factor of the hyperactive increase (§4.3: N = 5).
    pub hyper_factor: f64,
    /// First rate, as a share of the line rate (the paper: C/(N+1) with N other flows of the host).
    pub initial_fraction: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            alpha: 0.875,
            beta: 0.8,
            additive_mbps: 10.0,
            low_us: 50.0,
            high_us: 500.0,
            min_rtt_us: 20.0,
            hyper_after: 5,
            hyper_factor: 5.0,
            initial_fraction: 1.0,
        }
    }
}

impl Parameters {
    /// Checks that every parameter is in range.
    pub fn validate(&self) -> Result<(), ParameterError> {
        check_within("alpha", self.alpha, 1e-6..=1.0)?;
        check_within("beta", self.beta, 0.0..=1.0)?;
        check_within("additive_mbps", self.additive_mbps, 0.0..=1e5)?;
        check_within("low_us", self.low_us, 0.0..=1e6)?;
        check_within("high_us", self.high_us, 0.1..=1e6)?;
        check_below("low_us", self.low_us, "high_us", self.high_us)?;
        check_within("min_rtt_us", self.min_rtt_us, 0.1..=1e6)?;
        check_within("hyper_after", self.hyper_after.into(), 1.0..=1e3)?;
        check_within("hyper_factor", self.hyper_factor, 1.0..=1e3)?;
        check_within("initial_fraction", self.initial_fraction, 1e-9..=1.0)
    }
}

/// TIMELY's rate computation engine.
#[derive(Debug, Clone)]
pub struct Timely {
    parameters: Parameters,
    low: Time,
    high: Time,
    min_rate_bps: f64,
    line_rate_bps: f64,
    rate_bps: f64,
    last_rtt: Option<Time>,
    /// Moving average of the difference of round-trip times, microseconds.
    difference_us: f64,
    /// Completion events in a row without a positive gradient.
    falling: u32,
}

impl Timely {
    /// A controller for one flow.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            low: time_from_us(parameters.low_us),
            high: time_from_us(parameters.high_us),
            parameters: parameters.clone(),
            min_rate_bps: 0.0,
            line_rate_bps: 0.0,
            rate_bps: 0.0,
            last_rtt: None,
            difference_us: 0.0,
            falling: 0,
        }
    }

    /// Algorithm 1.
    fn next_rate_bps(&mut self, rtt: Time) -> f64 {
        let p = &self.parameters;
        let additive_bps = p.additive_mbps * 1e6;
        let last_rtt = self.last_rtt.replace(rtt).unwrap_or(rtt);
        self.difference_us =
            (1.0 - p.alpha) * self.difference_us + p.alpha * (rtt.us() - last_rtt.us());
        let gradient = self.difference_us / p.min_rtt_us;
        if gradient <= 0.0 {
            self.falling = self.falling.saturating_add(1);
        } else {
            self.falling = 0;
        }
        if rtt < self.low {
            // §4.3: below the threshold, differences come from bursts, not queues.
            self.falling = 0;
            return self.rate_bps + additive_bps;
        }
        if rtt > self.high {
            self.falling = 0;
            return self.rate_bps * (1.0 - p.beta * (1.0 - self.high.us() / rtt.us()));
        }
        if gradient <= 0.0 {
            // §4.3, hyperactive increase.
            let hyper = self.falling >= p.hyper_after;
            let factor = if hyper { p.hyper_factor } else { 1.0 };
            self.rate_bps + factor * additive_bps
        } else {
            self.rate_bps * (1.0 - p.beta * gradient)
        }
    }
}

impl Controller for Timely {
    fn required_signals(&self) -> Needs {
        Needs::ROUND_TRIPS
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.min_rate_bps = setup.min_rate_bps;
        self.line_rate_bps = setup.line_rate_bps;
        self.rate_bps = setup.limit(self.parameters.initial_fraction * setup.line_rate_bps);
        *context.command = Command {
            rate_bps: self.rate_bps,
            window_bytes: f64::INFINITY,
        };
    }

    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let rate_bps = self.next_rate_bps(response.rtt);
        // A steep gradient makes the computed rate negative.
        self.rate_bps = rate_bps.max(self.min_rate_bps).min(self.line_rate_bps);
        context.command.rate_bps = self.rate_bps;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Flow, assert_near, example_setup};
    use super::*;

    /// Starts at 40 Gbit/s.
    fn start() -> Flow<Timely> {
        let parameters = Parameters {
            initial_fraction: 0.4,
            ..Parameters::default()
        };
        Flow::start_at_zero(Timely::new(&parameters), &example_setup())
    }

    fn us(microseconds: u64) -> Time {
        Time::from_us(microseconds)
    }

    #[test]
    fn below_the_low_threshold_it_grows_whatever_the_gradient() {
        let mut flow = start();
        for (rtt, expected) in [(12, 40.01), (49, 40.02), (12, 40.03)] {
            flow.deliver_response(us(rtt));
            assert_near(flow.rate_gbps(), expected);
        }
    }

    #[test]
    fn above_the_high_threshold_it_falls_whatever_the_gradient() {
        let mut flow = start();
        // 1 − 0.8 (1 − 500/1000) = 0.6; then a falling delay, 1 − 0.8 (1 − 500/625) = 0.84.
        flow.deliver_response(us(1000));
        assert_near(flow.rate_gbps(), 24.0);
        flow.deliver_response(us(625));
        assert_near(flow.rate_gbps(), 20.16);
    }

    #[test]
    fn between_the_thresholds_the_gradient_decides() {
        let mut flow = start();
        flow.deliver_response(us(100));
        assert_near(flow.rate_gbps(), 40.01);
        // + 8 µs: difference 0.875 · 8 = 7, gradient 7/20 = 0.35: · (1 − 0.28).
        flow.deliver_response(us(108));
        let rate = 40.01 * 0.72;
        assert_near(flow.rate_gbps(), rate);
        // − 8 µs: 0.125 · 7 − 0.875 · 8 = −6.125: additive.
        flow.deliver_response(us(100));
        assert_near(flow.rate_gbps(), rate + 0.01);
        // Unchanged: −6.125/8, still falling.
        flow.deliver_response(us(100));
        assert_near(flow.rate_gbps(), rate + 0.02);
        // + 1 µs: −0.765625/8 + 0.875 = 0.779296875, gradient 0.03896484375.
        flow.deliver_response(us(101));
        assert_near(
            flow.rate_gbps(),
            (rate + 0.02) * (1.0 - 0.8 * 0.038_964_843_75),
        );
    }

    #[test]
    fn hyperactive_increase_from_the_fifth_on() {
        let mut flow = start();
        for (event, step) in [1.0, 1.0, 1.0, 1.0, 5.0, 5.0].into_iter().enumerate() {
            let before = flow.rate_gbps();
            flow.deliver_response(us(100 - event as u64));
            assert_near(flow.rate_gbps(), before + 0.01 * step);
        }
        // One positive gradient restarts the count.
        flow.deliver_response(us(200));
        flow.deliver_response(us(100));
        let before = flow.rate_gbps();
        flow.deliver_response(us(99));
        assert_near(flow.rate_gbps(), before + 0.01);
    }

    #[test]
    fn a_steep_gradient_leaves_the_lowest_rate() {
        let mut flow = start();
        flow.deliver_response(us(60));
        // 0.875 · 100/20 = 4.375: 1 − 3.5 is negative.
        flow.deliver_response(us(160));
        assert_near(flow.command.rate_bps, 1e6);
    }

    #[test]
    fn not_above_the_line_rate() {
        let mut flow = Flow::start_at_zero(Timely::new(&Parameters::default()), &example_setup());
        flow.deliver_response(us(12));
        assert_near(flow.rate_gbps(), 100.0);
    }

    #[test]
    fn refuses_thresholds_the_wrong_way_round() {
        let parameters = Parameters {
            low_us: 600.0,
            ..Parameters::default()
        };
        let error = parameters.validate().unwrap_err().to_string();
        assert_eq!(
            error,
            "`low_us` is 600; less than `high_us`, 500, is expected"
        );
    }
}
