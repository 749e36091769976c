//! The receiver: packets become runs, runs become ACKs.

use crate::Time;
use crate::cc::Controller;
use crate::engine::EventQueue;

use super::super::state::{ENDLESS, Packet};
use super::super::{EventKind, Simulation};
use super::{Acknowledgement, Receiver, Run};

/// Largest run: 64 KiB of packets.
const RUN_BYTES: u32 = 65_535;
/// ACKs that are sent at once at the start (`TCP_MAX_QUICKACKS`).
const QUICK_ACKS: u32 = 16;

impl Receiver {
    /// Whether receive offload merges a packet with the run.
    fn is_continued(&self, packet: &Packet, at: Time, gap: Time, most: u32) -> bool {
        let run = &self.run;
        run.packets < most
            && packet.index == run.index + 1
            && packet.marked == run.is_marked
            && at <= run.at + gap
    }

    /// The first segment that is missing.
    fn first_missing(&self) -> u32 {
        self.missing.first().copied().unwrap_or(self.end)
    }
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// A packet reaches its receiver at `at`, which may be somewhat later than now.
    pub(in super::super) fn tcp_deliver(&mut self, packet: Packet, place: Option<u32>, at: Time) {
        self.fabric.packets.discard(place);
        let index = packet.flow as usize;
        self.tcp_settle(index, at);
        let measured = at >= self.set.warmup;
        let flow = &mut self.transport.flows[index];
        flow.unmeasured += u32::from(!measured);
        flow.received += 1;
        let complete = flow.received == flow.end && flow.end != ENDLESS;
        let own_rtt = at + flow.back - packet.sent;
        // Packets that were sent before this one and have not arrived are lost.
        let mut lost = Vec::new();
        if flow.missing {
            let drops = &self.transport.losses[index].drops;
            let known = flow.reported;
            let before = drops.iter().take_while(|drop| drop.number < packet.number);
            lost.extend(
                before
                    .filter(|drop| drop.number >= known)
                    .map(|drop| drop.index),
            );
            flow.reported = flow.reported.max(packet.number);
        }
        (self.meter).packet_delivered(index, at, true, measured, packet.queued);
        if complete {
            self.schedule_event(at, EventKind::Complete, packet.flow, 0);
        }
        let most = RUN_BYTES / self.set.packet_bytes;
        let Some(hosts) = &mut self.linux else { return };
        let gro = hosts.options.gro;
        let receiver = &mut hosts.connections[index].receiver;
        let merged = receiver.run.packets > 0 && receiver.is_continued(&packet, at, gro, most);
        if receiver.run.packets > 0 && !merged {
            self.tcp_receive(index, at);
        }
        let receiver = &mut self.connection(index).receiver;
        receiver.missing.extend(lost);
        receiver.missing.remove(&packet.index);
        receiver.end = receiver.end.max(packet.index + 1);
        receiver.run = Run {
            packets: receiver.run.packets + 1,
            is_marked: packet.marked,
            number: packet.number,
            index: packet.index,
            at,
            own_rtt,
        };
        // The last segment of a burst bears PSH, which ends a run.
        if packet.push || gro == Time::ZERO {
            self.tcp_receive(index, at);
        } else {
            let flush_at = at + gro;
            self.connection(index).receiver.flush_at = flush_at;
            self.schedule_event(flush_at, EventKind::Settle, packet.flow, 0);
        }
    }

    /// Handles what was due until `at`: the end of a run, the delayed ACK.
    pub(in super::super) fn tcp_settle(&mut self, index: usize, at: Time) {
        loop {
            let receiver = &mut self.connection(index).receiver;
            let (flush_at, delayed_at) = (receiver.flush_at, receiver.delayed_at);
            if flush_at.min(delayed_at) > at {
                return;
            }
            if flush_at <= delayed_at {
                self.tcp_receive(index, flush_at);
            } else {
                self.send_ack(index, delayed_at, true);
            }
        }
    }

    /// TCP receives a run: `tcp_rcv_established`, `__tcp_ack_snd_check`.
    fn tcp_receive(&mut self, index: usize, at: Time) {
        let delayed_ack = match &self.linux {
            Some(hosts) => hosts.options.delayed_ack,
            None => return,
        };
        let receiver = &mut self.connection(index).receiver;
        let run = std::mem::take(&mut receiver.run);
        receiver.flush_at = Time::MAX;
        if run.packets == 0 {
            return;
        }
        if receiver.newest.packets == 0 {
            receiver.quick = QUICK_ACKS;
        }
        // `dctcp_ece_ack_update`: an ACK tells of marked segments or of others, not of both.
        let turned = receiver.ce_state != run.is_marked;
        if turned && receiver.pending > 0 {
            self.send_ack(index, at, false);
        }
        let receiver = &mut self.connection(index).receiver;
        receiver.ce_state = run.is_marked;
        receiver.newest = run;
        receiver.pending += run.packets;
        receiver.marked += if run.is_marked { run.packets } else { 0 };
        let now = turned
            || receiver.pending > 1
            || receiver.quick > 0
            || !receiver.missing.is_empty()
            || delayed_ack == Time::ZERO;
        if now {
            self.send_ack(index, at, false);
        } else {
            let due = at + delayed_ack;
            receiver.delayed_at = due;
            self.schedule_event(due, EventKind::Settle, index as u32, 0);
        }
    }

    fn send_ack(&mut self, index: usize, at: Time, is_delayed: bool) {
        let connection = self.connection(index);
        let receiver = &mut connection.receiver;
        receiver.delayed_at = Time::MAX;
        receiver.quick = receiver.quick.saturating_sub(1);
        let ack = Acknowledgement {
            number: receiver.newest.number,
            una: receiver.first_missing(),
            packets: std::mem::take(&mut receiver.pending),
            marked: std::mem::take(&mut receiver.marked),
            own_rtt: receiver.newest.own_rtt,
            is_delayed,
        };
        connection.acks.push_back(ack);
        let back = self.transport.flows[index].back;
        self.schedule_event(at + back, EventKind::TcpAck, index as u32, 0);
    }
}
