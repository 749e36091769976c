//! The receiving side: what is kept, what is answered.
//!
//! Answers travel at strict priority over links that they hardly fill, so they take a constant
//! time and no events of their own on the way.

use crate::Time;
use crate::cc::Controller;
use crate::engine::EventQueue;
use crate::scenario::Recovery;

use super::control::Pending;
use super::state::{ENDLESS, Packet};
use super::{Kind, Simulation};

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// A packet reaches its receiver at `at`, which may be somewhat later than now.
    pub(super) fn deliver(&mut self, packet: Packet, place: Option<u32>, at: Time) {
        if at >= self.end {
            self.meter.late += 1;
            if let Some(place) = place {
                self.packets.remove(place);
            }
            return;
        }
        let index = packet.flow as usize;
        let flow = &mut self.flows[index];
        let answered = at + flow.back;
        let mut gap = None;
        if flow.missing {
            let drops = &self.losses[index].drops;
            let lost = drops
                .iter()
                .take_while(|drop| drop.number < packet.number)
                .filter(|drop| drop.number >= flow.reported)
                .count() as u32;
            flow.reported = flow.reported.max(packet.number);
            flow.lost += lost;
            if lost > 0 && self.recovery == Recovery::SelectiveRepeat {
                gap = Some(packet.number);
            }
        }
        let new = match self.recovery {
            // Only what was dropped is ever sent again.
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
        let in_order = packet.index <= flow.received || self.recovery != Recovery::GoBackN;
        if new {
            flow.received += 1;
            flow.acked += 1;
            flow.marked += u32::from(packet.marked);
        }
        let measured = at >= self.warmup;
        if new && !measured {
            flow.unmeasured += 1;
        }
        let complete = new && flow.received == flow.end && flow.end != ENDLESS;
        let mut notify = false;
        if packet.marked
            && let Some(interval) = self.needs.notifications
            && at >= flow.quiet_until
        {
            flow.quiet_until = at + interval;
            notify = true;
        }
        let received = flow.received;
        let rtt = answered - packet.sent;
        if packet.probe {
            flow.answer_acked = std::mem::take(&mut flow.acked);
            flow.answer_marked = std::mem::take(&mut flow.marked);
            flow.answer_lost = std::mem::take(&mut flow.lost);
            flow.answer_at = answered + self.reaction;
            let due = flow.answer_at;
            if let Some(pending) = &mut self.pending {
                pending.push(Pending::of(packet.flow, flow, rtt, self.packet_bytes, due));
            }
            if self.needs.telemetry
                && let Some(place) = place
            {
                self.answer_telemetry[index] = self.telemetry[place as usize];
            }
            self.schedule(due, Kind::Response, packet.flow, 0);
        }
        self.meter
            .delivered(index, at, new, measured, packet.queued);
        if let Some(argument) = gap {
            self.schedule(answered, Kind::Gap, packet.flow, argument);
        }
        if notify {
            self.meter.notifications += 1;
            self.schedule(answered + self.reaction, Kind::Notify, packet.flow, 0);
        }
        if complete {
            self.schedule(at, Kind::Complete, packet.flow, 0);
        }
        if self.needs.acks && in_order {
            let answer = Packet {
                sent: rtt,
                index: received,
                ..packet
            };
            let place = match place {
                Some(place) => {
                    *self.packets.get_mut(place) = answer;
                    place
                }
                None => self.packets.insert(answer),
            };
            self.schedule(answered, Kind::Ack, packet.flow, place);
        } else if let Some(place) = place {
            self.packets.remove(place);
        }
    }
}
