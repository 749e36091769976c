//! The sending side: pacing, windows, turns, and losses.
//!
//! A host serves its flows in turn: a flow that may send joins the end of the queue, and sends a
//! burst when its turn comes. The queue is served in order, so the time of the turn is known when
//! the flow joins.

use crate::Time;
use crate::cc::{Controller, Hop, Loss};
use crate::engine::EventQueue;
use crate::scenario::Recovery;

use super::outside::Pending;
use super::state::{Drop, Flow, Packet, Probe};
use super::{EventKind, Simulation};

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// A flow starts, or gets more to send.
    pub(super) fn start_sending(&mut self, flow: usize) {
        self.meter.flow_started(flow, self.now);
        if self.transport.flows[flow].started {
            let more = self.plan.flows[flow].packets.unwrap_or(0);
            self.transport.flows[flow].end += more;
            self.reschedule_turn(flow);
        } else {
            self.transport.flows[flow].started = true;
            self.start_controller(flow);
        }
    }

    /// How many packets the flow may send now.
    fn packets_allowed(&self, flow: &Flow) -> u32 {
        let data = flow.packets_ready();
        if flow.command.window_bytes == f64::INFINITY || !self.set.needs.acks {
            return data;
        }
        let underway = match self.set.recovery {
            Recovery::GoBackN => flow.next - flow.unacknowledged,
            Recovery::SelectiveRepeat => flow.underway,
        };
        // A window of less than one packet means one packet, paced by the rate.
        let window = ((flow.command.window_bytes / f64::from(self.set.packet_bytes)) as u32).max(1);
        data.min(window.saturating_sub(underway))
    }

    /// Schedules the flow's turn for when it may send.
    #[inline]
    pub(super) fn reschedule_turn(&mut self, index: usize) {
        if self.linux.is_some() {
            self.tcp_push(index);
            return;
        }
        let flow = &self.transport.flows[index];
        if flow.burst_left > 0 || !flow.started || self.packets_allowed(flow) == 0 {
            return;
        }
        let at = flow.next_departure().max(self.now);
        // The probe response comes first, and this is called again then.
        if flow.answer_at > self.now && flow.answer_at <= at {
            return;
        }
        if at < flow.turn_at {
            self.transport.flows[index].turn_at = at;
            self.schedule_event(at, EventKind::Turn, index as u32, 0);
        }
    }

    /// The flow joins its host's queue, if it still may send.
    pub(super) fn take_turn(&mut self, index: usize) {
        let now = self.now;
        let flow = &mut self.transport.flows[index];
        if flow.turn_at != now {
            return;
        }
        flow.turn_at = Time::MAX;
        if now < flow.next_departure() {
            self.reschedule_turn(index);
            return;
        }
        let flow = &self.transport.flows[index];
        let packets = self.packets_allowed(flow).min(self.set.burst);
        if packets == 0 {
            return;
        }
        let host = &mut self.transport.hosts[flow.host as usize];
        let begin = host.busy.max(now);
        host.busy = begin + Time::from_ps(u64::from(packets) * host.tx.ps());
        let listed = self.fabric.links.is_some();
        let flow = &mut self.transport.flows[index];
        flow.paced_from = begin;
        flow.paced_packets = packets;
        flow.burst_left = packets;
        if listed {
            // The time of its turn depends on pauses.
            self.join_host_queue(index as u32);
        } else if begin == now {
            self.packet_departs(index);
        } else {
            self.schedule_event(begin, EventKind::Depart, index as u32, 0);
        }
    }

    /// The next packet of a burst starts to leave.
    pub(super) fn packet_departs(&mut self, index: usize) {
        let now = self.now;
        let flow = &mut self.transport.flows[index];
        if flow.packets_ready() == 0 {
            // All data of the burst has been acknowledged meanwhile.
            flow.burst_left = 0;
            return;
        }
        let data = if flow.repairs > 0 {
            flow.repairs -= 1;
            let repair = self.transport.losses[index].repairs.pop_front();
            repair.unwrap_or_default()
        } else {
            flow.next += 1;
            flow.next - 1
        };
        let number = flow.number;
        flow.number += 1;
        if self.set.needs.acks {
            flow.underway += 1;
        }
        // Less data may be left than at the start of the burst, because ACKs came meanwhile.
        flow.burst_left = (flow.burst_left - 1).min(flow.packets_ready());
        let more = flow.burst_left > 0;
        let probe = self.set.needs.probes && flow.probe == Probe::Idle;
        if probe {
            flow.probe = Probe::Underway;
            flow.probe_sent = now;
        }
        let packet = Packet {
            sent: now,
            queued: Time::ZERO,
            arrived: Time::ZERO,
            flow: index as u32,
            index: data,
            number,
            acked: 0,
            hop: 0,
            marked: false,
            probe,
            push: false,
        };
        let packet_bytes = u64::from(self.set.packet_bytes);
        let host = &mut self.transport.hosts[flow.host as usize];
        host.sent_bytes += packet_bytes;
        let tx = host.tx;
        let left = now + tx;
        let arrival = left + host.delay;
        self.meter.sent += 1;
        if self.set.needs.telemetry {
            let own = Hop {
                queue_bytes: host.busy.saturating_sub(left).ps() * packet_bytes / tx.ps(),
                sent_bytes: host.sent_bytes,
                at: left,
                rate_bps: host.rate_bps,
            };
            let place = self.fabric.insert_with_telemetry(packet, own);
            self.forward_packet(packet, Some(place), arrival);
        } else {
            self.forward_packet(packet, None, arrival);
        }
        if more && self.fabric.links.is_some() {
            // The host continues the burst.
        } else if more {
            self.schedule_event(left, EventKind::Depart, index as u32, 0);
        } else {
            self.reschedule_turn(index);
        }
        if self.set.needs.sent {
            if self.set.reaction == Time::ZERO {
                self.report_sent(index);
            } else {
                self.schedule_event(now + self.set.reaction, EventKind::Sent, index as u32, 0);
            }
        }
    }

    /// A full queue dropped a packet.
    pub(super) fn packet_dropped(&mut self, packet: Packet) {
        self.meter.dropped += 1;
        let index = packet.flow as usize;
        let flow = &mut self.transport.flows[index];
        if packet.probe {
            flow.probe = Probe::Dropped;
            flow.probe_number = packet.number;
        }
        let timeout = (packet.sent + self.set.timeout).max(self.now);
        let forgotten = self.set.forgets_drops(flow);
        if packet.probe || !forgotten {
            self.events.push(crate::engine::Event {
                time: timeout,
                what: ((EventKind::Timeout as u32) << super::SUBJECT_BITS) | packet.flow,
                argument: packet.number,
            });
        }
        if packet.number < flow.missed_from {
            return;
        }
        flow.missing |= packet.probe;
        if forgotten && !self.set.needs.lost_bytes {
            return;
        }
        flow.missing = true;
        let drops = &mut self.transport.losses[index].drops;
        if forgotten {
            // Responses to probes count the others until their time-out.
            while drops.front().is_some_and(|drop| drop.timeout <= self.now) {
                drops.pop_front();
            }
        }
        let place = drops
            .iter()
            .rposition(|drop| drop.number < packet.number)
            .map_or(0, |place| place + 1);
        drops.insert(
            place,
            Drop {
                number: packet.number,
                index: packet.index,
                timeout,
            },
        );
    }

    /// A receiver's report. Selective repeat: packets that left before number `argument` have
    /// arrived or are lost. Go-back-N: packet `argument` is missing.
    pub(super) fn receive_gap_report(&mut self, index: usize, argument: u32) {
        match self.set.recovery {
            Recovery::SelectiveRepeat => {
                let flow = &mut self.transport.flows[index];
                if self.set.forgets_drops(flow) {
                    if flow.probe == Probe::Dropped && flow.probe_number < argument {
                        self.probe_lost(index);
                    }
                    return;
                }
                let losses = &mut self.transport.losses[index];
                let mut found = 0;
                while let Some(drop) = losses.drops.front()
                    && drop.number < argument
                {
                    losses.repairs.push_back(drop.index);
                    losses.drops.pop_front();
                    found += 1;
                }
                flow.missing = !losses.drops.is_empty();
                flow.repairs += found;
                if self.set.needs.acks {
                    flow.underway -= found;
                }
                if flow.probe == Probe::Dropped && flow.probe_number < argument {
                    self.probe_lost(index);
                }
                if found == 0 {
                    // Time-outs were earlier.
                    return;
                }
            }
            Recovery::GoBackN => {
                let flow = &mut self.transport.flows[index];
                flow.unacknowledged = flow.unacknowledged.max(argument);
                flow.next = flow.next.max(argument);
                if argument == flow.next {
                    return;
                }
                self.go_back(index, argument);
            }
        }
        self.tell_loss(index, Loss::Gap);
        self.reschedule_turn(index);
    }

    /// A dropped packet has timed out.
    pub(super) fn timed_out(&mut self, index: usize, number: u32) {
        if self.linux.is_some() {
            self.tcp_timed_out(index, number);
            return;
        }
        let flow = &self.transport.flows[index];
        if flow.probe == Probe::Dropped && flow.probe_number == number {
            self.probe_lost(index);
        }
        let flow = &mut self.transport.flows[index];
        if self.set.forgets_drops(flow) {
            return;
        }
        let drops = &mut self.transport.losses[index].drops;
        // Nearly always it is the first, as time-outs come in the order of departures.
        let place = match drops.front() {
            Some(first) if first.number == number => 0,
            _ => match drops.binary_search_by_key(&number, |drop| drop.number) {
                Ok(place) => place,
                Err(_) => return,
            },
        };
        match self.set.recovery {
            Recovery::SelectiveRepeat => {
                let drop = drops.remove(place);
                flow.missing = !drops.is_empty();
                self.transport.losses[index]
                    .repairs
                    .extend(drop.map(|drop| drop.index));
                flow.repairs += 1;
                if self.set.needs.acks {
                    flow.underway -= 1;
                }
            }
            Recovery::GoBackN => {
                let back_to = drops[place].index;
                // Without ACKs the packets that the sender knows to have arrived are not counted.
                let arrived = if self.set.needs.acks {
                    flow.unacknowledged
                } else {
                    flow.received
                };
                if back_to < arrived {
                    // A retransmission of a packet that has arrived: nothing is missing.
                    drops.remove(place);
                    flow.missing = !drops.is_empty();
                    return;
                }
                self.go_back(index, back_to);
            }
        }
        self.tell_loss(index, Loss::Timeout);
        self.reschedule_turn(index);
    }

    /// Goes back: sends from this packet on again.
    fn go_back(&mut self, index: usize, to: u32) {
        let flow = &mut self.transport.flows[index];
        self.transport.losses[index].drops.clear();
        flow.missing = false;
        flow.next = flow.next.min(to);
        flow.missed_from = flow.number;
        if flow.probe == Probe::Dropped {
            self.probe_lost(index);
        }
    }

    /// The sender learns that its probe was dropped. Like a probe response, this leads to a
    /// decision.
    fn probe_lost(&mut self, index: usize) {
        let due = self.now + self.set.reaction;
        let flow = &mut self.transport.flows[index];
        flow.probe = Probe::Lost;
        if let Some(pending) = &mut self.control.pending {
            let known_after = self.now - flow.probe_sent;
            let number = index as u32;
            pending.push(Pending::for_flow(
                number,
                flow,
                known_after,
                self.set.packet_bytes,
                due,
            ));
        }
        self.schedule_event(due, EventKind::Response, index as u32, 0);
    }

    /// An ACK reaches the sender.
    pub(super) fn receive_ack(&mut self, index: usize, place: u32) {
        let flow = &mut self.transport.flows[index];
        let packet = self.fabric.packets.get_mut(place);
        match self.set.recovery {
            Recovery::SelectiveRepeat => {
                packet.acked = 1;
                flow.underway -= 1;
            }
            Recovery::GoBackN => {
                packet.acked = packet.index.saturating_sub(flow.unacknowledged);
                flow.unacknowledged = flow.unacknowledged.max(packet.index);
                flow.next = flow.next.max(flow.unacknowledged);
            }
        }
        if self.set.reaction == Time::ZERO {
            self.deliver_ack(index, place);
        } else {
            self.schedule_event(
                self.now + self.set.reaction,
                EventKind::Acked,
                index as u32,
                place,
            );
            self.reschedule_turn(index);
        }
    }
}
