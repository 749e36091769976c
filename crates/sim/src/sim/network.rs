//! Ports whose departures are computed.
//!
//! A port that serves in order and is never stopped needs no list of what waits: a packet that
//! arrives at `t` waits `w = max(0, busy − t)`, leaves at `t + w + tx`, and that is the new
//! `busy`. So a packet costs one event a port, and none at the first: see [`shifts`].

use crate::Time;
use crate::cc::{Controller, Hop};
use crate::engine::EventQueue;
use crate::topology::{Node, Wiring};

use super::state::{Flow, Host, Packet};
use super::{Kind, Simulation};

/// How long before they happen each port's arrivals are dealt with.
///
/// A packet that begins to leave its host now will arrive at the first switch after a known
/// time; nothing that happens before then can change that. If all that feeds a port is at least
/// that far away, arrivals are dealt with, in the right order, that much earlier: for the first
/// switch at the moment of the packet's departure, without an event of its own. The shift of a
/// port is the least of (shift of a port before it + delay of the link from there), or of a
/// host's packet time and delay.
pub(super) fn shifts(wiring: &Wiring, hosts: &[Host], flows: &[Flow], paths: &[u32]) -> Vec<Time> {
    let mut shifts = vec![Time::MAX; wiring.ports.len()];
    // Shifts only shrink and ways have few ports: this ends.
    loop {
        let mut changed = false;
        for flow in flows {
            let first = flow.path as usize;
            let host = &hosts[flow.host as usize];
            let mut shift = host.tx + host.delay;
            for port in &paths[first..first + usize::from(flow.hops)] {
                let known = &mut shifts[*port as usize];
                if shift < *known {
                    *known = shift;
                    changed = true;
                }
                shift = *known + wiring.ports[*port as usize].link.delay;
                debug_assert!(!matches!(
                    wiring.ports[*port as usize].to,
                    Node::Host(host) if host == flow.host
                ));
            }
        }
        if !changed {
            break;
        }
    }
    for shift in &mut shifts {
        if *shift == Time::MAX {
            *shift = Time::ZERO;
        }
    }
    shifts
}

/// The same where flows may take any way: what the nearest host allows, for every port.
pub(super) fn even_shifts(wiring: &Wiring, hosts: &[Host]) -> Vec<Time> {
    let nearest = hosts.iter().map(|host| host.tx + host.delay).min();
    vec![nearest.unwrap_or(Time::ZERO); wiring.ports.len()]
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// A packet is on its way to its next port, where it arrives at `at`.
    #[inline]
    pub(super) fn forward(&mut self, packet: Packet, place: Option<u32>, at: Time) {
        let flow = &self.transport.flows[packet.flow as usize];
        let port = self.fabric.paths[flow.path as usize + usize::from(packet.hop)];
        let due = at - self.fabric.ports[port as usize].shift;
        if due <= self.now && self.fabric.links.is_none() {
            self.pass(port as usize, packet, place, at);
            return;
        }
        let place = self.fabric.packets.keep(place, packet);
        self.schedule(due, Kind::Arrive, port, place);
    }

    /// A packet arrives at a port.
    pub(super) fn arrive(&mut self, port: usize, place: u32) {
        let at = self.now + self.fabric.ports[port].shift;
        if self.set.needs.telemetry {
            self.pass(port, self.fabric.packets.get(place), Some(place), at);
        } else {
            let packet = self.fabric.packets.remove(place);
            self.pass(port, packet, None, at);
        }
    }

    #[inline]
    fn pass(&mut self, index: usize, mut packet: Packet, place: Option<u32>, at: Time) {
        if self.fabric.links.is_some() {
            self.queue(index, packet, place);
            return;
        }
        let port = &mut self.fabric.ports[index];
        let waiting = port.busy.saturating_sub(at);
        if !port.admits(waiting, at >= self.set.warmup && at < self.set.end) {
            self.fabric.packets.discard(place);
            self.dropped(packet);
            return;
        }
        packet.marked |= port.marks(waiting);
        let left = at + waiting + port.tx;
        port.busy = left;
        port.accepted += 1;
        if left >= self.set.warmup && left < self.set.end {
            port.measured += 1;
        }
        packet.queued += waiting;
        let next = left + port.delay;
        match place {
            None => self.onward(packet, None, next),
            Some(place) => {
                // What is behind the packet when it leaves is known when that time has come.
                let hop = Hop {
                    queue_bytes: 0,
                    sent_bytes: port.accepted * u64::from(self.set.packet_bytes),
                    at: left,
                    rate_bps: port.rate_bps,
                };
                let due = left - port.shift;
                self.fabric.telemetry[place as usize][usize::from(packet.hop) + 1] = hop;
                *self.fabric.packets.get_mut(place) = packet;
                self.schedule(due, Kind::Leave, index as u32, place);
            }
        }
    }

    /// A packet leaves a port.
    pub(super) fn leave(&mut self, index: usize, place: u32) {
        if self.fabric.links.is_some() {
            self.served(index, place);
            return;
        }
        let port = &self.fabric.ports[index];
        let left = self.now + port.shift;
        let waiting = port.busy.saturating_sub(left);
        let behind = waiting.ps() * u64::from(self.set.packet_bytes) / port.tx.ps();
        let next = left + port.delay;
        let packet = self.fabric.packets.get(place);
        self.fabric.telemetry[place as usize][usize::from(packet.hop) + 1].queue_bytes = behind;
        self.onward(packet, Some(place), next);
    }

    #[inline]
    pub(super) fn onward(&mut self, mut packet: Packet, place: Option<u32>, at: Time) {
        packet.hop += 1;
        if packet.hop == self.transport.flows[packet.flow as usize].hops {
            self.deliver(packet, place, at);
        } else {
            self.forward(packet, place, at);
        }
    }
}
