//! Ports with explicit queues. Where pause frames can stop a port, its departures cannot be
//! computed.
//!
//! Pause frames follow IEEE 802.1Qbb with one class of data. A switch counts the queued bytes from
//! each link that leads to it. It pauses the link's sender above the XOFF threshold, until the
//! count falls to the XON threshold. A frame takes the link's delay and is never queued. A paused
//! sender finishes the packet that it is sending.

use std::collections::VecDeque;

use crate::Time;
use crate::cc::{Controller, Hop};
use crate::engine::EventQueue;
use crate::scenario::Pause;

use super::state::Packet;
use super::{EventKind, Simulation};

/// A sender on one link: an output port or a host.
#[derive(Debug, Clone, Default)]
pub(super) struct Sender {
    /// Queued packets; for a host, flows with a burst.
    pub line: VecDeque<u32>,
    pub sending: bool,
    pub paused: bool,
    /// Packets from this link that are queued in the switch behind it.
    pub behind: u64,
    /// Whether that switch has paused it.
    pub asked: bool,
}

/// All links: ports by number, then hosts.
#[derive(Debug)]
pub(super) struct Links {
    pub senders: Vec<Sender>,
    pub pause: Option<Pause>,
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// A flow with a burst joins its host's queue.
    pub(super) fn join_host_queue(&mut self, flow: u32) {
        let host = self.transport.flows[flow as usize].host;
        let link = self.fabric.ports.len() + host as usize;
        if let Some(links) = &mut self.fabric.links {
            links.senders[link].line.push_back(flow);
        }
        self.serve_link(link);
    }

    /// The first in a link's queue, if the link may start to send it.
    fn next_in_line(&mut self, link: usize) -> Option<u32> {
        let sender = &mut self.fabric.links.as_mut()?.senders[link];
        if sender.sending || sender.paused {
            return None;
        }
        let first = *sender.line.front()?;
        sender.sending = true;
        Some(first)
    }

    fn leave_line(&mut self, link: usize) {
        if let Some(links) = &mut self.fabric.links {
            links.senders[link].line.pop_front();
        }
    }

    /// Starts to send on a link if it can.
    fn serve_link(&mut self, link: usize) {
        let Some(first) = self.next_in_line(link) else {
            return;
        };
        match link.checked_sub(self.fabric.ports.len()) {
            None => {
                let tx = self.fabric.ports[link].tx;
                self.leave_line(link);
                let packet = self.fabric.packets.get_mut(first);
                packet.queued += self.now - packet.arrived;
                self.fabric.ports[link].busy = self.now + tx;
                self.schedule_event(self.now + tx, EventKind::Leave, link as u32, first);
            }
            Some(host) => {
                let flow = &mut self.transport.flows[first as usize];
                if flow.burst_left == flow.paced_packets {
                    flow.paced_from = self.now;
                }
                let left = self.now + self.transport.hosts[host].tx;
                self.schedule_event(left, EventKind::Free, link as u32, 0);
                self.packet_departs(first as usize);
                if self.transport.flows[first as usize].burst_left == 0 {
                    self.leave_line(link);
                }
            }
        }
    }

    /// A host has sent a packet.
    pub(super) fn host_sent(&mut self, link: usize) {
        if let Some(links) = &mut self.fabric.links {
            links.senders[link].sending = false;
        }
        self.serve_link(link);
    }

    /// A packet arrives at a port.
    pub(super) fn queue_packet(&mut self, index: usize, mut packet: Packet, place: Option<u32>) {
        let now = self.now;
        let came_by = self.came_by(&packet);
        let Some(links) = &mut self.fabric.links else {
            return;
        };
        let port = &mut self.fabric.ports[index];
        let waiting = Time::from_ps(
            links.senders[index].line.len() as u64 * port.tx.ps()
                + port.busy.saturating_sub(now).ps(),
        );
        if !port.admits_packet(waiting, now >= self.set.warmup && now < self.set.end) {
            self.fabric.packets.discard(place);
            self.packet_dropped(packet);
            return;
        }
        packet.marked |= port.marks_packet(waiting);
        packet.arrived = now;
        let place = self.fabric.packets.store_packet(place, packet);
        links.senders[index].line.push_back(place);
        let sender = &mut links.senders[came_by];
        sender.behind += 1;
        if let Some(pause) = links.pause
            && !sender.asked
            && sender.behind * u64::from(self.set.packet_bytes) > pause.stop_bytes
        {
            sender.asked = true;
            self.send_pause_frame(came_by, 1);
        }
        self.serve_link(index);
    }

    /// The link over which a packet reached the switch where it is.
    fn came_by(&self, packet: &Packet) -> usize {
        let flow = &self.transport.flows[packet.flow as usize];
        match packet.hop {
            0 => self.fabric.ports.len() + flow.host as usize,
            hop => self.fabric.paths[flow.path as usize + usize::from(hop) - 1] as usize,
        }
    }

    /// Sends an XOFF or XON frame back over a link.
    fn send_pause_frame(&mut self, link: usize, stop: u32) {
        let delay = match link.checked_sub(self.fabric.ports.len()) {
            None => self.fabric.ports[link].delay,
            Some(host) => self.transport.hosts[host].delay,
        };
        self.meter.pauses += u64::from(stop);
        self.schedule_event(self.now + delay, EventKind::Pause, link as u32, stop);
    }

    /// A pause frame arrives.
    pub(super) fn receive_pause_frame(&mut self, link: usize, stop: bool) {
        if let Some(links) = &mut self.fabric.links {
            links.senders[link].paused = stop;
        }
        self.serve_link(link);
    }

    /// A packet has left a port with an explicit queue.
    pub(super) fn packet_served(&mut self, index: usize, place: u32) {
        let packet = self.fabric.packets.get(place);
        let came_by = self.came_by(&packet);
        let Some(links) = &mut self.fabric.links else {
            return;
        };
        links.senders[index].sending = false;
        let waiting = links.senders[index].line.len() as u64;
        let sender = &mut links.senders[came_by];
        sender.behind -= 1;
        if let Some(pause) = links.pause
            && sender.asked
            && sender.behind * u64::from(self.set.packet_bytes) <= pause.go_bytes
        {
            sender.asked = false;
            self.send_pause_frame(came_by, 0);
        }
        let bytes = u64::from(self.set.packet_bytes);
        let port = &mut self.fabric.ports[index];
        port.accepted += 1;
        if self.now >= self.set.warmup {
            port.measured += 1;
        }
        if self.set.needs.telemetry {
            self.fabric.telemetry[place as usize][usize::from(packet.hop) + 1] = Hop {
                queue_bytes: waiting * bytes,
                sent_bytes: port.accepted * bytes,
                at: self.now,
                rate_bps: port.rate_bps,
            };
        }
        let next = self.now + port.delay;
        self.send_onward(packet, Some(place), next);
        self.serve_link(index);
    }
}
