//! A timing wheel (Varghese and Lauck 1987) with a heap for what lies beyond it.
//!
//! A slot is 2^16 ps, 65.5 ns: less than a packet of 1 KiB takes at 100 Gbit/s, so that a slot
//! holds few events. 65,536 slots reach 4.29 ms ahead, further than most of what a datacenter
//! waits for.

use super::{Event, EventQueue, Heap};
use crate::Time;

const SLOT_BITS: u32 = 16;
const SLOTS: u64 = 1 << 16;
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    event: Event,
    next: u32,
}

/// Events in slots of time: O(1) a step.
#[derive(Debug)]
pub struct Wheel {
    /// Events of the slot that time has reached, latest first.
    current: Vec<Event>,
    /// Number of that slot since the begin of time.
    slot: u64,
    /// First node of each slot; a slot's list begins with what came last.
    heads: Vec<u32>,
    /// One bit a slot: whether it has a list.
    occupied: Vec<u64>,
    nodes: Vec<Node>,
    /// List of unused nodes.
    free: u32,
    /// Events in `nodes`.
    waiting: usize,
    /// Events beyond the last slot.
    overflow: Heap,
    /// Slot of the first event in `overflow`.
    overflow_slot: u64,
}

fn slot_of(time: Time) -> u64 {
    time.ps() >> SLOT_BITS
}

impl Wheel {
    fn file(&mut self, event: Event) {
        let index = (slot_of(event.time) % SLOTS) as usize;
        let node = Node {
            event,
            next: self.heads[index],
        };
        let place = self.free;
        self.heads[index] = if place == NONE {
            self.nodes.push(node);
            // Fewer than 2^32 events wait at once: they would take 100 GB.
            (self.nodes.len() - 1) as u32
        } else {
            self.free = self.nodes[place as usize].next;
            self.nodes[place as usize] = node;
            place
        };
        self.occupied[index / 64] |= 1 << (index % 64);
        self.waiting += 1;
    }

    /// Moves what the wheel can now hold out of the overflow. This happens before anything can
    /// be pushed to those slots directly, so equal times keep their order.
    fn refill(&mut self) {
        while self.overflow_slot < self.slot + SLOTS {
            if let Some(event) = self.overflow.pop() {
                self.file(event);
            }
            self.overflow_slot = self.overflow.next_time().map_or(u64::MAX, slot_of);
        }
    }

    /// The next slot after the current one that has events.
    fn next_occupied(&self) -> Option<u64> {
        if self.waiting == 0 {
            return None;
        }
        let begin = self.slot + 1;
        let index = (begin % SLOTS) as usize;
        let words = self.occupied.len();
        let (first, bit) = (index / 64, index % 64);
        let mut word = self.occupied[first] & (!0 << bit);
        let mut at = first;
        // Once around, and the low bits of the first word again.
        for _ in 0..=words {
            if word != 0 {
                let found = at * 64 + word.trailing_zeros() as usize;
                return Some(begin + ((found + SLOTS as usize - index) as u64 % SLOTS));
            }
            at = (at + 1) % words;
            word = self.occupied[at];
        }
        None
    }

    /// Goes to the next slot that has events.
    fn turn(&mut self) -> bool {
        let slot = match self.next_occupied() {
            Some(slot) => slot,
            None if self.overflow_slot != u64::MAX => self.overflow_slot,
            None => return false,
        };
        self.slot = slot;
        self.refill();
        let index = (slot % SLOTS) as usize;
        let mut at = std::mem::replace(&mut self.heads[index], NONE);
        self.occupied[index / 64] &= !(1 << (index % 64));
        while at != NONE {
            let Node { event, next } = self.nodes[at as usize];
            self.nodes[at as usize].next = self.free;
            self.free = at;
            at = next;
            self.waiting -= 1;
            self.current.push(event);
        }
        // Latest first; the list began with what came last, and a stable sort keeps it before
        // its equals.
        if self.current.len() <= 24 {
            for end in 1..self.current.len() {
                let mut place = end;
                while place > 0 && self.current[place - 1].time < self.current[place].time {
                    self.current.swap(place - 1, place);
                    place -= 1;
                }
            }
        } else {
            self.current
                .sort_by_key(|event| std::cmp::Reverse(event.time));
        }
        true
    }
}

impl EventQueue for Wheel {
    fn new() -> Self {
        Self {
            current: Vec::new(),
            slot: 0,
            heads: vec![NONE; SLOTS as usize],
            occupied: vec![0; SLOTS as usize / 64],
            nodes: Vec::new(),
            free: NONE,
            waiting: 0,
            overflow: Heap::new(),
            overflow_slot: u64::MAX,
        }
    }

    #[inline]
    fn push(&mut self, event: Event) {
        let slot = slot_of(event.time);
        if slot <= self.slot {
            let place = self
                .current
                .iter()
                .rposition(|other| other.time > event.time)
                .map_or(0, |place| place + 1);
            self.current.insert(place, event);
        } else if slot < self.slot + SLOTS {
            self.file(event);
        } else {
            self.overflow.push(event);
            self.overflow_slot = self.overflow_slot.min(slot);
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.current.pop() {
                return Some(event);
            }
            if !self.turn() {
                return None;
            }
        }
    }

    fn len(&self) -> usize {
        self.current.len() + self.waiting + self.overflow.len()
    }
}
