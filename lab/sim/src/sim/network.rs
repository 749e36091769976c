//! Ports with computed departures.
//!
//! A port that serves in order and is never paused needs no list of queued packets. A packet that
//! arrives at `t` waits `w = max(0, busy − t)` and leaves at `t + w + tx`, which is the new `busy`.
//! So a packet costs one event per port, and none at the first: see [`arrival_shifts`].

use crate::Time;
use crate::cc::{Controller, Hop};
use crate::engine::EventQueue;
use crate::topology::{Node, Wiring};

use super::state::{Flow, Host, Packet};
use super::{EventKind, Simulation};

/// How long in advance each port's arrivals are handled.
///
/// A packet that now starts to leave its host arrives at the first switch after a known time; no
/// earlier event can change that. If all senders to a port are at least that far away, its arrivals
/// can be handled that much earlier, still in order. For the first switch that is the packet's
/// departure, without an event of its own. The shift of a port is the minimum over its
/// predecessors. A port before it gives its shift plus the delay of its link. A host gives its
/// packet time plus the delay.
pub(super) fn arrival_shifts(
    wiring: &Wiring,
    hosts: &[Host],
    flows: &[Flow],
    paths: &[u32],
) -> Vec<Time> {
    let mut shifts = vec![Time::MAX; wiring.ports.len()];
    // Shifts only shrink and paths have few ports, so the loop ends.
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

/// The advance of each port where flows may take any path: the value that the nearest host allows.
pub(super) fn even_shifts(wiring: &Wiring, hosts: &[Host]) -> Vec<Time> {
    let nearest = hosts.iter().map(|host| host.tx + host.delay).min();
    vec![nearest.unwrap_or(Time::ZERO); wiring.ports.len()]
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// A packet is in flight to its next port, where it arrives at `at`.
    #[inline]
    pub(super) fn forward_packet(&mut self, packet: Packet, place: Option<u32>, at: Time) {
        let flow = &self.transport.flows[packet.flow as usize];
        let port = self.fabric.paths[flow.path as usize + usize::from(packet.hop)];
        let due = at - self.fabric.ports[port as usize].shift;
        if due <= self.now && self.fabric.links.is_none() {
            self.pass_port(port as usize, packet, place, at);
            return;
        }
        let place = self.fabric.packets.store_packet(place, packet);
        self.schedule_event(due, EventKind::Arrive, port, place);
    }

    /// A packet arrives at a port.
    pub(super) fn packet_arrives(&mut self, port: usize, place: u32) {
        let at = self.now + self.fabric.ports[port].shift;
        if self.set.needs.telemetry {
            self.pass_port(port, self.fabric.packets.get(place), Some(place), at);
        } else {
            let packet = self.fabric.packets.remove(place);
            self.pass_port(port, packet, None, at);
        }
    }

    #[inline]
    fn pass_port(&mut self, index: usize, mut packet: Packet, place: Option<u32>, at: Time) {
        if self.fabric.links.is_some() {
            self.queue_packet(index, packet, place);
            return;
        }
        let port = &mut self.fabric.ports[index];
        let waiting = port.queueing_delay(at);
        if !port.admits_packet(waiting, at >= self.set.warmup && at < self.set.end) {
            self.fabric.packets.discard(place);
            self.packet_dropped(packet);
            return;
        }
        packet.marked |= port.marks_packet(waiting);
        let left = port.serve_packet(at, waiting);
        port.accepted += 1;
        if left >= self.set.warmup && left < self.set.end {
            port.measured += 1;
        }
        packet.queued += waiting;
        let next = left + port.delay;
        match place {
            None => self.send_onward(packet, None, next),
            Some(place) => {
                // The queue behind the packet is known only when it leaves.
                let hop = Hop {
                    queue_bytes: 0,
                    sent_bytes: port.accepted * u64::from(self.set.packet_bytes),
                    at: left,
                    rate_bps: port.rate_bps,
                };
                let due = left - port.shift;
                self.fabric.telemetry[place as usize][usize::from(packet.hop) + 1] = hop;
                *self.fabric.packets.get_mut(place) = packet;
                self.schedule_event(due, EventKind::Leave, index as u32, place);
            }
        }
    }

    /// A packet leaves a port.
    pub(super) fn packet_leaves(&mut self, index: usize, place: u32) {
        if self.fabric.links.is_some() {
            self.packet_served(index, place);
            return;
        }
        let port = &self.fabric.ports[index];
        let left = self.now + port.shift;
        let waiting = port.queueing_delay(left);
        let behind = waiting.ps() * u64::from(self.set.packet_bytes) / port.tx.ps();
        let next = left + port.delay;
        let packet = self.fabric.packets.get(place);
        self.fabric.telemetry[place as usize][usize::from(packet.hop) + 1].queue_bytes = behind;
        self.send_onward(packet, Some(place), next);
    }

    #[inline]
    pub(super) fn send_onward(&mut self, mut packet: Packet, place: Option<u32>, at: Time) {
        packet.hop += 1;
        if packet.hop == self.transport.flows[packet.flow as usize].hops {
            self.deliver_packet(packet, place, at);
        } else {
            self.forward_packet(packet, place, at);
        }
    }
}
