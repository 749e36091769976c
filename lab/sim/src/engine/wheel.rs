//! A timing wheel (Varghese and Lauck 1987) with a heap for events beyond it.
//!
//! A slot is 2^18 ps, 262 ns: three packets of 1 KiB at 100 Gbit/s. So it holds a handful of
//! events, which are sorted when the slot comes up. 16,384 slots reach 4.29 ms ahead, further than
//! most timers of a datacenter.
//!
//! Where hosts send far more than a link carries, a slot holds hundreds of events, and most of them
//! push another one into the same slot. Such a slot is split into parts when it comes up, so that a
//! push still finds its place at once.

use super::{Event, EventQueue, Heap};
use crate::Time;
use crate::prefetch::prefetch_lines;

const SLOT_BITS: u32 = 18;
const SLOTS: u64 = 1 << 14;
/// Events in a chunk.
const CHUNK: usize = 5;
/// A slot with more events than this is split.
const DENSE: usize = 64;
/// A part of a slot is 2^14 ps, 16 ns.
const PART_BITS: u32 = 14;
const PARTS: usize = 1 << (SLOT_BITS - PART_BITS);

/// An event of a known slot.
#[derive(Debug, Clone, Copy, Default)]
struct Short {
    /// Offset from the start of the slot, ps.
    after: u32,
    what: u32,
    argument: u32,
}

/// Some events of one slot: a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Chunk {
    events: [Short; CHUNK],
    /// The previously filled chunk of the same slot, or the next unused chunk.
    before: u32,
}

const _: () = assert!(size_of::<Chunk>() == 64);

/// The newest chunk of a slot, and its number of events: [`CHUNK`] if there is no chunk. Four
/// bytes, because pushes go to distant slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head(u32);

/// Three bits count events. The other 29 number chunks, below [`NONE`].
const USED_BITS: u32 = 3;
const NONE: u32 = u32::MAX >> USED_BITS;
const EMPTY: Head = Head::new(NONE, CHUNK);

impl Head {
    const fn new(chunk: u32, used: usize) -> Self {
        Self(chunk << USED_BITS | used as u32)
    }

    fn newest_chunk(self) -> u32 {
        self.0 >> USED_BITS
    }

    fn used_entries(self) -> usize {
        (self.0 & ((1 << USED_BITS) - 1)) as usize
    }
}

/// Events in slots of time: O(1) a step.
#[derive(Debug)]
pub struct Wheel {
    /// Events of the current slot, or of its current part, latest first.
    current: Vec<Event>,
    /// Number of that slot since time zero.
    slot: u64,
    /// Later parts of the current slot, if it is split, in the order of their pushes.
    parts: [Vec<Event>; PARTS],
    /// The current part; the last one in a slot that is not split.
    part: usize,
    /// Events in `parts`.
    parted: usize,
    heads: Vec<Head>,
    /// One bit per slot: whether it has events.
    occupied: Vec<u64>,
    chunks: Vec<Chunk>,
    /// List of unused chunks.
    free: u32,
    /// Events in `chunks`.
    waiting: usize,
    /// Events beyond the last slot.
    overflow: Heap,
    /// Slot of the first event in `overflow`.
    overflow_slot: u64,
}

fn slot_of(time: Time) -> u64 {
    time.ps() >> SLOT_BITS
}

fn part_of(time: Time) -> usize {
    (time.ps() >> PART_BITS) as usize % PARTS
}

impl Wheel {
    #[inline]
    fn file_event(&mut self, event: Event) {
        let index = (slot_of(event.time) % SLOTS) as usize;
        let mut head = self.heads[index];
        if head.used_entries() == CHUNK {
            head = self.append_chunk(head.newest_chunk());
            self.occupied[index / 64] |= 1 << (index % 64);
        }
        self.chunks[head.newest_chunk() as usize].events[head.used_entries()] = Short {
            after: (event.time.ps() & ((1 << SLOT_BITS) - 1)) as u32,
            what: event.what,
            argument: event.argument,
        };
        self.heads[index] = Head::new(head.newest_chunk(), head.used_entries() + 1);
        self.waiting += 1;
    }

    /// A new, empty chunk for a slot whose newest chunk is `before`.
    #[inline]
    fn append_chunk(&mut self, before: u32) -> Head {
        let chunk = self.free;
        if chunk == NONE {
            // Fewer than 2^29 chunks are in use: more would take 34 GB.
            self.chunks.push(Chunk {
                events: Default::default(),
                before,
            });
            return Head::new((self.chunks.len() - 1) as u32, 0);
        }
        let unused = &mut self.chunks[chunk as usize];
        self.free = std::mem::replace(&mut unused.before, before);
        Head::new(chunk, 0)
    }

    /// Moves events that now fit the wheel out of the overflow. This happens before a push can
    /// reach those slots directly, so equal times keep their order.
    fn drain_overflow(&mut self) {
        while self.overflow_slot < self.slot + SLOTS {
            if let Some(event) = self.overflow.pop() {
                self.file_event(event);
            }
            self.overflow_slot = self.overflow.next_time().map_or(u64::MAX, slot_of);
        }
    }

    /// The next slot after the current one that has events.
    #[inline]
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
        // Once around, and then the low bits of the first word.
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

    /// Splits the events of the current slot.
    #[cold]
    fn split_slot(&mut self) {
        // The last push is the first of the list.
        for event in self.current.drain(..).rev() {
            self.parts[part_of(event.time)].push(event);
            self.parted += 1;
        }
        self.part = 0;
        self.take_part();
    }

    /// Makes the next part that has events the current one; there is one.
    #[cold]
    fn take_part(&mut self) {
        while self.parts[self.part].is_empty() {
            self.part += 1;
        }
        std::mem::swap(&mut self.current, &mut self.parts[self.part]);
        self.parted -= self.current.len();
        self.current.reverse();
        sort_latest_first(&mut self.current);
    }

    /// Advances to the next part or slot that has events.
    fn advance_wheel(&mut self, mut soon: impl FnMut(&Event)) -> bool {
        if self.parted > 0 {
            self.take_part();
            self.current.iter().for_each(soon);
            return true;
        }
        let slot = match self.next_occupied() {
            Some(slot) => slot,
            None if self.overflow_slot != u64::MAX => self.overflow_slot,
            None => return false,
        };
        self.slot = slot;
        self.drain_overflow();
        let index = (slot % SLOTS) as usize;
        let mut head = std::mem::replace(&mut self.heads[index], EMPTY);
        self.occupied[index / 64] &= !(1 << (index % 64));
        let begin = slot << SLOT_BITS;
        while head != EMPTY {
            let chunk = &mut self.chunks[head.newest_chunk() as usize];
            for short in chunk.events[..head.used_entries()].iter().rev() {
                let event = Event {
                    time: Time::from_ps(begin | u64::from(short.after)),
                    what: short.what,
                    argument: short.argument,
                };
                soon(&event);
                self.current.push(event);
            }
            self.waiting -= head.used_entries();
            let before = std::mem::replace(&mut chunk.before, self.free);
            self.free = head.newest_chunk();
            head = Head::new(before, CHUNK);
        }
        if let Some(next) = self.next_occupied() {
            let head = self.heads[(next % SLOTS) as usize];
            prefetch_lines::<_, 1>(&self.chunks[head.newest_chunk() as usize]);
        }
        self.part = PARTS - 1;
        if self.current.len() > DENSE {
            self.split_slot();
        } else {
            sort_latest_first(&mut self.current);
        }
        true
    }
}

/// Sorts latest first. The list begins with the last push, and the stable sort keeps it before its
/// equals.
#[inline]
fn sort_latest_first(events: &mut [Event]) {
    if events.len() > 24 {
        events.sort_by_key(|event| std::cmp::Reverse(event.time));
        return;
    }
    for end in 1..events.len() {
        let event = events[end];
        let mut place = end;
        while place > 0 && events[place - 1].time < event.time {
            events[place] = events[place - 1];
            place -= 1;
        }
        events[place] = event;
    }
}

impl EventQueue for Wheel {
    fn new() -> Self {
        Self {
            current: Vec::new(),
            slot: 0,
            parts: Default::default(),
            part: PARTS - 1,
            parted: 0,
            heads: vec![EMPTY; SLOTS as usize],
            occupied: vec![0; SLOTS as usize / 64],
            chunks: Vec::new(),
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
            let part = part_of(event.time);
            if part > self.part && slot == self.slot {
                self.parts[part].push(event);
                self.parted += 1;
                return;
            }
            let place = self
                .current
                .iter()
                .rposition(|other| other.time > event.time)
                .map_or(0, |place| place + 1);
            self.current.insert(place, event);
        } else if slot < self.slot + SLOTS {
            self.file_event(event);
        } else {
            self.overflow.push(event);
            self.overflow_slot = self.overflow_slot.min(slot);
        }
    }

    /// `soon` gets all events of a slot when the slot comes up.
    #[inline]
    fn pop_hinting(&mut self, mut soon: impl FnMut(&Event)) -> Option<Event> {
        loop {
            if let Some(event) = self.current.pop() {
                return Some(event);
            }
            if !self.advance_wheel(&mut soon) {
                return None;
            }
        }
    }

    fn len(&self) -> usize {
        self.current.len() + self.parted + self.waiting + self.overflow.len()
    }
}
