//! The event queue.
//!
//! Two queues give the same order, by time, and first in first out where times are equal:
//! [`Wheel`], which is fast, and [`Heap`], which is obviously right.

mod heap;
mod wheel;

pub use heap::Heap;
pub use wheel::Wheel;

use crate::Time;

/// A future event: 16 bytes. The simulation defines the meaning of [`Event::what`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Time of the event.
    pub time: Time,
    /// Kind of the event, and the object it concerns.
    pub what: u32,
    /// Further argument.
    pub argument: u32,
}

/// Events in order of time; of events at one time, the first pushed comes first.
pub trait EventQueue {
    /// An empty queue.
    fn new() -> Self;

    /// Adds an event, no earlier than the event last taken.
    fn push(&mut self, event: Event);

    /// Takes the next event.
    fn pop(&mut self) -> Option<Event> {
        self.pop_hinting(|_| {})
    }

    /// Takes the next event, and may call `soon` with events that follow shortly, so that their
    /// data can be prefetched. The queue decides which events, and when.
    fn pop_hinting(&mut self, soon: impl FnMut(&Event)) -> Option<Event>;

    /// Events in the queue.
    fn len(&self) -> usize;

    /// Whether the queue is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Push(u64),
        Pop,
    }

    /// Hundreds of events in few slots of 262 ns, and many of them at the same moment.
    fn crowd() -> impl Strategy<Value = Vec<Step>> {
        let delay = prop_oneof![
            0u64..4,
            (0u64..20).prop_map(|some| some * 16_384),
            0u64..600_000
        ];
        proptest::collection::vec(
            prop_oneof![3 => delay.prop_map(Step::Push), 2 => Just(Step::Pop)],
            1_000..4_000,
        )
    }

    /// Delays of every relevant size: same moment, same slot, within the wheel, beyond it.
    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let delay = prop_oneof![
            Just(0u64),
            0u64..4,
            0u64..100_000,
            0u64..4_000_000_000,
            4_200_000_000u64..4_400_000_000,
            0u64..50_000_000_000,
        ];
        proptest::collection::vec(
            prop_oneof![3 => delay.prop_map(Step::Push), 2 => Just(Step::Pop)],
            0..400,
        )
    }

    fn play<Q: EventQueue>(steps: &[Step]) -> Vec<Event> {
        let mut queue = Q::new();
        let mut now = Time::ZERO;
        let mut taken = Vec::new();
        let mut count = 0;
        for step in steps {
            match step {
                Step::Push(delay) => {
                    queue.push(Event {
                        time: now + Time::from_ps(*delay),
                        what: count,
                        argument: !count,
                    });
                    count += 1;
                }
                Step::Pop => {
                    if let Some(event) = queue.pop() {
                        now = event.time;
                        taken.push(event);
                    }
                }
            }
        }
        assert_eq!(queue.len(), count as usize - taken.len());
        while let Some(event) = queue.pop() {
            taken.push(event);
        }
        assert!(queue.is_empty());
        taken
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn wheel_and_heap_agree(steps in steps()) {
            prop_assert_eq!(play::<Wheel>(&steps), play::<Heap>(&steps));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn wheel_and_heap_agree_in_a_crowd(steps in crowd()) {
            prop_assert_eq!(play::<Wheel>(&steps), play::<Heap>(&steps));
        }
    }

    #[test]
    fn equal_times_keep_their_order_across_the_overflow() {
        // The first is beyond the wheel's horizon when it is pushed; the last is not.
        let far = Time::from_us(5_000);
        let mut queue = Wheel::new();
        let at = |time, what| Event {
            time,
            what,
            argument: 0,
        };
        queue.push(at(far, 1));
        queue.push(at(Time::from_us(2_000), 0));
        assert_eq!(queue.pop().map(|event| event.what), Some(0));
        queue.push(at(far, 2));
        assert_eq!(queue.pop().map(|event| event.what), Some(1));
        assert_eq!(queue.pop().map(|event| event.what), Some(2));
        assert_eq!(queue.pop(), None);
    }
}
