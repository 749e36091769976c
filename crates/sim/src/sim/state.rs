//! What a simulation remembers: flows, hosts, ports and packets, in flat arrays.

use std::collections::VecDeque;

use crate::Time;
use crate::cc::{Command, Hop};

/// Links of the longest way: host, edge, aggregation, core, aggregation, edge.
pub(super) const MAX_HOPS: usize = 6;

/// Packets of a flow without end.
pub(super) const ENDLESS: u32 = u32::MAX;

/// Puts something at a place that is known or the next.
pub(super) fn put<T>(list: &mut Vec<T>, place: usize, value: T) {
    if place == list.len() {
        list.push(value);
    } else {
        list[place] = value;
    }
}

/// How a flow's probe stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    /// The next packet may be one.
    Idle,
    /// Sent; its answer has not been dealt with.
    Underway,
    /// Dropped, which the sender does not know yet.
    Dropped,
    /// Dropped, which the sender knows; the decision that follows has not taken effect.
    Lost,
}

/// A flow: its sender and its receiver.
///
/// With thousands of flows nearly every packet finds its flow outside the nearest cache. What
/// a packet without losses, acknowledgements and marks needs fills exactly two cache lines, in
/// this order; the rest comes after.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(super) struct Flow {
    pub command: Command,
    /// Time between two packets at the commanded rate.
    pub gap: Time,
    /// When the sender's turn event goes off; others of this flow are stale.
    pub turn_at: Time,
    /// When the last burst began to leave.
    pub paced_from: Time,
    /// When the answer to the probe under way will be dealt with, if that is known already.
    pub answer_at: Time,
    /// Packets of the last burst.
    pub paced_packets: u32,
    /// Of those, how many have not left.
    pub burst_left: u32,
    /// Next packet that was never sent, or, after going back, was.
    pub next: u32,
    /// Packets to send in all, or [`ENDLESS`].
    pub end: u32,
    // The second line.
    pub probe_sent: Time,
    /// Back from the receiver to the sender.
    pub back: Time,
    /// Packets that wait to be repeated (selective repeat).
    pub repairs: u32,
    /// Packets that ever left, repetitions included: the number of the next.
    pub number: u32,
    /// Receiver: next packet in order (go-back-N), or packets it has (selective repeat). Both
    /// count what has arrived and was new.
    pub received: u32,
    /// Receiver: acknowledged, marked, lost since the last answer to a probe, packets.
    pub acked: u32,
    pub marked: u32,
    pub lost: u32,
    /// The same as the answer under way tells them.
    pub answer_acked: u32,
    pub answer_marked: u32,
    pub answer_lost: u32,
    /// First port on the way in the list of paths.
    pub path: u32,
    pub host: u32,
    pub hops: u8,
    pub probe: Probe,
    pub started: bool,
    /// Whether there are drops that the sender has not heard of.
    pub missing: bool,
    // The third.
    /// Before this the receiver sends no further notification.
    pub quiet_until: Time,
    /// First packet that is not acknowledged (go-back-N).
    pub unacknowledged: u32,
    /// Packets under way as the sender knows (with acknowledgements only).
    pub underway: u32,
    /// Number of the packet that carried the last probe which was dropped.
    pub probe_number: u32,
    /// Packets that left earlier are not missed: the sender has gone back (go-back-N).
    pub missed_from: u32,
    /// Receiver: gaps before this number are reported.
    pub reported: u32,
    /// Receiver: of `received`, what arrived before the measured time.
    pub unmeasured: u32,
    /// Receiver: has asked for the missing packet (go-back-N).
    pub asked: bool,
}

/// Size of the cache lines that [`Flow`] is laid out for, bytes.
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

    /// When the next packet may begin to leave.
    pub fn eligible(&self) -> Time {
        Time::from_ps(
            self.paced_from
                .ps()
                .saturating_add(u64::from(self.paced_packets) * self.gap.ps()),
        )
    }

    /// What the sender is told of acknowledged, marked and lost packets when its probe was
    /// answered or lost. Without an answer it knows of the probe alone.
    pub fn told(&self) -> [u32; 3] {
        match self.probe {
            Probe::Lost => [0, 0, 1],
            _ => [self.answer_acked, self.answer_marked, self.answer_lost],
        }
    }

    /// Packets that are there to be sent.
    pub fn data(&self) -> u32 {
        if self.end == ENDLESS {
            return ENDLESS;
        }
        self.repairs + (self.end - self.next)
    }
}

/// A sender's network interface.
#[derive(Debug, Clone)]
pub(super) struct Host {
    /// When what was handed to it will have left.
    pub busy: Time,
    /// One packet's time on its link.
    pub tx: Time,
    pub delay: Time,
    pub rate_bps: f64,
    pub sent_bytes: u64,
}

/// An output port whose departures are computed: it serves in order, so what waits is the time
/// until it has sent everything.
#[derive(Debug, Clone)]
pub(super) struct Port {
    /// When all that has arrived will have left.
    pub busy: Time,
    /// One packet's time on its link.
    pub tx: Time,
    pub delay: Time,
    /// What may wait, this packet included, as time.
    pub limit: Time,
    /// Arrivals are dealt with so much before they happen; see `super::network`.
    pub shift: Time,
    /// Packets that wait longer than this may be marked, and all that wait as long as
    /// `mark_all` are; in between `mark_slope` is the probability per picosecond.
    pub mark_from: Time,
    pub mark_all: Time,
    pub mark_slope: f64,
    pub rate_bps: f64,
    /// Packets accepted, since the begin.
    pub accepted: u64,
    /// Packets that left within the measured time.
    pub measured: u64,
    /// Packets dropped within the measured time.
    pub dropped: u64,
    pub rng: crate::rng::Random,
    /// The switch that it belongs to.
    pub switch: u32,
}

impl Port {
    /// Whether there is room for a packet that finds so much waiting.
    #[inline]
    pub fn admits(&mut self, waiting: Time, measured: bool) -> bool {
        let room = waiting + self.tx <= self.limit;
        self.dropped += u64::from(!room && measured);
        room
    }

    /// Whether a packet that finds so much waiting is marked.
    #[inline]
    pub fn marks(&mut self, waiting: Time) -> bool {
        // The share of packets marked grows linearly between the thresholds.
        waiting > self.mark_from
            && (waiting >= self.mark_all
                || self.rng.fraction() < self.mark_slope * (waiting - self.mark_from).ps() as f64)
    }
}

/// A packet under way between two queues, or its acknowledgement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    /// When it began to leave its host; of an acknowledgement: the round-trip time.
    pub sent: Time,
    /// How long it has waited in switches.
    pub queued: Time,
    /// When it reached the port where it waits; in ports with a list only.
    pub arrived: Time,
    pub flow: u32,
    /// Which packet of the flow's data.
    pub index: u32,
    /// Which of all that the flow ever sent.
    pub number: u32,
    /// Of an acknowledgement: packets it acknowledges for the first time.
    pub acked: u32,
    /// Of an acknowledgement on its way to the controller: packets ever sent.
    pub ever: u32,
    /// Ports behind it.
    pub hop: u8,
    pub marked: bool,
    pub probe: bool,
}

/// Telemetry of a packet: as many entries as it has passed links.
pub(super) type Telemetry = [Hop; MAX_HOPS];

/// Packets by number, with reuse.
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
                // Fewer than 2^32 packets are under way: they would take 200 GB.
                (self.packets.len() - 1) as u32
            }
        }
    }

    /// A packet as it is now, at its place or at a new one.
    pub fn keep(&mut self, place: Option<u32>, packet: Packet) -> u32 {
        let Some(place) = place else {
            return self.insert(packet);
        };
        self.packets[place as usize] = packet;
        place
    }

    /// A packet that may have a place has none any more.
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
}

/// What a flow has lost.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Not known to the sender, by number.
    pub drops: VecDeque<Drop>,
    /// Known and to be retransmitted, in order (selective repeat).
    pub repairs: VecDeque<u32>,
}
