//! CoDel (RFC 8289, section 5), with marks for packets that can carry them (RFC 8290, section 4.2).

use super::{Control, Fates, Queue, Waiting};
use crate::packet;

/// A queue with no more than this is never too long: one packet.
const PACKET_BYTES: u64 = 1500;

/// The state of one queue's control, in the RFC's words.
#[derive(Debug)]
pub(crate) struct Codel {
    target_ns: u64,
    interval_ns: u64,
    /// When packets will have waited too long for an interval.
    first_above_ns: Option<u64>,
    dropping: bool,
    drop_next_ns: u64,
    /// Drops since it began to drop.
    count: u32,
    /// The count when it last began.
    last_count: u32,
}

impl Codel {
    pub(crate) fn new(control: Control) -> Self {
        Self {
            target_ns: control.target.ns(),
            interval_ns: control.interval.ns(),
            first_above_ns: None,
            dropping: false,
            drop_next_ns: 0,
            count: 0,
            last_count: 0,
        }
    }

    /// Takes the next packet to be sent, and drops or marks.
    pub(crate) fn dequeue_or_drop(
        &mut self,
        now_ns: u64,
        queue: &mut Queue,
        fates: &mut Fates,
    ) -> Option<Waiting> {
        let (mut next, mut too_long) = self.next(now_ns, queue);
        if self.dropping {
            if !too_long {
                self.dropping = false;
            }
            while self.dropping && now_ns >= self.drop_next_ns {
                let due_ns = self.drop_next_ns;
                self.count = self.count.saturating_add(1);
                if mark_or_drop(&mut next, fates) {
                    self.drop_next_ns = self.next_drop_ns(due_ns);
                    break;
                }
                (next, too_long) = self.next(now_ns, queue);
                if too_long {
                    self.drop_next_ns = self.next_drop_ns(due_ns);
                } else {
                    self.dropping = false;
                }
            }
        } else if too_long {
            if !mark_or_drop(&mut next, fates) {
                (next, _) = self.next(now_ns, queue);
            }
            self.begin_dropping(now_ns);
        }
        next
    }

    /// The packet at the head, and whether packets have waited too long for an interval.
    fn next(&mut self, now_ns: u64, queue: &mut Queue) -> (Option<Waiting>, bool) {
        let Some(next) = queue.pop() else {
            self.first_above_ns = None;
            return (None, false);
        };
        if now_ns - next.since_ns < self.target_ns || queue.bytes <= PACKET_BYTES {
            self.first_above_ns = None;
            return (Some(next), false);
        }
        let due_ns = *self.first_above_ns.get_or_insert(now_ns + self.interval_ns);
        (Some(next), now_ns >= due_ns)
    }

    fn begin_dropping(&mut self, now_ns: u64) {
        self.dropping = true;
        // If it has not stopped for long, it goes on where it controlled the queue.
        let delta = self.count - self.last_count;
        let recent = now_ns.saturating_sub(self.drop_next_ns) < 16 * self.interval_ns;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next_ns = self.next_drop_ns(now_ns);
        self.last_count = self.count;
    }

    /// The control law: drops are the closer the more there were.
    fn next_drop_ns(&self, from_ns: u64) -> u64 {
        from_ns + (self.interval_ns as f64 / f64::from(self.count).sqrt()).round() as u64
    }
}

/// Marks a packet and keeps it, or drops it. Returns whether it was kept.
fn mark_or_drop(next: &mut Option<Waiting>, fates: &mut Fates) -> bool {
    let Some(waiting) = next else {
        return true;
    };
    if packet::mark_ce(&mut waiting.packet) {
        fates.marked += 1;
        return true;
    }
    fates.early.extend(next.take());
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_units::Delay;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MS;
    const STEP: u64 = MS / 100;
    /// Drops in 3.9 s. The law's sum, 100 ms × (1 + 1/√2 + … + 1/√n), is 100 ms × (2√n − 1.46).
    const EXPECTED: std::ops::RangeInclusive<usize> = 408..=411;

    fn codel() -> Codel {
        Codel::new(Control {
            target: Delay::from_us(5_000),
            interval: Delay::from_us(100_000),
        })
    }

    fn waiting(since_ns: u64, ecn: u8) -> Waiting {
        let mut packet = vec![0; 1500];
        packet[..2].copy_from_slice(&[0x45, ecn]);
        Waiting {
            number: 0,
            since_ns,
            packet,
        }
    }

    /// Moments of drops and of marks of a queue that always has packets which waited 20 ms.
    fn standing(codel: &mut Codel, from_ns: u64, until_ns: u64, ecn: u8) -> [Vec<u64>; 2] {
        let mut queue = Queue::default();
        let (mut drops, mut marks) = (Vec::new(), Vec::new());
        for now_ns in (from_ns..until_ns).step_by(STEP as usize) {
            while queue.packets.len() < 4 {
                queue.push(waiting(now_ns - 20 * MS, ecn));
            }
            let mut fates = Fates::default();
            assert!(
                codel
                    .dequeue_or_drop(now_ns, &mut queue, &mut fates)
                    .is_some()
            );
            drops.extend(fates.early.iter().map(|_| now_ns));
            marks.extend((0..fates.marked).map(|_| now_ns));
        }
        [drops, marks]
    }

    /// Whether moments follow the law, each late by at most a step, from a count.
    fn follows_the_law(moments: &[u64], count: u32) {
        let mut due_ns = moments[0] as f64;
        for (number, pair) in (count..).zip(moments.windows(2)) {
            due_ns += 100.0 * MS as f64 / f64::from(number).sqrt();
            let late_ns = pair[1] as f64 - due_ns;
            // A microsecond for roundings.
            let allowed = -1e3..=STEP as f64 + 1e3;
            assert!(
                allowed.contains(&late_ns),
                "drop {number}: {late_ns} ns late"
            );
        }
    }

    #[test]
    fn drops_begin_after_an_interval_and_come_at_interval_over_root_of_count() {
        let mut codel = codel();
        let [drops, marks] = standing(&mut codel, SECOND, 5 * SECOND, 0);
        assert_eq!(drops[0], SECOND + 100 * MS);
        assert!(EXPECTED.contains(&drops.len()), "{}", drops.len());
        follows_the_law(&drops, 1);
        assert!(marks.is_empty(), "{marks:?}");
    }

    #[test]
    fn capable_packets_are_marked_by_the_same_law() {
        let [drops, marks] = standing(&mut codel(), SECOND, 5 * SECOND, 0b10);
        assert!(drops.is_empty(), "{drops:?}");
        assert!(EXPECTED.contains(&marks.len()), "{}", marks.len());
        follows_the_law(&marks, 1);
    }

    #[test]
    fn it_goes_on_where_it_was_if_it_stopped_just_now() {
        let mut codel = codel();
        let [drops, _] = standing(&mut codel, SECOND, 2 * SECOND, 0);
        let count = drops.len() as u32;
        assert!(count > 15);
        // One packet that came just now ends the dropping.
        let pause = |codel: &mut Codel, at_ns| {
            let mut queue = Queue::default();
            queue.push(waiting(at_ns, 0));
            let mut fates = Fates::default();
            assert!(
                codel
                    .dequeue_or_drop(at_ns, &mut queue, &mut fates)
                    .is_some()
            );
            assert!(fates.early.is_empty());
        };
        pause(&mut codel, 2 * SECOND);
        let [again, _] = standing(&mut codel, 2 * SECOND + MS, 3 * SECOND, 0);
        assert_eq!(again[0], 2 * SECOND + 101 * MS);
        follows_the_law(&again, count - 1);
        // After sixteen intervals it begins anew.
        pause(&mut codel, 3 * SECOND);
        let [anew, _] = standing(&mut codel, 10 * SECOND, 11 * SECOND, 0);
        follows_the_law(&anew, 1);
    }

    #[test]
    fn short_waits_short_bursts_and_single_packets_are_left_alone() {
        let mut codel = codel();
        let mut fates = Fates::default();
        let mut queue = Queue::default();
        for now_ns in (SECOND..4 * SECOND).step_by(MS as usize) {
            // Long enough for 95 of 100 ms; then a packet that hardly waited.
            let in_burst = now_ns % (100 * MS) < 95 * MS;
            let age_ns = if in_burst { 50 * MS } else { 4 * MS };
            for _ in 0..3 {
                queue.push(waiting(now_ns - age_ns, 0));
            }
            while codel
                .dequeue_or_drop(now_ns, &mut queue, &mut fates)
                .is_some()
            {}
            // However old, a lone packet is all there is.
            queue.push(waiting(now_ns - 500 * MS, 0));
            assert!(
                codel
                    .dequeue_or_drop(now_ns, &mut queue, &mut fates)
                    .is_some()
            );
        }
        assert!(fates.early.is_empty() && fates.marked == 0);
    }
}
