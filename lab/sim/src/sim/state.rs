//! State of a simulation: flows, hosts, ports and packets, in flat arrays.

use std::collections::VecDeque;

use crate::Time;
use crate::cc::{Command, Hop};

/// Links of the longest path: host, edge, aggregation, core, aggregation, edge.
pub(super) const MAX_HOPS: usize = 6;

/// Number of packets of an endless flow.
pub(super) const ENDLESS: u32 = u32::MAX;

/// Puts a value into an existing slot or the next one.
pub(super) fn put_in_slot<T>(list: &mut Vec<T>, place: usize, value: T) {
    if place == list.len() {
        list.push(value);
    } else {
        list[place] = value;
    }
}

/// State of a flow's probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    /// The next packet may be a probe.
    Idle,
    /// Sent; its response has not been handled.
    Underway,
    /// Dropped; the sender does not know yet.
    Dropped,
    /// Dropped, and the sender knows. The resulting decision has not taken effect.
    Lost,
}

/// A flow: its sender and its receiver.
///
/// With thousands of flows, nearly every packet finds its flow outside the nearest cache. The
/// fields of a packet without losses, ACKs and marks fill exactly two cache lines, in this order;
/// the rest comes after.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(super) struct Flow {
    pub command: Command,
    /// Time between two packets at the commanded rate.
    pub gap: Time,
    /// Time of the sender's turn event; other turn events of this flow are stale.
    pub turn_at: Time,
    /// Time when the last burst started to leave.
    pub paced_from: Time,
    /// When the response to the probe in flight will be handled, if that is known already.
    pub answer_at: Time,
    /// Packets of the last burst.
    pub paced_packets: u32,
    /// Packets of the last burst that have not left.
    pub burst_left: u32,
    /// Next packet to send: new, or after going back an old one.
    pub next: u32,
    /// Packets to send in total, or [`ENDLESS`].
    pub end: u32,
    // The second cache line.
    pub probe_sent: Time,
    /// Delay from the receiver back to the sender.
    pub back: Time,
    /// Packets to be retransmitted (selective repeat).
    pub repairs: u32,
    /// Packets that ever left, including retransmissions: the number of the next.
    pub number: u32,
    /// Receiver: next packet in order (go-back-N), or packets it has (selective repeat). Both count
    /// new packets that have arrived.
    pub received: u32,
    /// Receiver: acknowledged, marked and lost packets since the last probe response.
    pub acked: u32,
    pub marked: u32,
    pub lost: u32,
    /// Acknowledged, marked and lost packets in the response in flight.
    pub answer_acked: u32,
    pub answer_marked: u32,
    pub answer_lost: u32,
    /// First port on the path, as an index into the list of paths.
    pub path: u32,
    pub host: u32,
    pub hops: u8,
    pub probe: Probe,
    pub started: bool,
    /// Whether there are drops that the sender has not heard of.
    pub missing: bool,
    // The third cache line.
    /// Before this the receiver sends no further CNP.
    pub quiet_until: Time,
    /// First packet that is not acknowledged (go-back-N).
    pub unacknowledged: u32,
    /// Packets in flight as the sender knows (with ACKs only).
    pub underway: u32,
    /// Number of the packet that carried the last dropped probe.
    pub probe_number: u32,
    /// Packets that left before this are not missing: the sender has gone back (go-back-N).
    pub missed_from: u32,
    /// Receiver: gaps before this number are reported.
    pub reported: u32,
    /// Receiver: packets of `received` that arrived before the measured time.
    pub unmeasured: u32,
    /// Receiver: has asked for the missing packet (go-back-N).
    pub asked: bool,
}

/// Size of the cache lines in the layout of [`Flow`], bytes.
const LINE: usize = 64;

const _: () = {
    assert!(std::mem::offset_of!(Flow, probe_sent) == LINE);
    assert!(std::mem::offset_of!(Flow, quiet_until) == 2 * LINE);
};

impl Flow {
    pub fn new(path: u32, hops: u8, host: u32, end: u32, back: Time) -> Self {
        Self {
            command: Command {
                rate_bps: 0.0,
                window_bytes: f64::INFINITY,
            },
            gap: Time::ZERO,
            turn_at: Time::MAX,
            paced_from: Time::ZERO,
            answer_at: Time::ZERO,
            paced_packets: 0,
            burst_left: 0,
            next: 0,
            end,
            probe_sent: Time::ZERO,
            back,
            repairs: 0,
            number: 0,
            received: 0,
            acked: 0,
            marked: 0,
            lost: 0,
            answer_acked: 0,
            answer_marked: 0,
            answer_lost: 0,
            path,
            host,
            hops,
            probe: Probe::Idle,
            started: false,
            missing: false,
            quiet_until: Time::ZERO,
            unacknowledged: 0,
            underway: 0,
            probe_number: 0,
            missed_from: 0,
            reported: 0,
            unmeasured: 0,
            asked: false,
        }
    }

    /// When the next packet may start to leave.
    pub fn next_departure(&self) -> Time {
        Time::from_ps(
            self.paced_from
                .ps()
                .saturating_add(u64::from(self.paced_packets) * self.gap.ps()),
        )
    }

    /// Acknowledged, marked and lost packets that the sender learns with a probe's response or
    /// loss. Without a response it knows of the probe alone.
    pub fn reported_counts(&self) -> [u32; 3] {
        match self.probe {
            Probe::Lost => [0, 0, 1],
            _ => [self.answer_acked, self.answer_marked, self.answer_lost],
        }
    }

    /// Packets ready to be sent.
    pub fn packets_ready(&self) -> u32 {
        if self.end == ENDLESS {
            return ENDLESS;
        }
        self.repairs + (self.end - self.next)
    }
}

/// A sender's network interface.
#[derive(Debug, Clone)]
pub(super) struct Host {
    /// When all packets handed to it will have left.
    pub busy: Time,
    /// Transmission time of a packet on its link.
    pub tx: Time,
    pub delay: Time,
    pub rate_bps: f64,
    pub sent_bytes: u64,
}

/// An output port with computed departures. It serves in order, so its queue is the time until it
/// has sent everything.
#[derive(Debug, Clone)]
pub(super) struct Port {
    /// When all packets that have arrived will have left.
    pub busy: Time,
    /// Transmission time of a packet on its link.
    pub tx: Time,
    pub delay: Time,
    /// Longest queue, including this packet, as time.
    pub limit: Time,
    /// A shaper's bucket, as time: so much is sent at once after a pause. Zero: no shaper.
    pub bucket: Time,
    /// Arrivals are handled this long before they happen; see `super::network`.
    pub shift: Time,
    /// Queueing delays for marks. None up to `mark_from`, all from `mark_all` on. In between
    /// `mark_slope` is the probability per picosecond.
    pub mark_from: Time,
    pub mark_all: Time,
    pub mark_slope: f64,
    pub rate_bps: f64,
    /// Packets accepted, from the start.
    pub accepted: u64,
    /// Packets that left within the measured time.
    pub measured: u64,
    /// Packets dropped within the measured time.
    pub dropped: u64,
    pub rng: crate::rng::Random,
    /// The switch of the port.
    pub switch: u32,
}

impl Port {
    /// Queueing delay of a packet that arrives at this time. Behind a shaper it is the time until
    /// the tokens suffice; `busy` is then when the bucket will be full again.
    #[inline]
    pub fn queueing_delay(&self, at: Time) -> Time {
        let waiting = self.busy.saturating_sub(at);
        if self.bucket == Time::ZERO {
            return waiting;
        }
        waiting.saturating_sub(self.bucket - self.tx)
    }

    /// Takes a packet that arrives at `at` and waits so long; returns when it has left.
    #[inline]
    pub fn serve_packet(&mut self, at: Time, waiting: Time) -> Time {
        if self.bucket == Time::ZERO {
            self.busy = at + waiting + self.tx;
            return self.busy;
        }
        self.busy = self.busy.max(at) + self.tx;
        at + waiting
    }

    /// Whether a packet with this queueing delay fits into the queue.
    #[inline]
    pub fn admits_packet(&mut self, waiting: Time, measured: bool) -> bool {
        let room = waiting + self.tx <= self.limit;
        self.dropped += u64::from(!room && measured);
        room
    }

    /// Whether a packet with this queueing delay is marked.
    #[inline]
    pub fn marks_packet(&mut self, waiting: Time) -> bool {
        // The share of marked packets grows linearly between the thresholds.
        waiting > self.mark_from
            && (waiting >= self.mark_all
                || self.rng.fraction() < self.mark_slope * (waiting - self.mark_from).ps() as f64)
    }
}

/// A packet in flight between two queues, or its ACK.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    /// When it started to leave its host; in an ACK the round-trip time.
    pub sent: Time,
    /// Queueing delay of the packet in switches so far.
    pub queued: Time,
    /// When it reached the port where it is queued; only in ports with explicit queues.
    pub arrived: Time,
    pub flow: u32,
    /// Index in the flow's data.
    pub index: u32,
    /// Number among all packets that the flow ever sent.
    pub number: u32,
    /// In an ACK: newly acknowledged packets.
    pub acked: u32,
    /// Number of ports passed.
    pub hop: u8,
    pub marked: bool,
    pub probe: bool,
    /// The last packet of a burst of several (hosts with Linux's TCP).
    pub push: bool,
}

/// Telemetry of a packet: one entry for each link passed.
pub(super) type Telemetry = [Hop; MAX_HOPS];

/// Packets by slot; slots are reused.
#[derive(Debug, Default)]
pub(super) struct Slab {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl Slab {
    pub fn insert(&mut self, packet: Packet) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.packets[place as usize] = packet;
                place
            }
            None => {
                self.packets.push(packet);
                // Fewer than 2^32 packets are in flight: more would take 200 GB.
                (self.packets.len() - 1) as u32
            }
        }
    }

    /// Stores the current state of a packet, in its slot or in a new one.
    pub fn store_packet(&mut self, place: Option<u32>, packet: Packet) -> u32 {
        let Some(place) = place else {
            return self.insert(packet);
        };
        self.packets[place as usize] = packet;
        place
    }

    /// Frees a packet's slot, if it has one.
    pub fn discard(&mut self, place: Option<u32>) {
        self.free.extend(place);
    }

    pub fn get(&self, place: u32) -> Packet {
        self.packets[place as usize]
    }

    pub fn get_mut(&mut self, place: u32) -> &mut Packet {
        &mut self.packets[place as usize]
    }

    pub fn remove(&mut self, place: u32) -> Packet {
        self.free.push(place);
        self.packets[place as usize]
    }

    pub fn capacity(&self) -> usize {
        self.packets.len()
    }
}

/// A drop that the sender has not heard of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drop {
    pub number: u32,
    pub index: u32,
    /// When the sender's time-out finds it.
    pub timeout: Time,
}

/// Losses of a flow.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Drops unknown to the sender, by number.
    pub drops: VecDeque<Drop>,
    /// Packets to be retransmitted, in order (selective repeat).
    pub repairs: VecDeque<u32>,
}
