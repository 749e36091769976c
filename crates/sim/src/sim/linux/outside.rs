//! The kernel's rules, with the decisions of a simulation's caller.
//!
//! A decision is due in the middle of an ACK: the rules go on with its result, and TCP may then
//! send. So the rules first see the ACK without an answer. If they need one, nothing has changed,
//! the simulation waits, and they see the same ACK again with the answer.

use std::cell::Cell;

use thalweg_rate::kernel::{Decide, Rate};
use thalweg_rate::{Features, Flow, Measurement, ONE_Q15};

use crate::Time;
use crate::cc::Controller;
use crate::cc::tcp::{Event, Sample, Socket};
use crate::cc::thalweg_rl::Options;
use crate::engine::EventQueue;

use super::super::Simulation;
use super::super::outside::{Decision, External, Pending};

/// Largest step of a decision: `u` of 1 multiplies the rate by 1.2.
const STEP: f64 = 0.2;

/// A flow under the rules.
#[derive(Debug, Clone)]
pub(in super::super) struct Rules {
    options: Options,
    features: Features,
    ca: Rate,
}

/// The caller's answer, if there is one; otherwise notes that one is needed.
#[derive(Debug)]
struct Answer<'a> {
    features: &'a Features,
    given: Option<Decision>,
    measured: Cell<Option<Measurement>>,
}

impl Decide for Answer<'_> {
    fn features(&self) -> &Features {
        self.features
    }

    fn act(&self, _: &mut Flow, measurement: &Measurement) -> i16 {
        self.measured.set(Some(*measurement));
        match self.given {
            None | Some(Decision::Keep) => 0,
            Some(Decision::Multiply(factor)) => action(factor),
            Some(Decision::Rate(rate_bps)) => action(rate_bps / 8.0 / measurement.rate as f64),
        }
    }
}

/// The action, Q15, that multiplies a rate by `factor`, or comes closest.
fn action(factor: f64) -> i16 {
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
    pub fn on_tcp(&mut self, given: Option<Decision>, event: &Event, socket: &mut Socket) {
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

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// Whether the controller cannot go on with this ACK before its caller decides.
    pub(super) fn tcp_waits(&mut self, index: usize, sample: Sample) -> bool {
        let Some(hosts) = &mut self.linux else {
            return false;
        };
        let waits = hosts.connections[index].socket.asks.is_some();
        if waits {
            hosts.waiting = Some((index, sample));
        }
        waits
    }
}

impl Simulation<External> {
    /// The decision that the last event needs.
    #[inline]
    pub(in super::super) fn tcp_pending(&mut self) -> Option<Pending> {
        let (index, _) = self.linux.as_ref()?.waiting?;
        let connection = self.connection(index);
        let socket = &connection.socket;
        let asked = socket.asks?;
        let counts = [socket.delivered, socket.delivered_ce, socket.lost];
        let told = std::mem::replace(&mut connection.told, counts);
        let mut bytes = [0; 3];
        for (bytes, (now, before)) in bytes.iter_mut().zip(counts.into_iter().zip(told)) {
            *bytes = u64::from(now - before) * u64::from(self.set.packet_bytes);
        }
        let rtt = Time::from_ns(asked.rtt_ns);
        Some(Pending {
            flow: index as u32,
            at: self.now,
            probe_lost: false,
            rtt,
            base_rtt: Some(Time::from_ns(asked.base_rtt_ns)),
            sent_at: self.now.saturating_sub(rtt),
            rate_bps: asked.rate as f64 * 8.0,
            acked_bytes: bytes[0],
            marked_bytes: bytes[1],
            lost_bytes: bytes[2],
        })
    }

    /// Goes on with the ACK for which a decision was needed. Without one the rate stays.
    pub(in super::super) fn tcp_go_on(&mut self) {
        let waiting = self.linux.as_mut().and_then(|hosts| hosts.waiting.take());
        let Some((index, sample)) = waiting else {
            return;
        };
        let decision = &mut self.control.controllers[index].decision;
        decision.get_or_insert(Decision::Keep);
        self.tell(index, Event::Ack(sample));
        self.tcp_push(index);
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
            assert_eq!(action(f64::from(factor as f32)), one);
        }
        assert_eq!((action(7.0), action(0.1)), (32767, -32767));
    }
}
