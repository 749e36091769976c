//! An ACK reaches the sender: `tcp_ack`.

use crate::Time;
use crate::cc::tcp::{CaState, Event, Sample};
use crate::cc::{Ack, Controller, Loss};
use crate::engine::EventQueue;
use crate::scenario::{Rounds, RttSample};

use super::super::Simulation;
use super::{Connection, microseconds};

/// The bursts that an ACK acknowledges (`tcp_clean_rtx_queue`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Acked {
    /// Departure of the oldest and of the newest burst of which something is newly acknowledged.
    pub oldest: Time,
    pub newest: Time,
    /// Segments delivered when the newest of them departed.
    pub delivered: u32,
    pub is_app_limited: bool,
    /// Whether one of them was a retransmission.
    pub is_retransmission: bool,
}

impl Acked {
    /// Round-trip times of the oldest and of the newest burst, µs. With a retransmission among
    /// them TCP goes by the time stamp that the ACK returns: that of the oldest, in milliseconds,
    /// and only if it moved the first missing segment (`tcp_ack_update_rtt`).
    pub(super) fn rtts_us(&self, now: Time, is_una_advanced: bool) -> Option<(u32, u32)> {
        let since = |stamp: Time| (microseconds(now) - microseconds(stamp)) as u32;
        if !self.is_retransmission {
            return Some((since(self.oldest), since(self.newest)));
        }
        let milliseconds = |time: Time| microseconds(time) / 1000;
        let rtt_us = (milliseconds(now) - milliseconds(self.oldest)).max(1) as u32 * 1000;
        is_una_advanced.then_some((rtt_us, rtt_us))
    }
}

impl Connection {
    /// Removes what is acknowledged by an ACK of all packets up to `number`; none if that is
    /// nothing.
    pub(super) fn clean_rtx_queue(&mut self, number: u32) -> Option<Acked> {
        let mut acked: Option<Acked> = None;
        while let Some(burst) = self.bursts.front_mut()
            && burst.first <= number
        {
            let earlier = acked.get_or_insert(Acked {
                oldest: burst.stamp,
                newest: burst.stamp,
                delivered: burst.delivered,
                is_app_limited: burst.is_app_limited,
                is_retransmission: false,
            });
            earlier.newest = burst.stamp;
            earlier.delivered = burst.delivered;
            earlier.is_app_limited = burst.is_app_limited;
            earlier.is_retransmission |= burst.is_retransmission;
            if burst.last > number {
                // A part of it (`tcp_tso_acked`).
                burst.first = number + 1;
                break;
            }
            self.bursts.pop_front();
        }
        acked
    }

    /// `tcp_rtt_estimator`: an eighth of the difference (RFC 6298). The handshake was the first.
    fn rtt_estimator(&mut self, rtt_us: u32) {
        let srtt = &mut self.socket.srtt_us;
        let difference = i64::from(rtt_us) - i64::from(*srtt >> 3);
        *srtt = (i64::from(*srtt) + difference).max(1) as u32;
    }
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// Losses before packet `number` are known now. Returns how many.
    fn mark_lost(&mut self, index: usize, number: u32) -> u32 {
        let flow = &mut self.transport.flows[index];
        let losses = &mut self.transport.losses[index];
        let mut found = 0;
        while let Some(drop) = losses.drops.front()
            && drop.number < number
        {
            losses.repairs.push_back(drop.index);
            losses.drops.pop_front();
            found += 1;
        }
        flow.missing = !losses.drops.is_empty();
        flow.repairs += found;
        flow.underway -= found;
        found
    }

    /// An ACK reaches the sender.
    pub(in super::super) fn tcp_ack(&mut self, index: usize) {
        let now = self.now;
        let Some(ack) = self.connection(index).acks.pop_front() else {
            return;
        };
        let losses = self.mark_lost(index, ack.number);
        let flow = &mut self.transport.flows[index];
        flow.underway -= ack.packets;
        let (underway, sent, next) = (flow.underway, flow.number, flow.next);
        let Some(hosts) = &mut self.linux else { return };
        let (options, tai_ns) = (&hosts.options, hosts.tai_ns);
        let connection = &mut hosts.connections[index];
        let acked = connection.clean_rtx_queue(ack.number);
        let is_una_advanced = ack.una > connection.una;
        connection.una = connection.una.max(ack.una);
        let socket = &mut connection.socket;
        socket.tcp_mstamp = microseconds(now);
        socket.tai_ns = tai_ns + now.ps() / 1000;
        socket.delivered += ack.packets;
        socket.delivered_ce += ack.marked;
        socket.lost += losses;
        socket.packets_out = underway;
        socket.snd_una = ack.number + 1;
        let delivered = socket.delivered;
        let rtts = acked.and_then(|acked| match options.rtt {
            RttSample::Burst => acked.rtts_us(now, is_una_advanced),
            RttSample::Packet => {
                let own = microseconds(ack.own_rtt) as u32;
                Some((own, own))
            }
        });
        let is_ack_delayed = ack.is_delayed && options.flag_delayed;
        if let Some((oldest_us, newest_us)) = rtts {
            connection.rtt_estimator(oldest_us);
            let socket = &mut connection.socket;
            socket.min_rtt_us = socket.min_rtt_us.min(newest_us.max(1));
            hosts.shortest_us = hosts.shortest_us.min(newest_us.max(1));
        }
        // `tcp_rate_gen`: the bubble is gone once it is acknowledged.
        if connection.app_limited > 0 && delivered > connection.app_limited {
            connection.app_limited = 0;
        }
        let sample = Sample {
            prior_delivered: match (options.rounds, acked) {
                (Rounds::Acked, Some(acked)) => acked.delivered,
                _ => delivered,
            },
            rtt_us: rtts.map(|(_, newest)| newest),
            is_ack_delayed,
            is_app_limited: acked.is_some_and(|acked| acked.is_app_limited),
            acked_sacked: ack.packets,
            losses,
            is_una_advanced,
        };
        let (una, high_seq) = (connection.una, connection.high_seq);
        let state = connection.socket.ca_state;
        if state != CaState::Open && una >= high_seq {
            self.enter_open(index);
        }
        if losses > 0 && self.connection(index).socket.ca_state == CaState::Open {
            self.enter_recovery(index, next);
        }
        if self.set.needs.tcp {
            self.tell(index, Event::Ack(sample));
            if self.tcp_waits(index, sample) {
                return;
            }
        } else {
            self.tell_of_ack(index, &ack, rtts.map(|(_, newest)| newest), sent);
        }
        self.tcp_push(index);
    }

    /// Reports an ACK to a controller that knows nothing of TCP.
    fn tell_of_ack(
        &mut self,
        index: usize,
        ack: &super::Acknowledgement,
        rtt_us: Option<u32>,
        sent: u32,
    ) {
        let bytes = u64::from(self.set.packet_bytes);
        let rtt = rtt_us.map_or(ack.own_rtt, |us| Time::from_us(us.into()));
        let told = Ack {
            rtt,
            acked_bytes: u64::from(ack.packets) * bytes,
            marked: ack.marked > 0,
            ack_bytes: (u64::from(ack.number) + 1) * bytes,
            sent_bytes: u64::from(sent) * bytes,
            hops: &[],
        };
        self.call_controller(index, self.now, |controller, context| {
            controller.on_ack(&told, context);
        });
    }

    /// `tcp_enter_recovery`; the end is when all positions before `high_seq` have arrived.
    fn enter_recovery(&mut self, index: usize, high_seq: u32) {
        let connection = self.connection(index);
        connection.high_seq = high_seq;
        connection.socket.ca_state = CaState::Recovery;
        if self.set.needs.tcp {
            self.tell(index, Event::Recovery);
        } else {
            self.call_controller(index, self.now, |controller, context| {
                controller.on_loss(Loss::Gap, context);
            });
        }
    }

    fn enter_open(&mut self, index: usize) {
        self.connection(index).socket.ca_state = CaState::Open;
        if self.set.needs.tcp {
            self.tell(index, Event::Open);
        }
    }

    /// A dropped packet has timed out: `tcp_enter_loss`.
    pub(in super::super) fn tcp_timed_out(&mut self, index: usize, number: u32) {
        let drops = &self.transport.losses[index].drops;
        if drops
            .binary_search_by_key(&number, |drop| drop.number)
            .is_err()
        {
            // An ACK has told of it.
            return;
        }
        let losses = self.mark_lost(index, number + 1);
        let flow = &self.transport.flows[index];
        let (underway, next) = (flow.underway, flow.next);
        let now = self.now;
        let tai_ns = self.linux.as_ref().map_or(0, |hosts| hosts.tai_ns);
        let connection = self.connection(index);
        let socket = &mut connection.socket;
        socket.tcp_mstamp = microseconds(now);
        socket.tai_ns = tai_ns + now.ps() / 1000;
        socket.lost += losses;
        socket.packets_out = underway;
        let entered = socket.ca_state != CaState::Loss;
        socket.ca_state = CaState::Loss;
        connection.high_seq = next;
        if self.set.needs.tcp && entered {
            self.tell(index, Event::Loss);
            self.connection(index).socket.snd_cwnd = underway + 1;
        } else if entered {
            self.call_controller(index, now, |controller, context| {
                controller.on_loss(Loss::Timeout, context);
            });
        }
        self.tcp_push(index);
    }
}
