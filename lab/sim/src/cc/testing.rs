//! Common parts of the controllers' unit tests: a flow without a network.

use super::{Ack, Command, Context, Controller, Response, Setup, TIMERS};
use crate::Time;

/// 100 Gbit/s, packets of 1000 bytes, 12 µs, at least 1 Mbit/s. The base window is 150,000
/// bytes, or 150 packets.
pub fn example_setup() -> Setup {
    Setup {
        line_rate_bps: 100e9,
        min_rate_bps: 1e6,
        packet_bytes: 1000,
        base_rtt: Time::from_us(12),
        hops: 2,
        expected_flows: 4,
        seed: 1,
    }
}

/// A controller and its command.
pub struct Flow<C> {
    pub controller: C,
    pub command: Command,
    pub timers: [Time; TIMERS],
    pub now: Time,
}

impl<C: Controller> Flow<C> {
    /// Starts at time zero.
    pub fn start_at_zero(controller: C, setup: &Setup) -> Self {
        let mut flow = Self {
            controller,
            command: Command {
                rate_bps: f64::NAN,
                window_bytes: f64::NAN,
            },
            timers: [Time::MAX; TIMERS],
            now: Time::ZERO,
        };
        flow.call_controller(|controller, context| controller.start_flow(setup, context));
        flow
    }

    /// Calls the controller at `now`.
    pub fn call_controller(&mut self, event: impl FnOnce(&mut C, &mut Context<'_>)) {
        event(
            &mut self.controller,
            &mut Context {
                now: self.now,
                command: &mut self.command,
                timers: &mut self.timers,
            },
        );
    }

    /// Advances the time; timers expire in order, on a tie the lowest number first.
    pub fn advance_time(&mut self, until: Time) {
        while let Some((timer, at)) = (self.timers.iter().copied().enumerate())
            .filter(|(_, at)| *at <= until)
            .min_by_key(|(_, at)| *at)
        {
            self.now = at;
            self.timers[timer] = Time::MAX;
            self.call_controller(|controller, context| controller.on_timer(timer, context));
        }
        self.now = until;
    }

    /// A probe response arrives at `now`.
    pub fn deliver_response(&mut self, rtt: Time) {
        let response = Response {
            rtt,
            sent_at: self.now.saturating_sub(rtt),
            acked_bytes: 1000,
            marked_bytes: 0,
            lost_bytes: 0,
            hops: &[],
        };
        self.call_controller(|controller, context| controller.on_response(&response, context));
    }

    /// The loss of a probe is known at `now`.
    pub fn lose_probe(&mut self) {
        let response = Response {
            rtt: Time::from_us(1_000),
            sent_at: self.now.saturating_sub(Time::from_us(1_000)),
            acked_bytes: 0,
            marked_bytes: 0,
            lost_bytes: 1000,
            hops: &[],
        };
        self.call_controller(|controller, context| controller.on_probe_lost(&response, context));
    }

    /// An ACK arrives at `now`.
    pub fn deliver_ack(&mut self, ack: Ack<'_>) {
        self.call_controller(|controller, context| controller.on_ack(&ack, context));
    }

    /// The commanded rate, Gbit/s.
    pub fn rate_gbps(&self) -> f64 {
        self.command.rate_bps / 1e9
    }
}

/// Asserts that two numbers agree to a billionth.
#[track_caller]
pub fn assert_near(found: f64, expected: f64) {
    assert!(
        (found - expected).abs() <= 1e-9 * expected.abs().max(1e-3),
        "{found} is not {expected}"
    );
}
