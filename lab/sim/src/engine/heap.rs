//! The reference queue: a binary heap of (time, number of the push).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Event, EventQueue};
use crate::Time;

/// Time, number of the push, and the event's two fields.
type Entry = Reverse<(Time, u64, u32, u32)>;

/// Events in a binary heap: O(log n) a step.
#[derive(Debug, Default)]
pub struct Heap {
    events: BinaryHeap<Entry>,
    pushed: u64,
}

impl Heap {
    /// Time of the next event.
    pub fn next_time(&self) -> Option<Time> {
        self.events.peek().map(|Reverse((time, ..))| *time)
    }
}

impl EventQueue for Heap {
    fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, event: Event) {
        self.events.push(Reverse((
            event.time,
            self.pushed,
            event.what,
            event.argument,
        )));
        self.pushed += 1;
    }

    fn pop_hinting(&mut self, _: impl FnMut(&Event)) -> Option<Event> {
        let Reverse((time, _, what, argument)) = self.events.pop()?;
        Some(Event {
            time,
            what,
            argument,
        })
    }

    fn len(&self) -> usize {
        self.events.len()
    }
}
