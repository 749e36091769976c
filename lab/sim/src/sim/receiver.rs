//! The receiving side: which packets are kept, and which responses are sent.
//!
//! Responses have strict priority over data and hardly fill the links. So they take a constant time
//! and need no events on their path.

use crate::Time;
use crate::cc::Controller;
use crate::engine::EventQueue;
use crate::scenario::Recovery;

use super::outside::Pending;
use super::state::{ENDLESS, Packet, Probe};
use super::{EventKind, Simulation};

/// The receiver's handling of a packet.
struct Kept {
    /// Whether it is new, and is kept.
    new: bool,
    /// Whether an ACK follows; not for packets behind a gap (go-back-N).
    in_order: bool,
    /// Report of a gap, as [`Simulation::receive_gap_report`] takes it.
    gap: Option<u32>,
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// A packet reaches its receiver at `at`, which may be somewhat later than now.
    pub(super) fn deliver_packet(&mut self, packet: Packet, place: Option<u32>, at: Time) {
        if at >= self.set.end {
            self.meter.late += 1;
            self.fabric.packets.discard(place);
            return;
        }
        if self.linux.is_some() {
            self.tcp_deliver(packet, place, at);
            return;
        }
        let index = packet.flow as usize;
        let Kept { new, in_order, gap } = self.count_packet(&packet);
        let measured = at >= self.set.warmup;
        let flow = &mut self.transport.flows[index];
        if new && !measured {
            flow.unmeasured += 1;
        }
        let complete = new && flow.received == flow.end && flow.end != ENDLESS;
        let mut notify = false;
        if packet.marked
            && let Some(interval) = self.set.needs.notifications
            && at >= flow.quiet_until
        {
            flow.quiet_until = at + interval;
            notify = true;
        }
        let received = flow.received;
        let answered = at + flow.back;
        let rtt = answered - packet.sent;
        if packet.probe {
            self.answer_probe(&packet, place, answered);
        }
        self.meter
            .packet_delivered(index, at, new, measured, packet.queued);
        if let Some(argument) = gap {
            self.schedule_event(answered, EventKind::Gap, packet.flow, argument);
        }
        if notify {
            self.meter.notifications += 1;
            let due = answered + self.set.reaction;
            self.schedule_event(due, EventKind::Notify, packet.flow, 0);
        }
        if complete {
            self.schedule_event(at, EventKind::Complete, packet.flow, 0);
        }
        if self.set.needs.acks && in_order {
            let acknowledgement = Packet {
                sent: rtt,
                index: received,
                ..packet
            };
            let place = self.fabric.packets.store_packet(place, acknowledgement);
            self.schedule_event(answered, EventKind::Ack, packet.flow, place);
        } else {
            self.fabric.packets.discard(place);
        }
    }

    /// Counts a packet and the gap before it.
    #[inline(always)]
    fn count_packet(&mut self, packet: &Packet) -> Kept {
        let index = packet.flow as usize;
        let recovery = self.set.recovery;
        let flow = &mut self.transport.flows[index];
        let mut gap = None;
        if flow.missing && self.set.forgets_drops(flow) {
            let drops = &mut self.transport.losses[index].drops;
            while let Some(drop) = drops.front()
                && drop.number < packet.number
            {
                // The sender's time-out was earlier otherwise.
                flow.lost += u32::from(drop.timeout > self.now);
                drops.pop_front();
            }
            let dropped = flow.probe == Probe::Dropped;
            if dropped && (flow.reported..packet.number).contains(&flow.probe_number) {
                flow.reported = packet.number;
                gap = Some(packet.number);
            }
            flow.missing = !drops.is_empty() || (dropped && flow.probe_number > packet.number);
        } else if flow.missing {
            let drops = &self.transport.losses[index].drops;
            let before = |number| drops.partition_point(|drop| drop.number < number);
            let lost = before(packet.number).saturating_sub(before(flow.reported)) as u32;
            flow.reported = flow.reported.max(packet.number);
            flow.lost += lost;
            if lost > 0 && recovery == Recovery::SelectiveRepeat {
                gap = Some(packet.number);
            }
        }
        let new = match recovery {
            // Only dropped packets are ever retransmitted.
            Recovery::SelectiveRepeat => true,
            Recovery::GoBackN => {
                if packet.index > flow.received && !flow.asked {
                    flow.asked = true;
                    gap = Some(flow.received);
                }
                let new = packet.index == flow.received;
                flow.asked &= !new;
                new
            }
        };
        let in_order = packet.index <= flow.received || recovery != Recovery::GoBackN;
        if new {
            flow.received += 1;
            flow.acked += 1;
            flow.marked += u32::from(packet.marked);
        }
        Kept { new, in_order, gap }
    }

    /// Responds to a probe; the response is back at `answered`.
    #[inline(always)]
    fn answer_probe(&mut self, packet: &Packet, place: Option<u32>, answered: Time) {
        let index = packet.flow as usize;
        let flow = &mut self.transport.flows[index];
        flow.answer_acked = std::mem::take(&mut flow.acked);
        flow.answer_marked = std::mem::take(&mut flow.marked);
        flow.answer_lost = std::mem::take(&mut flow.lost);
        let due = answered + self.set.reaction;
        flow.answer_at = due;
        if let Some(pending) = &mut self.control.pending {
            let rtt = answered - packet.sent;
            pending.push(Pending::for_flow(
                packet.flow,
                flow,
                rtt,
                self.set.packet_bytes,
                due,
            ));
        }
        if self.set.needs.telemetry
            && let Some(place) = place
        {
            self.transport.answer_telemetry[index] = self.fabric.telemetry[place as usize];
        }
        self.schedule_event(due, EventKind::Response, packet.flow, 0);
    }
}
