//! A network namespace: its limits, the connections that use them, and the next limits.

use std::collections::HashMap;

use thalweg_control::diag::BufferedConnection;

use super::plan::{Bounds, Limit, Reason, Usage};
use super::record::{Changed, ChangedLimit};
use super::sysctl::{Change, Direction, NamespaceUsage};

/// Progress of open connections, by their cookies.
pub type Progresses = HashMap<u64, Progress>;

/// Progress of a connection; pairs are in the order of [`Direction::ALL`].
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    at_ns: u64,
    bytes: [u64; 2],
    bytes_per_s: [f64; 2],
}

impl Progress {
    /// Progress at a poll. A rate is that of two round trips at least: within one, data comes in
    /// bursts.
    fn advance(connection: &BufferedConnection, before: Option<&Self>, now_ns: u64) -> Self {
        let bytes = [connection.bytes_received, connection.bytes_acked];
        let Some(before) = before else {
            return Self {
                at_ns: now_ns,
                bytes,
                bytes_per_s: [0.0; 2],
            };
        };
        let span_ns = now_ns.saturating_sub(before.at_ns);
        let rtt_ns = 1000 * u64::from(connection.min_rtt_us.unwrap_or(0));
        if span_ns == 0 || span_ns < 2 * rtt_ns {
            return *before;
        }
        let rate = |at: usize| bytes[at].saturating_sub(before.bytes[at]) as f64 * 1e9;
        Self {
            at_ns: now_ns,
            bytes,
            bytes_per_s: [rate(0), rate(1)].map(|it| it / span_ns as f64),
        }
    }
}

/// A network namespace; pairs are in the order of [`Direction::ALL`].
#[derive(Debug)]
pub struct Namespace {
    /// Limits of both directions.
    pub limits: [Limit; 2],
    /// Numbers of connections at each limit.
    pub at_limit: [usize; 2],
    /// Next limits, bytes; `None`: the limit stays.
    pub wanted: [Option<(u64, Reason)>; 2],
    /// Changed limits for the record.
    pub changed: Changed,
    /// Whether the record lacks a changed limit.
    pub is_unrecorded: bool,
}

impl Namespace {
    /// A namespace as it was found, with these first limits, bytes.
    pub fn new(first: [u64; 2], now: [u64; 2], now_ns: u64) -> Self {
        let mut namespace = Self {
            limits: [0, 1].map(|at| Limit::new(first[at], now[at], now_ns)),
            at_limit: [0; 2],
            wanted: [None; 2],
            changed: Changed::default(),
            is_unrecorded: false,
        };
        for (at, to) in now.into_iter().enumerate() {
            if namespace.limits[at].is_raised() {
                namespace.note_change(at, to);
            }
        }
        namespace
    }

    /// Takes limits and connections of a poll, and computes the next limits. Without `bounds` they
    /// stay. Returns false if somebody else has changed a limit, or did before (`is_left`): raised
    /// limits then go back to the first ones.
    pub fn poll(
        &mut self,
        usage: &NamespaceUsage,
        bounds: Option<&Bounds>,
        before: &Progresses,
        after: &mut Progresses,
        now_ns: u64,
        is_left: bool,
    ) -> bool {
        let mut is_own = !is_left;
        for (limit, found) in self.limits.iter_mut().zip(usage.limits) {
            if found != limit.now_bytes {
                is_own &= !limit.is_raised();
                *limit = Limit::new(found, found, now_ns);
            }
        }
        let mut uses: [Vec<Usage>; 2] = Default::default();
        for connection in &usage.connections {
            let progress = Progress::advance(connection, before.get(&connection.cookie), now_ns);
            after.insert(connection.cookie, progress);
            let buffers = [connection.receive_buffer, connection.send_buffer];
            let rtts_us = [connection.receive_rtt_us, connection.send_rtt_us];
            for (at, uses) in uses.iter_mut().enumerate() {
                uses.push(Usage {
                    buffer_bytes: buffers[at],
                    bytes_per_s: progress.bytes_per_s[at],
                    min_rtt_us: connection.min_rtt_us.unwrap_or(0),
                    rtt_us: rtts_us[at],
                });
            }
        }
        for (at, uses) in uses.iter().enumerate() {
            let limit = &mut self.limits[at];
            self.at_limit[at] = limit.count_at(uses);
            self.wanted[at] = match is_own {
                true => bounds.and_then(|bounds| limit.next(uses, bounds, now_ns)),
                false => limit
                    .is_raised()
                    .then_some((limit.first_bytes, Reason::Rest)),
            };
        }
        is_own
    }

    /// Computes the next limits where memory comes to an end.
    pub fn step_back(&mut self, bounds: &Bounds, now_ns: u64) {
        for (limit, wanted) in self.limits.iter_mut().zip(&mut self.wanted) {
            *wanted = limit.next(&[], bounds, now_ns);
        }
    }

    /// Whether something is to be written or recorded.
    pub fn has_changes(&self) -> bool {
        self.is_unrecorded || self.wanted.iter().any(Option::is_some)
    }

    /// Whether a limit is not the first one.
    pub fn is_raised(&self) -> bool {
        self.limits.iter().any(Limit::is_raised)
    }

    /// Notes the wanted limits for the record; returns the changes.
    pub fn prepare_changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for at in 0..2 {
            let Some((to, _)) = self.wanted[at] else {
                continue;
            };
            self.note_change(at, to);
            changes.push(Change {
                direction: Direction::ALL[at],
                expected: [self.limits[at].now_bytes; 2],
                to,
            });
        }
        self.is_unrecorded = false;
        changes
    }

    fn note_change(&mut self, at: usize, to: u64) {
        self.changed[at] = ChangedLimit {
            first: self.limits[at].first_bytes,
            before: self.limits[at].now_bytes,
            now: to,
        };
        self.is_unrecorded = true;
    }

    /// Notes that a change was made; returns its reason.
    pub fn note_done(&mut self, change: &Change, now_ns: u64) -> Option<Reason> {
        let at = change.direction as usize;
        self.limits[at].note_set(change.to, now_ns);
        self.wanted[at].take().map(|(_, reason)| reason)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
mod tests {
    use super::super::plan::Memory;
    use super::*;

    const MIB: u64 = 1 << 20;
    const BOUNDS: Bounds = Bounds {
        max_bytes: 64 * MIB,
        memory: Memory {
            total_bytes: 64 << 30,
            mark_bytes: 3 << 30,
            used_bytes: 0,
        },
    };

    /// A sender at 4 MiB with 50 ms, after so many acknowledged bytes.
    fn usage(limits: [u64; 2], bytes_acked: u64) -> NamespaceUsage {
        let sender = BufferedConnection {
            cookie: 7,
            receive_buffer: 131_072,
            send_buffer: 4 * MIB,
            bytes_acked,
            bytes_received: 0,
            min_rtt_us: Some(50_000),
            send_rtt_us: 51_000,
            receive_rtt_us: 0,
        };
        NamespaceUsage {
            limits,
            connections: vec![sender],
        }
    }

    struct Polls {
        namespace: Namespace,
        progresses: Progresses,
    }

    impl Polls {
        fn new() -> Self {
            let limits = [6 * MIB, 4 * MIB];
            Self {
                namespace: Namespace::new(limits, limits, 0),
                progresses: Progresses::new(),
            }
        }

        fn poll(&mut self, limits: [u64; 2], bytes_acked: u64, at_ms: u64) -> bool {
            let mut after = Progresses::new();
            let usage = usage(limits, bytes_acked);
            let before = &self.progresses;
            let now_ns = at_ms * 1_000_000;
            let namespace = &mut self.namespace;
            let is_own = namespace.poll(&usage, Some(&BOUNDS), before, &mut after, now_ns, false);
            self.progresses = after;
            is_own
        }
    }

    #[test]
    fn rate_of_two_round_trips_raises_the_limit_of_its_direction() {
        let mut polls = Polls::new();
        let limits = [6 * MIB, 4 * MIB];
        assert!(polls.poll(limits, 0, 0));
        // One round trip and a half tells nothing.
        assert!(polls.poll(limits, 4_000_000, 75));
        assert_eq!(polls.namespace.wanted, [None; 2]);
        // 40 MB/s: four times 2 MB, which is 123 steps of 64 KiB.
        assert!(polls.poll(limits, 8_000_000, 200));
        let wanted = (123 * 65_536, Reason::Need);
        assert_eq!(polls.namespace.wanted, [None, Some(wanted)]);
        assert_eq!(polls.namespace.at_limit, [0, 1]);
        let changes = polls.namespace.prepare_changes();
        let change = Change {
            direction: Direction::Send,
            expected: [4 * MIB; 2],
            to: wanted.0,
        };
        assert_eq!(changes, [change]);
        let changed = polls.namespace.changed[1];
        let recorded = [changed.first, changed.before, changed.now];
        assert_eq!(recorded, [4 * MIB, 4 * MIB, wanted.0]);
        polls.namespace.note_done(&change, 0);
        assert!(polls.namespace.is_raised() && !polls.namespace.has_changes());
    }

    #[test]
    fn raised_limit_falls_by_memory_alone() {
        let mut namespace = Namespace::new([6 * MIB, 4 * MIB], [6 * MIB, 16 * MIB], 0);
        let mut short = BOUNDS;
        short.memory.used_bytes = short.memory.mark_bytes;
        namespace.step_back(&short, 1);
        let halved = Some((8 * MIB, Reason::Memory));
        assert_eq!(namespace.wanted, [None, halved]);
    }

    #[test]
    fn raised_limit_that_somebody_changes_is_theirs() {
        let mut polls = Polls::new();
        // Before any change of the agent another value is a new first one.
        assert!(polls.poll([8 * MIB, 4 * MIB], 0, 0));
        assert_eq!(polls.namespace.limits[0].first_bytes, 8 * MIB);
        let mut raised = Polls {
            namespace: Namespace::new([6 * MIB, 4 * MIB], [12 * MIB, 16 * MIB], 0),
            progresses: Progresses::new(),
        };
        assert!(raised.namespace.is_unrecorded);
        assert!(!raised.poll([12 * MIB, 5 * MIB], 0, 0));
        // The other one goes back.
        let back = Some((6 * MIB, Reason::Rest));
        assert_eq!(raised.namespace.wanted, [back, None]);
    }
}
