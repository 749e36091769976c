//! Decisions of a simulation's caller, with Linux's TCP.
//!
//! A decision is due in the middle of an ACK: the rules go on with its result, and TCP may then
//! send. The simulation waits, and the rules see the same ACK again with the answer.

use crate::Time;
use crate::cc::Controller;
use crate::cc::tcp::{Event, Sample};
use crate::engine::EventQueue;

use super::super::Simulation;
use super::super::outside::{Decision, External, Pending};

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
