//! The sender: `tcp_write_xmit`, pacing.

use crate::Time;
use crate::cc::Controller;
use crate::cc::tcp::{CaState, Event};
use crate::engine::EventQueue;
use crate::scenario::Pacing;

use super::super::state::{ENDLESS, Packet};
use super::super::{EventKind, Simulation};
use super::{Burst, Connection, microseconds};

/// Segments that leave without pacing at the start (`tcp_update_skb_after_send`).
const UNPACED_SEGS: u64 = 10;

impl Connection {
    /// `tcp_update_skb_after_send`: when the next burst may leave, after one of `segs` segments at
    /// `now`. Returns the time stamp of the burst.
    pub(super) fn update_after_send(&mut self, now: Time, segs: u32, pacing: Pacing) -> Time {
        let prior_wstamp = self.wstamp;
        self.wstamp = self.wstamp.max(now);
        self.sent_at = now;
        let stamp = self.wstamp;
        self.data_segs_out += u64::from(segs);
        let rate = self.socket.sk_pacing_rate;
        if self.socket.sk_pacing_needed && rate > 0 {
            let bytes = u64::from(segs) * u64::from(self.socket.mss_cache);
            let mut len_ns = bytes * 1_000_000_000 / rate;
            match pacing {
                Pacing::Exact => {}
                Pacing::Internal if self.data_segs_out < UNPACED_SEGS => len_ns = 0,
                // The lateness of this burst, by timers or a full window, is made up for.
                Pacing::Internal => {
                    let credit_ns = (self.wstamp - prior_wstamp).ps() / 1000;
                    len_ns -= credit_ns.min(len_ns / 2);
                }
            }
            self.wstamp += Time::from_ns(len_ns);
        }
        stamp
    }

    /// `tcp_cwnd_validate`: whether the window was the limit, once a round trip.
    fn cwnd_validate(&mut self, is_cwnd_limited: bool) {
        let socket = &mut self.socket;
        if socket.snd_una >= self.cwnd_usage
            || is_cwnd_limited
            || (!socket.is_cwnd_limited && socket.packets_out > socket.max_packets_out)
        {
            socket.is_cwnd_limited = is_cwnd_limited;
            socket.max_packets_out = socket.packets_out;
            self.cwnd_usage = socket.snd_nxt;
        }
    }
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// The pacing timer has expired.
    pub(in super::super) fn tcp_paced(&mut self, index: usize) {
        let now = self.now;
        let connection = self.connection(index);
        if connection.timer_at == now {
            connection.timer_at = Time::MAX;
            self.tcp_push(index);
        }
    }

    /// Sends what pacing and window allow: `tcp_xmit_retransmit_queue`, then `tcp_write_xmit`.
    pub(in super::super) fn tcp_push(&mut self, index: usize) {
        let now = self.now;
        if !self.transport.flows[index].started {
            return;
        }
        if !self.set.needs.tcp {
            self.obey(index);
        }
        let repairing = self.is_repairing(index);
        let mut sent = false;
        let mut is_cwnd_limited = false;
        loop {
            let flow = &self.transport.flows[index];
            let (data, repairs, underway) = (flow.packets_ready(), flow.repairs, flow.underway);
            let Some(hosts) = &mut self.linux else { return };
            let options = &hosts.options;
            let connection = &mut hosts.connections[index];
            connection.socket.packets_out = underway;
            if data == 0 {
                break;
            }
            if connection.socket.sk_pacing_needed && connection.wstamp > now {
                self.arm_timer(index);
                break;
            }
            let max_segs = connection.tso_segs(options);
            let is_unlimited = !options.window && connection.socket.sk_pacing_needed;
            let quota = if is_unlimited {
                max_segs
            } else if repairs > 0 {
                connection.socket.snd_cwnd.saturating_sub(underway)
            } else {
                connection.cwnd_test()
            };
            let segs = quota.min(max_segs).min(data);
            if segs == 0 {
                is_cwnd_limited = true;
                break;
            }
            if repairs == 0 && options.offload && data > 1 && !is_unlimited {
                let age = |stamp: Time| microseconds(now) - microseconds(stamp);
                let oldest_us = connection.bursts.front().map(|burst| age(burst.stamp));
                let sent_us = age(connection.sent_at);
                if connection.tso_should_defer(max_segs, oldest_us, sent_us, repairing) {
                    is_cwnd_limited = true;
                    break;
                }
            }
            self.transmit_burst(index, segs);
            sent = true;
        }
        let connection = self.connection(index);
        is_cwnd_limited |= connection.socket.packets_out >= connection.socket.snd_cwnd;
        if sent || is_cwnd_limited {
            connection.cwnd_validate(is_cwnd_limited);
        }
    }

    /// Sets the pacing timer (`tcp_pacing_check`).
    fn arm_timer(&mut self, index: usize) {
        let Some(hosts) = &mut self.linux else { return };
        let connection = &mut hosts.connections[index];
        if connection.timer_at != Time::MAX {
            return;
        }
        let slack = hosts.options.timer_slack.ps();
        let late = if slack == 0 {
            0
        } else {
            hosts.random.u64() % (slack + 1)
        };
        let at = connection.wstamp + Time::from_ps(late);
        connection.timer_at = at;
        self.schedule_event(at, EventKind::Pace, index as u32, 0);
    }

    /// Sends a burst: lost segments that follow each other, or new ones.
    fn transmit_burst(&mut self, index: usize, segs: u32) {
        let now = self.now;
        let is_retransmission = self.transport.flows[index].repairs > 0;
        if !is_retransmission && self.transport.flows[index].underway == 0 {
            let is_told = self.set.needs.tcp;
            let connection = self.connection(index);
            let idle_us = microseconds(now) - microseconds(connection.sent_at);
            if is_told && connection.data_segs_out > 0 {
                connection.socket.tcp_mstamp = microseconds(now);
                let idle_us = idle_us.min(u32::MAX.into()) as u32;
                self.tell(index, Event::TxStart { idle_us });
            }
        }
        let flow = &mut self.transport.flows[index];
        let first = flow.number;
        let mut indices = Vec::with_capacity(segs as usize);
        if is_retransmission {
            let repairs = &mut self.transport.losses[index].repairs;
            while indices.len() < segs as usize
                && let Some(next) = repairs.front()
                && indices.last().is_none_or(|last| last + 1 == *next)
            {
                indices.extend(repairs.pop_front());
            }
            flow.repairs -= indices.len() as u32;
        } else {
            indices.extend(flow.next..flow.next + segs);
            flow.next += segs;
        }
        let segs = indices.len() as u32;
        flow.number += segs;
        flow.underway += segs;
        let (number, underway) = (flow.number, flow.underway);
        let is_last = flow.end != ENDLESS && flow.packets_ready() == 0;
        let Some(hosts) = &mut self.linux else { return };
        let pacing = hosts.options.pacing;
        let connection = &mut hosts.connections[index];
        let stamp = connection.update_after_send(now, segs, pacing);
        let delivered = connection.socket.delivered;
        if is_last {
            // `tcp_rate_check_app_limited`: what follows waits for the application.
            connection.app_limited = delivered + underway;
        }
        let socket = &mut connection.socket;
        socket.packets_out = underway;
        socket.snd_nxt = number;
        if socket.ca_state != CaState::Open {
            socket.prr_out += segs;
        }
        let burst = Burst {
            first,
            last: number - 1,
            stamp,
            delivered,
            is_app_limited: connection.app_limited > 0,
            is_retransmission,
        };
        connection.bursts.push_back(burst);
        self.emit_packets(index, first, &indices);
    }

    /// The packets of a burst leave through the host's interface, one after the other.
    fn emit_packets(&mut self, index: usize, first: u32, indices: &[u32]) {
        let flow = &self.transport.flows[index];
        let host = &mut self.transport.hosts[flow.host as usize];
        let (tx, delay) = (host.tx, host.delay);
        let mut begin = host.busy.max(self.now);
        host.busy = begin + Time::from_ps(indices.len() as u64 * tx.ps());
        host.sent_bytes += indices.len() as u64 * u64::from(self.set.packet_bytes);
        self.meter.sent += indices.len() as u64;
        for (number, position) in (first..).zip(indices) {
            let is_last = number + 1 == first + indices.len() as u32;
            let packet = Packet {
                sent: begin,
                queued: Time::ZERO,
                arrived: Time::ZERO,
                flow: index as u32,
                index: *position,
                number,
                acked: 0,
                hop: 0,
                marked: false,
                probe: false,
                push: is_last && indices.len() > 1,
            };
            begin += tx;
            self.forward_packet(packet, None, begin + delay);
        }
    }
}
