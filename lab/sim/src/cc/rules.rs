//! The kernel's rules, with the decisions of a simulation's caller in place of a model's.
//!
//! The rules first see an ACK without an answer. If they need one, nothing has changed, and they
//! see the same ACK again with the answer.

use std::cell::Cell;

use thalweg_rate::kernel::{Decide, Rate};
use thalweg_rate::{Features, Flow, Measurement, ONE_Q15};

use super::tcp::{Event, Socket};
use super::thalweg_rl::Options;

/// Largest step of a decision: `u` of 1 multiplies the rate by 1.2.
const STEP: f64 = 0.2;

/// A flow under the rules.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    options: Options,
    features: Features,
    ca: Rate,
}

/// The caller's action, Q15, if there is one; otherwise notes that one is needed.
#[derive(Debug)]
struct Answer<'a> {
    features: &'a Features,
    given: Option<i16>,
    measured: Cell<Option<Measurement>>,
}

impl Decide for Answer<'_> {
    fn features(&self) -> &Features {
        self.features
    }

    fn decide_action(&self, _: &mut Flow, measurement: &Measurement) -> i16 {
        self.measured.set(Some(*measurement));
        self.given.unwrap_or(0)
    }
}

/// The action, Q15, that multiplies a rate by `factor`, or comes closest.
pub(crate) fn action_for_factor(factor: f64) -> i16 {
    let u = if factor >= 1.0 {
        (factor - 1.0) / STEP
    } else {
        (1.0 - 1.0 / factor) / STEP
    };
    let one = f64::from(ONE_Q15);
    (u * 32768.0).round().clamp(-one, one) as i16
}

impl Rules {
    /// The rules for a signal with the target and offset of `features`.
    pub fn new(features: Features) -> Self {
        Self {
            options: Options::default(),
            features,
            ca: Rate::default(),
        }
    }

    /// An event of TCP. Without a decision that it needs, only `socket.asks` changes.
    pub fn on_tcp(&mut self, given: Option<i16>, event: &Event, socket: &mut Socket) {
        let answer = Answer {
            features: &self.features,
            given,
            measured: Cell::new(None),
        };
        let (mut ca, mut after) = (self.ca.clone(), socket.clone());
        (self.options).on_tcp(&mut ca, &answer, event, &mut after);
        socket.asks = answer.measured.get().filter(|_| given.is_none());
        if socket.asks.is_none() {
            self.ca = ca;
            after.asks = None;
            *socket = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Actions go to Python as factors, in single precision, and come back.
    #[test]
    fn factors_are_actions() {
        for one in [-32767, -20000, -7, -1, 0, 1, 12345, 32767] {
            let u = f64::from(one) / 32768.0;
            let factor = if u >= 0.0 {
                1.0 + STEP * u
            } else {
                1.0 / (1.0 - STEP * u)
            };
            assert_eq!(action_for_factor(f64::from(factor as f32)), one);
        }
        assert_eq!(
            (action_for_factor(7.0), action_for_factor(0.1)),
            (32767, -32767)
        );
    }
}
