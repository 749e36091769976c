//! Arithmetic of buffer limits: when a limit rises and falls, and how far. No I/O, no clock.
//!
//! A path holds rate × least RTT. A sender keeps that much again, as lost segments are sent once more,
//! and the kernel reserves half of a buffer for its overhead (`tcp_sndbuf_expand` in
//! net/ipv4/tcp_input.c, `tcp_win_from_space`): four times as much is needed. Least RTT, not its mean:
//! a buffer that only lengthens a queue asks for no larger one.

/// Need of a connection, as a multiple of rate × least RTT.
const NEED: f64 = 4.0;
/// Queue that counts as none: a quarter of the least RTT as a divisor, and 1 ms, for late answers.
const QUEUE_PART: u32 = 4;
const LATE_US: u32 = 1000;
/// Least relative growth that is worth a change, as a divisor.
const STEPS: u64 = 4;
/// Largest part of the machine's memory for one buffer, as a divisor.
const MEMORY_PART: u64 = 64;
/// Limits are multiples of this many bytes.
const ROUND_BYTES: u64 = 64 << 10;
/// Time without need after which a limit is halved, ns.
const REST_NS: u64 = 600_000_000_000;

/// Use of a buffer by an open connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Size of the buffer, bytes.
    pub buffer_bytes: u64,
    /// Rate since the last poll, bytes per second.
    pub bytes_per_s: f64,
    /// Least RTT, µs.
    pub min_rtt_us: u32,
    /// Smoothed RTT, µs; 0: not measured.
    pub rtt_us: u32,
}

impl Usage {
    /// Buffer that the rate needs, bytes.
    fn needed_bytes(&self) -> u64 {
        (NEED * self.bytes_per_s * f64::from(self.min_rtt_us) / 1e6) as u64
    }

    /// Whether the path has a queue: it is full, and a larger buffer would only lengthen the queue.
    fn has_queue(&self) -> bool {
        self.rtt_us > self.min_rtt_us + self.min_rtt_us / QUEUE_PART + LATE_US
    }
}

/// Memory of all TCP sockets, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The machine's memory.
    pub total_bytes: u64,
    /// Memory of sockets beyond which limits fall ([`Memory::mark`]).
    pub mark_bytes: u64,
    /// Memory of sockets now.
    pub used_bytes: u64,
}

impl Memory {
    /// Mark for a `net.ipv4.tcp_mem` in bytes: where the kernel's pressure would end, and before three
    /// quarters of where it begins.
    pub fn mark([low, pressure, _]: [u64; 3]) -> u64 {
        low.min(pressure / 4 * 3)
    }

    /// Whether limits must fall.
    pub fn is_short(&self) -> bool {
        self.used_bytes >= self.mark_bytes
    }
}

/// Bound of a limit by configuration and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// `buffers.max`, bytes.
    pub max_bytes: u64,
    /// Memory of sockets.
    pub memory: Memory,
}

/// Direction of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Connections need more.
    Need,
    /// No connection has needed it for long.
    Rest,
    /// Memory of sockets comes to an end.
    Memory,
}

/// A limit: the third number of `tcp_rmem` or `tcp_wmem` of a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Limit before the agent's first change, bytes.
    pub first_bytes: u64,
    /// Limit in force, bytes.
    pub now_bytes: u64,
    /// Time of the last need of the present limit, ns.
    used_ns: u64,
}

impl Limit {
    /// A limit as it was found.
    pub fn new(first_bytes: u64, now_bytes: u64, now_ns: u64) -> Self {
        Self {
            first_bytes,
            now_bytes,
            used_ns: now_ns,
        }
    }

    /// Whether the agent has raised it.
    pub fn is_raised(&self) -> bool {
        self.now_bytes != self.first_bytes
    }

    /// Number of connections whose buffer has grown up to the limit. The kernel cuts growth to exactly
    /// this size.
    pub fn count_at(&self, usages: &[Usage]) -> usize {
        let at = usages.iter();
        at.filter(|it| it.buffer_bytes == self.now_bytes).count()
    }

    /// The next limit, bytes, for connections at a time; `None`: it stays.
    pub fn next(
        &mut self,
        usages: &[Usage],
        bounds: &Bounds,
        now_ns: u64,
    ) -> Option<(u64, Reason)> {
        let now = self.now_bytes;
        let halved = || (now / 2).max(self.first_bytes);
        let needed = usages.iter().map(Usage::needed_bytes).max().unwrap_or(0);
        if 2 * needed >= now {
            self.used_ns = now_ns;
        }
        if bounds.memory.is_short() {
            return self.is_raised().then(|| (halved(), Reason::Memory));
        }
        let at_limit = usages.iter().filter(|it| it.buffer_bytes == now);
        let at_limit = at_limit.filter(|it| !it.has_queue());
        let needed = at_limit.map(Usage::needed_bytes).max().unwrap_or(0);
        let target = needed
            .next_multiple_of(ROUND_BYTES)
            .min(self.bound(usages, bounds));
        if target >= now + now / STEPS {
            return Some((target, Reason::Need));
        }
        let is_idle = now_ns.saturating_sub(self.used_ns) >= REST_NS;
        (is_idle && self.is_raised()).then(|| (halved(), Reason::Rest))
    }

    /// Notes that a limit is in force.
    pub fn note_set(&mut self, now_bytes: u64, now_ns: u64) {
        self.now_bytes = now_bytes;
        self.used_ns = now_ns;
    }

    /// Largest limit: all connections at the limit may together take half of the memory that sockets
    /// have left.
    fn bound(&self, usages: &[Usage], bounds: &Bounds) -> u64 {
        let memory = &bounds.memory;
        let left = memory.mark_bytes.saturating_sub(memory.used_bytes) / 2;
        let each = left / self.count_at(usages).max(1) as u64;
        (self.now_bytes + each)
            .min(bounds.max_bytes)
            .min(memory.total_bytes / MEMORY_PART)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn bounds() -> Bounds {
        Bounds {
            max_bytes: 128 * MIB,
            memory: Memory {
                total_bytes: 64 * GIB,
                mark_bytes: 3 * GIB,
                used_bytes: 0,
            },
        }
    }

    /// A connection at 4 MiB that carries 20 MB/s with 100 ms: 2 MB in flight.
    fn usage() -> Usage {
        Usage {
            buffer_bytes: 4 * MIB,
            bytes_per_s: 20e6,
            min_rtt_us: 100_000,
            rtt_us: 101_000,
        }
    }

    fn limit() -> Limit {
        Limit::new(4 * MIB, 4 * MIB, 0)
    }

    fn next(limit: Limit, usages: &[Usage], bounds: &Bounds, now_ns: u64) -> Option<(u64, Reason)> {
        let mut limit = limit;
        limit.next(usages, bounds, now_ns)
    }

    #[test]
    fn limit_at_which_connections_move_rises_to_four_times_the_path() {
        // 4 × 20 MB/s × 0.1 s = 8 MB, which is 123 steps of 64 KiB.
        let raised = next(limit(), &[usage()], &bounds(), 1);
        assert_eq!(raised, Some((123 * 65_536, Reason::Need)));
        // A full path asks for no more: 50 MB/s × 20 ms × 4 are 4 MB.
        let full = Usage {
            bytes_per_s: 50e6,
            min_rtt_us: 20_000,
            rtt_us: 20_000,
            ..usage()
        };
        assert_eq!(next(limit(), &[full], &bounds(), 1), None);
        // So does one with a queue, of more than a quarter of the least RTT and 1 ms.
        let queued = |rtt_us| Usage { rtt_us, ..usage() };
        assert_eq!(next(limit(), &[queued(126_001)], &bounds(), 1), None);
        assert_eq!(next(limit(), &[queued(126_000)], &bounds(), 1), raised);
        // A buffer below the limit still grows by itself; one beyond it is the application's.
        for buffer_bytes in [4 * MIB - 1, 4 * MIB + 1] {
            let other = Usage {
                buffer_bytes,
                ..usage()
            };
            assert_eq!(next(limit(), &[other], &bounds(), 1), None);
        }
        // A stalled connection has a full buffer, and no rate.
        let stalled = Usage {
            bytes_per_s: 0.0,
            ..usage()
        };
        assert_eq!(next(limit(), &[stalled; 2000], &bounds(), 1), None);
    }

    #[test]
    fn limit_keeps_below_each_bound() {
        let fast = Usage {
            bytes_per_s: 1.25e9,
            ..usage()
        };
        let raised =
            |bounds: &Bounds, usages: &[Usage]| next(limit(), usages, bounds, 1).unwrap().0;
        // 4 × 1.25 GB/s × 0.1 s are 500 MB.
        assert_eq!(raised(&bounds(), &[fast]), 128 * MIB);
        let mut small = bounds();
        small.memory.total_bytes = 2 * GIB;
        assert_eq!(raised(&small, &[fast]), 32 * MIB);
        // Half of 64 MiB is left for four connections.
        let mut used = bounds();
        used.memory.used_bytes = used.memory.mark_bytes - 64 * MIB;
        assert_eq!(raised(&used, &[fast; 4]), 12 * MIB);
        // A quarter more at least.
        used.memory.used_bytes = used.memory.mark_bytes - 7 * MIB;
        assert_eq!(next(limit(), &[fast; 4], &used, 1), None);
    }

    #[test]
    fn limit_falls_by_halves_to_the_first_before_memory_ends() {
        let mut short = bounds();
        short.memory.used_bytes = short.memory.mark_bytes;
        let at = |now: u64| Limit::new(4 * MIB, now, 0);
        let fallen = |now| next(at(now), &[usage()], &short, 1);
        assert_eq!(fallen(32 * MIB), Some((16 * MIB, Reason::Memory)));
        assert_eq!(fallen(6 * MIB), Some((4 * MIB, Reason::Memory)));
        assert_eq!(fallen(4 * MIB), None);
        // Kernels set low to three quarters of pressure; an operator may set them equal.
        assert_eq!(Memory::mark([75, 100, 150]), 75);
        assert_eq!(Memory::mark([100, 100, 150]), 75);
    }

    #[test]
    fn limit_without_need_falls_after_a_rest() {
        let mut limit = Limit::new(4 * MIB, 16 * MIB, 0);
        // 8 MB are needed, by a buffer that has grown to 10 MiB.
        let grown = Usage {
            buffer_bytes: 10 * MIB,
            bytes_per_s: 21e6,
            ..usage()
        };
        let slow = Usage {
            bytes_per_s: 1e6,
            ..grown
        };
        assert_eq!(limit.next(&[grown], &bounds(), REST_NS - 1), None);
        assert_eq!(limit.next(&[slow], &bounds(), 2 * REST_NS - 2), None);
        let fallen = limit.next(&[slow], &bounds(), 2 * REST_NS - 1);
        assert_eq!(fallen, Some((8 * MIB, Reason::Rest)));
        limit.note_set(8 * MIB, 2 * REST_NS);
        assert_eq!(limit.next(&[], &bounds(), 2 * REST_NS + 1), None);
        let fallen = limit.next(&[], &bounds(), 3 * REST_NS);
        assert_eq!(fallen, Some((4 * MIB, Reason::Rest)));
        limit.note_set(4 * MIB, 3 * REST_NS);
        assert_eq!(limit.next(&[], &bounds(), 9 * REST_NS), None);
    }
}
