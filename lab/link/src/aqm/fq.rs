//! FQ-CoDel (RFC 8290): flows in queues of their own, by deficit round robin. A flow that begins,
//! or sends less than its share, goes first.

use std::collections::VecDeque;

use thalweg_units::Size;

use super::{Codel, Control, Fates, Queue, Waiting};
use crate::packet;
use crate::random::splitmix64;

/// All queues of a bottleneck.
#[derive(Debug)]
pub(crate) struct FqCodel {
    flows: Vec<Flow>,
    /// Numbers of flows that have just begun, and of the others with packets.
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    quantum: i64,
    limit_bytes: u64,
    bytes: u64,
    salt: u64,
}

#[derive(Debug)]
struct Flow {
    codel: Codel,
    queue: Queue,
    /// Bytes that it may still send in this round.
    credit: i64,
    /// Whether it is in one of the lists.
    listed: bool,
}

impl FqCodel {
    pub(crate) fn new(
        control: Control,
        quantum: Size,
        flows: u32,
        limit_bytes: u64,
        salt: u64,
    ) -> Self {
        let flow = |_| Flow {
            codel: Codel::new(control),
            queue: Queue::default(),
            credit: 0,
            listed: false,
        };
        Self {
            flows: (0..flows).map(flow).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            quantum: quantum.bytes() as i64,
            limit_bytes,
            bytes: 0,
            salt,
        }
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.bytes
    }

    /// The queue of a packet.
    fn queue_index(&self, packet: &[u8]) -> usize {
        let mut hash = splitmix64(self.salt);
        packet::hash_flow(packet, |word| hash = splitmix64(hash ^ word));
        // Multiplication instead of a remainder: the upper bits are as good.
        ((u128::from(hash) * self.flows.len() as u128) >> 64) as usize
    }

    pub(crate) fn enqueue(&mut self, waiting: Waiting, fates: &mut Fates) {
        let number = self.queue_index(&waiting.packet);
        let flow = &mut self.flows[number];
        self.bytes += waiting.packet_bytes();
        flow.queue.push(waiting);
        if !flow.listed {
            flow.listed = true;
            flow.credit = self.quantum;
            self.new.push_back(number);
        }
        while self.bytes > self.limit_bytes {
            // The first of the longest, so that equal runs are equal.
            let longest = self.flows.iter_mut().rev();
            let longest = longest.max_by_key(|flow| flow.queue.bytes);
            let Some(dropped) = longest.and_then(|flow| flow.queue.pop()) else {
                return;
            };
            self.bytes -= dropped.packet_bytes();
            fates.full.push(dropped);
        }
    }

    pub(crate) fn dequeue(&mut self, now_ns: u64, fates: &mut Fates) -> Option<Waiting> {
        loop {
            let from_new = !self.new.is_empty();
            let list = if from_new {
                &mut self.new
            } else {
                &mut self.old
            };
            let number = list.pop_front()?;
            let flow = &mut self.flows[number];
            if flow.credit <= 0 {
                flow.credit += self.quantum;
                self.old.push_back(number);
                continue;
            }
            let before_bytes = flow.queue.bytes;
            let next = flow.codel.dequeue_or_drop(now_ns, &mut flow.queue, fates);
            self.bytes -= before_bytes - flow.queue.bytes;
            let Some(next) = next else {
                // A new flow without packets waits for its turn among the old: otherwise it could
                // always come first.
                if from_new {
                    self.old.push_back(number);
                } else {
                    flow.listed = false;
                }
                continue;
            };
            flow.credit -= next.packet_bytes() as i64;
            let list = if from_new {
                &mut self.new
            } else {
                &mut self.old
            };
            list.push_front(number);
            return Some(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_units::Delay;

    fn queues(limit_bytes: u64, salt: u64) -> FqCodel {
        let control = Control {
            target: Delay::from_us(5_000),
            interval: Delay::from_us(100_000),
        };
        FqCodel::new(control, Size::from_bytes(1514), 1024, limit_bytes, salt)
    }

    /// A UDP packet over IPv4 of the flow with this source port.
    fn of_flow(port: u16, bytes: usize, number: u64) -> Waiting {
        let mut packet = vec![0; bytes];
        packet[0] = 0x45;
        packet[9] = 17;
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        Waiting {
            number,
            since_ns: 0,
            packet,
        }
    }

    fn port(waiting: &Waiting) -> u16 {
        u16::from_be_bytes([waiting.packet[20], waiting.packet[21]])
    }

    #[test]
    fn flows_share_in_bytes_and_keep_their_order() {
        let (mut queues, mut fates) = (queues(u64::MAX, 1), Fates::default());
        for number in 0..1000 {
            queues.enqueue(of_flow(1, 1500, number), &mut fates);
            queues.enqueue(of_flow(2, 500, number), &mut fates);
            queues.enqueue(of_flow(2, 500, number), &mut fates);
        }
        let mut sent = [0u64; 3];
        let mut last = [0; 3];
        for _ in 0..1000 {
            let next = queues.dequeue(0, &mut fates).unwrap();
            let flow = usize::from(port(&next));
            assert!(next.number >= last[flow]);
            last[flow] = next.number;
            sent[flow] += next.packet_bytes();
        }
        // At any moment they differ by a quantum and a packet at most.
        assert!(sent[1].abs_diff(sent[2]) <= 1514 + 1500, "{sent:?}");
        assert!(fates.full.is_empty() && fates.early.is_empty());
    }

    #[test]
    fn a_sparse_flow_goes_first() {
        let (mut queues, mut fates) = (queues(u64::MAX, 1), Fates::default());
        for number in 0..100 {
            queues.enqueue(of_flow(1, 1500, number), &mut fates);
        }
        for _ in 0..10 {
            queues.dequeue(0, &mut fates);
        }
        for number in 0..5 {
            queues.enqueue(of_flow(9, 100, number), &mut fates);
            // What remains of the other's quantum at most goes before.
            let two = [(); 2].map(|()| port(&queues.dequeue(0, &mut fates).unwrap()));
            assert!(two.contains(&9), "{number}: {two:?}");
            queues.dequeue(0, &mut fates);
        }
    }

    #[test]
    fn a_full_queue_drops_from_the_head_of_the_longest() {
        let (mut queues, mut fates) = (queues(10_000, 1), Fates::default());
        queues.enqueue(of_flow(9, 100, 0), &mut fates);
        for number in 0..100 {
            queues.enqueue(of_flow(1, 1000, number), &mut fates);
            assert!(queues.queued_bytes() <= 10_000);
        }
        let dropped: Vec<_> = fates.full.iter().map(|it| (port(it), it.number)).collect();
        assert_eq!(dropped, (0..91).map(|it| (1, it)).collect::<Vec<_>>());
    }

    #[test]
    fn salts_spread_flows_and_one_salt_repeats_itself() {
        let numbers = |salt| -> Vec<usize> {
            let queues = queues(u64::MAX, salt);
            (0..500)
                .map(|port| queues.queue_index(&of_flow(port, 40, 0).packet))
                .collect()
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        let mut different = numbers(1);
        different.sort_unstable();
        different.dedup();
        // 500 balls in 1,024 bins hit 395 on average, with a standard deviation of 8.
        assert!(different.len().abs_diff(395) < 45, "{}", different.len());
    }
}
