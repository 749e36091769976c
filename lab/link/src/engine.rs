//! One direction of a path: loss, bottleneck with its queue, delay. No I/O and
//! no clock: the time of each call is an argument, in nanoseconds since the
//! link began, and never goes back.
//!
//! Without [`Aqm`], a packet's whole fate is decided when it arrives, because nothing that comes
//! later can change it: the queue is first in, first out and drops at its tail. With it, packets
//! wait, and each leaves the queue at the exact moment at which the bottleneck is free, even if
//! this is computed later.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use serde::Serialize;
use thalweg_units::{Delay, Probability, Rate};

use crate::ack_delay::{AckDelay, Fate};
use crate::aqm::{Aqm, Discipline, Fates, Waiting};
use crate::packet;
use crate::quantity::Threshold;
use crate::random::{GOLDEN, splitmix64};
use crate::trace::{OPPORTUNITY_BYTES, OVERHEAD_BYTES, Trace};

/// However long the delay and high the rate, no more bytes than this are kept.
pub const MEMORY_BYTES: u64 = 512 << 20;

const NS_PER_S: u128 = 1_000_000_000;

/// Limit of the rate at which packets leave the queue.
#[derive(Debug, Clone)]
pub enum Capacity {
    /// Nothing: there is no queue.
    Unlimited,
    /// A rate, in bits of IP packets per second.
    Rate(Rate),
    /// The moments of a trace.
    Trace(Arc<Trace>),
}

/// Properties of one direction of a path.
#[derive(Debug, Clone)]
pub struct Direction {
    /// Longest time for which the sender of this direction delays an ACK, before everything else;
    /// zero if it delays none.
    pub ack_delay: Delay,
    /// Independent loss, before the queue.
    pub loss: Probability,
    /// The bottleneck.
    pub capacity: Capacity,
    /// Capacity of the queue, the packet that is being sent included. A packet that does not fit is
    /// dropped.
    pub queue_bytes: u64,
    /// From where on packets are marked, if at all.
    pub ecn: Option<Threshold>,
    /// The queue's algorithm, if it is not first in, first out. The packet that is being sent is
    /// then not in the queue.
    pub aqm: Option<Aqm>,
    /// One-way delay, after the bottleneck.
    pub delay: Delay,
    /// The delay varies uniformly by up to this much either way. Packets do not
    /// overtake each other because of it: one that would is held back.
    pub jitter: Delay,
    /// Probability that a packet skips the delay and so overtakes others.
    pub reorder: Probability,
    /// Seed of everything random.
    pub seed: u64,
}

/// Counters of packets, unless named otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Came in.
    pub received: u64,
    /// Bytes that came in.
    pub received_bytes: u64,
    /// Lost at random.
    pub lost: u64,
    /// Found the queue full.
    pub dropped_queue: u64,
    /// Dropped by [`Aqm`] because packets waited too long.
    pub dropped_early: u64,
    /// Found [`MEMORY_BYTES`] in flight.
    pub dropped_memory: u64,
    /// Marked with congestion experienced.
    pub marked: u64,
    /// Overtook at least one other packet.
    pub reordered: u64,
    /// Left.
    pub delivered: u64,
    /// Bytes that left.
    pub delivered_bytes: u64,
    /// The most that was in the queue, in bytes.
    pub max_queue_bytes: u64,
    /// The longest that a packet was in the queue, in microseconds.
    pub max_queue_us: u64,
}

/// Something that happened to a packet at the bottleneck.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// Moment of the event, ns.
    pub(crate) at_ns: u64,
    /// Length of the packet, bytes.
    pub(crate) bytes: u64,
    /// Kind of the event.
    pub(crate) what: EventKind,
}

/// Kinds of events that a packet meets.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EventKind {
    /// The packet arrived, and had not been lost before.
    Came,
    /// The packet was dropped.
    Dropped,
    /// The packet has been sent; the moment may be later than that of the call.
    Left {
        /// When it came.
        since_ns: u64,
    },
}

/// The state of one direction.
#[derive(Debug)]
pub struct Engine {
    direction: Direction,
    ack_delay: Option<AckDelay>,
    bottleneck: Bottleneck,
    /// When each packet that is in the queue will have left it, and its bytes.
    queue: VecDeque<(u64, u64)>,
    queued_bytes: u64,
    waiting: Option<Discipline>,
    /// Since when packets wait.
    busy_ns: u64,
    flight: BinaryHeap<Reverse<Flying>>,
    flying_bytes: u64,
    /// When the latest packet leaves that kept its place in the order.
    last_ns: u64,
    /// How many have left the queue.
    sent: u64,
    /// Events since they were last asked for, if they are recorded.
    events: Option<Vec<Event>>,
    counters: Counters,
}

/// A packet with its departure; ordered by that, then by when it left the queue.
#[derive(Debug)]
struct Flying {
    departure_ns: u64,
    order: u64,
    packet: Vec<u8>,
}

impl PartialEq for Flying {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Flying {}

impl PartialOrd for Flying {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flying {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.departure_ns, self.order).cmp(&(other.departure_ns, other.order))
    }
}

impl Engine {
    /// An idle direction at time 0.
    pub fn new(direction: Direction) -> Self {
        let bottleneck = match &direction.capacity {
            Capacity::Unlimited => Bottleneck::None,
            Capacity::Rate(rate) => Bottleneck::Rate {
                bps: u128::from(rate.bps()),
                free_at: 0,
            },
            Capacity::Trace(trace) => Bottleneck::Trace {
                trace: Arc::clone(trace),
                number: 0,
                left_bytes: OPPORTUNITY_BYTES,
            },
        };
        // Another stream of random numbers than those of packets.
        let salt = splitmix64(!splitmix64(direction.seed));
        Self {
            waiting: (direction.aqm).map(|aqm| aqm.empty_queue(direction.queue_bytes, salt)),
            busy_ns: 0,
            ack_delay: match direction.ack_delay {
                Delay::ZERO => None,
                delay => Some(AckDelay::new(delay.ns())),
            },
            direction,
            bottleneck,
            queue: VecDeque::new(),
            queued_bytes: 0,
            flight: BinaryHeap::new(),
            flying_bytes: 0,
            last_ns: 0,
            sent: 0,
            events: None,
            counters: Counters::default(),
        }
    }

    /// Begins or ends to record events.
    pub(crate) fn record_events(&mut self, is_wanted: bool) {
        self.events = is_wanted.then(Vec::new);
    }

    /// How many events are recorded.
    pub(crate) fn event_count(&self) -> usize {
        self.events.as_ref().map_or(0, Vec::len)
    }

    /// Takes the events, and makes room for so many.
    pub(crate) fn take_events(&mut self, room: usize) -> Vec<Event> {
        let events = self.events.as_mut();
        events.map_or_else(Vec::new, |events| {
            std::mem::replace(events, Vec::with_capacity(room))
        })
    }

    fn note_event(&mut self, at_ns: u64, bytes: u64, what: EventKind) {
        if let Some(events) = &mut self.events {
            events.push(Event { at_ns, bytes, what });
        }
    }

    /// Counters so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes an IP packet that arrives now. Gives the buffer back if the packet
    /// goes no further.
    pub fn packet_arrives(&mut self, now_ns: u64, packet: Vec<u8>) -> Option<Vec<u8>> {
        self.release_acks(now_ns);
        match &mut self.ack_delay {
            None => self.admit_packet(now_ns, packet),
            Some(ack_delay) => match ack_delay.packet_arrives(now_ns, packet) {
                Fate::Passes(packet) => self.admit_packet(now_ns, packet),
                Fate::Waits { replaced } => replaced,
            },
        }
    }

    /// Admits the delayed ACKs that are due by now, each at its moment.
    fn release_acks(&mut self, now_ns: u64) {
        let due = |engine: &mut Self| engine.ack_delay.as_mut()?.take_due(now_ns);
        while let Some((due_ns, packet)) = due(self) {
            self.admit_packet(due_ns, packet);
        }
    }

    /// Takes a packet into the path.
    fn admit_packet(&mut self, now_ns: u64, mut packet: Vec<u8>) -> Option<Vec<u8>> {
        let bytes = packet.len() as u64;
        let number = self.counters.received;
        self.counters.received += 1;
        self.counters.received_bytes += bytes;
        if self.draw_chance(number, Draw::Loss, self.direction.loss) {
            self.counters.lost += 1;
            return Some(packet);
        }
        if self.waiting.is_some() {
            return self.enqueue_aqm(now_ns, number, packet);
        }
        self.note_event(now_ns, bytes, EventKind::Came);
        self.drain_tail_drop(now_ns);
        if self.queued_bytes + bytes > self.direction.queue_bytes {
            self.counters.dropped_queue += 1;
            self.note_event(now_ns, bytes, EventKind::Dropped);
            return Some(packet);
        }
        if self.flying_bytes + bytes > MEMORY_BYTES {
            self.counters.dropped_memory += 1;
            self.note_event(now_ns, bytes, EventKind::Dropped);
            return Some(packet);
        }
        let sent_ns = self.bottleneck.send_packet(now_ns, bytes);
        self.enqueue_tail_drop(now_ns, sent_ns, bytes);
        if self.must_mark(sent_ns - now_ns) && packet::mark_ce(&mut packet) {
            self.counters.marked += 1;
        }
        self.note_event(sent_ns, bytes, EventKind::Left { since_ns: now_ns });
        self.schedule_departure(number, sent_ns, packet);
        None
    }

    /// Puts a packet into the queue of [`Aqm`].
    fn enqueue_aqm(&mut self, now_ns: u64, number: u64, packet: Vec<u8>) -> Option<Vec<u8>> {
        self.drain_aqm(now_ns);
        let bytes = packet.len() as u64;
        self.note_event(now_ns, bytes, EventKind::Came);
        let discipline = self.waiting.as_mut()?;
        let waiting_bytes = discipline.queued_bytes();
        if self.flying_bytes + waiting_bytes + bytes > MEMORY_BYTES {
            self.counters.dropped_memory += 1;
            self.note_event(now_ns, bytes, EventKind::Dropped);
            return Some(packet);
        }
        if waiting_bytes == 0 {
            self.busy_ns = now_ns;
        }
        let mut fates = Fates::default();
        discipline.enqueue(
            Waiting {
                number,
                since_ns: now_ns,
                packet,
            },
            &mut fates,
        );
        let max_bytes = &mut self.counters.max_queue_bytes;
        *max_bytes = (*max_bytes).max(discipline.queued_bytes());
        self.counters.dropped_queue += fates.full.len() as u64;
        for dropped in &fates.full {
            self.note_event(now_ns, dropped.packet.len() as u64, EventKind::Dropped);
        }
        self.drain_aqm(now_ns);
        fates.full.pop().map(|dropped| dropped.packet)
    }

    /// Sends from the queue of [`Aqm`] what the bottleneck takes by now.
    fn drain_aqm(&mut self, now_ns: u64) {
        while let Some(free_ns) = self.next_dequeue_ns().filter(|free_ns| *free_ns <= now_ns) {
            let mut fates = Fates::default();
            let next = (self.waiting.as_mut()).and_then(|it| it.dequeue(free_ns, &mut fates));
            self.counters.dropped_early += fates.early.len() as u64;
            self.counters.marked += fates.marked;
            for dropped in &fates.early {
                self.note_event(free_ns, dropped.packet.len() as u64, EventKind::Dropped);
            }
            let Some(next) = next else {
                return;
            };
            let bytes = next.packet.len() as u64;
            // Not from the moment of the call: that is rounded up to nanoseconds.
            let sent_ns = self.bottleneck.send_packet(self.busy_ns, bytes);
            let queue_us = (sent_ns - next.since_ns) / 1000;
            self.counters.max_queue_us = self.counters.max_queue_us.max(queue_us);
            let since_ns = next.since_ns;
            self.note_event(sent_ns, bytes, EventKind::Left { since_ns });
            self.schedule_departure(next.number, sent_ns, next.packet);
        }
    }

    /// When the next packet leaves the queue of [`Aqm`].
    fn next_dequeue_ns(&self) -> Option<u64> {
        let waiting = self.waiting.as_ref()?;
        (waiting.queued_bytes() > 0).then(|| self.bottleneck.free_ns(self.busy_ns))
    }

    /// Sends a packet on its way behind the bottleneck.
    fn schedule_departure(&mut self, number: u64, sent_ns: u64, packet: Vec<u8>) {
        let departure_ns = self.departure_ns(number, sent_ns);
        self.flying_bytes += packet.len() as u64;
        self.flight.push(Reverse(Flying {
            departure_ns,
            order: self.sent,
            packet,
        }));
        self.sent += 1;
    }

    /// When the next packet leaves; one that waits, by [`Aqm`] or as a delayed ACK, may leave later.
    pub fn next_departure_ns(&self) -> Option<u64> {
        let flying = self.flight.peek().map(|next| next.0.departure_ns);
        // What waits will have the delay before it, unless it may skip that.
        let delay_ns = match self.direction.reorder > Probability::ZERO {
            true => 0,
            false => (self.direction.delay.ns()).saturating_sub(self.direction.jitter.ns()),
        };
        let ack = self.ack_delay.as_ref().and_then(AckDelay::next_due_ns);
        let waiting = self.next_dequeue_ns().into_iter().chain(ack).min();
        let waiting = waiting.map(|free_ns| free_ns + delay_ns);
        flying.into_iter().chain(waiting).min()
    }

    /// A packet that leaves now or should have left before, and when it should.
    pub fn next_departure(&mut self, now_ns: u64) -> Option<(u64, Vec<u8>)> {
        self.release_acks(now_ns);
        self.drain_aqm(now_ns);
        if self.flight.peek()?.0.departure_ns > now_ns {
            return None;
        }
        let Reverse(next) = self.flight.pop()?;
        let bytes = next.packet.len() as u64;
        self.flying_bytes -= bytes;
        self.counters.delivered += 1;
        self.counters.delivered_bytes += bytes;
        Some((next.departure_ns, next.packet))
    }

    /// Takes from the queue what has been sent by now.
    fn drain_tail_drop(&mut self, now_ns: u64) {
        while let Some((_, bytes)) = self.queue.front().filter(|next| next.0 <= now_ns) {
            self.queued_bytes -= bytes;
            self.queue.pop_front();
        }
    }

    fn enqueue_tail_drop(&mut self, now_ns: u64, sent_ns: u64, bytes: u64) {
        if matches!(self.bottleneck, Bottleneck::None) {
            return;
        }
        self.queue.push_back((sent_ns, bytes));
        self.queued_bytes += bytes;
        let counters = &mut self.counters;
        counters.max_queue_bytes = counters.max_queue_bytes.max(self.queued_bytes);
        counters.max_queue_us = counters.max_queue_us.max((sent_ns - now_ns) / 1000);
    }

    fn must_mark(&self, sojourn_ns: u64) -> bool {
        match self.direction.ecn {
            None => false,
            Some(Threshold::Bytes(size)) => self.queued_bytes > size.bytes(),
            Some(Threshold::Time(time)) => sojourn_ns > time.ns(),
        }
    }

    fn departure_ns(&mut self, number: u64, sent_ns: u64) -> u64 {
        if self.draw_chance(number, Draw::Reorder, self.direction.reorder) {
            if sent_ns < self.last_ns {
                self.counters.reordered += 1;
            }
            return sent_ns;
        }
        let jitter_ns = self.direction.jitter.ns();
        // From 0 to twice the jitter, the latter included.
        let span = u128::from(2 * jitter_ns + 1);
        let offset = (u128::from(self.draw_number(number, Draw::Jitter)) * span) >> 64;
        // The jitter is at most the delay: `Settings` sees to that.
        let delay_ns = (self.direction.delay.ns() + offset as u64).saturating_sub(jitter_ns);
        self.last_ns = self.last_ns.max(sent_ns + delay_ns);
        self.last_ns
    }

    fn draw_chance(&self, number: u64, what: Draw, probability: Probability) -> bool {
        (self.draw_number(number, what) >> 32) < probability.q32()
    }

    /// Uniform over all 64-bit numbers; a pure function of the seed, the packet's
    /// number and what is drawn for.
    fn draw_number(&self, number: u64, what: Draw) -> u64 {
        let stream = splitmix64(splitmix64(self.direction.seed).wrapping_add(what as u64));
        splitmix64(stream.wrapping_add(number.wrapping_mul(GOLDEN)))
    }
}

/// Purpose of a random number.
#[derive(Debug, Clone, Copy)]
enum Draw {
    Loss,
    Reorder,
    Jitter,
}

#[derive(Debug)]
enum Bottleneck {
    None,
    Rate {
        bps: u128,
        /// When the last packet will have been sent, in units of 1/bps ns: so
        /// nothing is ever rounded away.
        free_at: u128,
    },
    Trace {
        trace: Arc<Trace>,
        /// The opportunity in use.
        number: u64,
        /// Remaining capacity of the opportunity, bytes.
        left_bytes: u64,
    },
}

impl Bottleneck {
    /// When it takes another packet, at this moment or later.
    fn free_ns(&self, now_ns: u64) -> u64 {
        match self {
            Self::None => now_ns,
            Self::Rate { bps, free_at } => now_ns.max(free_at.div_ceil(*bps) as u64),
            Self::Trace {
                trace,
                number,
                left_bytes,
            } => match trace.moment_ns(*number) {
                moment_ns if moment_ns < now_ns => trace.moment_ns(trace.first_from(now_ns)),
                moment_ns if *left_bytes > 0 => moment_ns,
                _ => trace.moment_ns(*number + 1),
            },
        }
    }

    /// Sends a packet after all that came before; returns when its last bit has
    /// been sent.
    fn send_packet(&mut self, now_ns: u64, bytes: u64) -> u64 {
        match self {
            Self::None => now_ns,
            Self::Rate { bps, free_at } => {
                let bits = u128::from(bytes) * 8;
                *free_at = (*free_at).max(u128::from(now_ns) * *bps) + bits * NS_PER_S;
                free_at.div_ceil(*bps) as u64
            }
            Self::Trace {
                trace,
                number,
                left_bytes,
            } => {
                // Opportunities that nobody used in time are gone.
                if trace.moment_ns(*number) < now_ns {
                    *number = trace.first_from(now_ns);
                    *left_bytes = OPPORTUNITY_BYTES;
                }
                let mut rest_bytes = bytes + OVERHEAD_BYTES;
                loop {
                    if *left_bytes == 0 {
                        *number += 1;
                        *left_bytes = OPPORTUNITY_BYTES;
                    }
                    let used_bytes = rest_bytes.min(*left_bytes);
                    *left_bytes -= used_bytes;
                    rest_bytes -= used_bytes;
                    if rest_bytes == 0 {
                        return trace.moment_ns(*number);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
