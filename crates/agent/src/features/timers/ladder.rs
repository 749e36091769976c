//! Values that timers may have, by the kernel's tick and the round trips of a network, and the number
//! of SYNs that keeps the time until `connect()` gives up.

use std::time::Duration;

/// First timeout of a SYN (RFC 6298, section 2; `TCP_TIMEOUT_INIT` in `include/net/tcp.h`).
const SYN_US: u32 = 1_000_000;
/// Longest timeout (`TCP_RTO_MAX`).
const LONGEST_US: u64 = 120_000_000;
/// Most retransmissions of a SYN (`MAX_TCP_SYNCNT`).
const SYNS_MAX: u32 = 127;
/// Longest time that a Linux peer delays an ACK in an exchange, `TCP_DELACK_MIN`, before its ticks.
pub const DELAYED_ACK_US: u32 = 40_000;
/// Tick of most kernels, that of the peer, µs.
const TICK_US: u32 = 4000;
/// Round trips from which on no floor is set: it would save less than half of a timeout.
const LONG_US: f64 = 100_000.0;
/// Lower floors, the highest first; each is tried where the one before did no harm.
const LOWER_US: [u32; 2] = [20_000, 8_000];
/// First timeouts of SYNs, likewise.
const SYN_STEPS_US: [u32; 2] = [60_000, 20_000];
/// Longest first timeout of a SYN that is worth setting.
const SYN_LONGEST_US: u32 = 500_000;

/// Values that a kernel permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ladder {
    /// Length of a tick, µs.
    pub tick_us: u32,
    /// Least floor that the operator permits, µs.
    pub least_us: u32,
    /// Longest time that the peer delays an ACK, µs, before its ticks.
    pub delayed_ack_us: u32,
}

/// Retransmissions of a SYN in a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynRetries {
    /// `net.ipv4.tcp_syn_retries`.
    pub retries: u32,
    /// `net.ipv4.tcp_syn_linear_timeouts`, the first of them, which are as far apart as the first two
    /// (Linux 6.5); 0 before.
    pub linear: u32,
}

impl Ladder {
    /// Least value that the kernel takes: two ticks (`TCP_TIMEOUT_MIN`).
    fn least(&self) -> u32 {
        self.round_up(self.least_us).max(2 * self.tick_us)
    }

    fn round_up(&self, us: u32) -> u32 {
        us.div_ceil(self.tick_us) * self.tick_us
    }

    /// Longest delay of ACKs that a socket may have instead of the kernel's, µs.
    pub fn bound_us(&self, us: u32) -> u32 {
        self.round_up(us).max(2 * self.tick_us)
    }

    /// Floor of a step, µs: 0 is the kernel's, 1 is above what the peer delays an ACK, higher ones are
    /// lower. `None`: there is no such step for round trips of this length. No floor is below the
    /// round trip: of longer timeouts it would change little, and jitter grows with the round trip.
    pub fn floor_us(&self, step: usize, rtt_us: f64) -> Option<u32> {
        if step == 0 || rtt_us >= LONG_US {
            return (step == 0).then_some(0);
        }
        let delayed_us = self.delayed_ack_us + 2 * self.tick_us.max(TICK_US);
        let first = self.round_up(delayed_us.max(rtt_us as u32));
        let wanted = std::iter::once(first).chain(LOWER_US);
        let mut floors: Vec<u32> = wanted
            .map(|us| self.round_up(us).max(self.least()))
            .collect();
        floors.retain(|us| *us == first || f64::from(*us) >= rtt_us);
        floors.dedup_by(|next, before| *next >= *before);
        floors.get(step - 1).copied()
    }

    /// Shortest first timeout of a SYN, µs.
    pub fn shortest_syn_us(&self) -> u32 {
        self.round_up(SYN_STEPS_US[SYN_STEPS_US.len() - 1])
    }

    /// First timeout of a SYN of a step, µs: 0 is the kernel's, higher steps are shorter. Three of the
    /// longest round trips, at least. `None`: there is no such step.
    pub fn syn_us(&self, step: usize, longest_rtt_us: f64) -> Option<u32> {
        if step == 0 {
            return Some(0);
        }
        let needed = (3.0 * longest_rtt_us).min(f64::from(SYN_US)) as u32 + 2 * self.tick_us;
        let us = self.round_up(needed.max(*SYN_STEPS_US.get(step - 1)?));
        (us <= SYN_LONGEST_US).then_some(us)
    }
}

impl SynRetries {
    /// Time until `connect()` gives up (`tcp_write_timeout` in `net/ipv4/tcp_timer.c`), where the first
    /// timeout is `first_us`.
    pub fn duration(&self, first_us: u32) -> Duration {
        let timeouts = (0..=self.retries + self.linear).map(|number| {
            let doubled = number.saturating_sub(self.linear).min(32);
            (u64::from(first_us) << doubled).min(LONGEST_US)
        });
        Duration::from_micros(timeouts.sum())
    }

    /// Least number of retransmissions with which `connect()` gives up no sooner than usual, where the
    /// first timeout is `first_us`.
    pub fn count_for(&self, first_us: u32) -> u32 {
        let usual = self.duration(SYN_US);
        let is_enough = |retries: &u32| {
            let changed = Self {
                retries: *retries,
                ..*self
            };
            changed.duration(first_us) >= usual
        };
        (self.retries..SYNS_MAX).find(is_enough).unwrap_or(SYNS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{DELAYED_ACK_US, Ladder, SynRetries};

    const LADDER: Ladder = Ladder {
        tick_us: 4000,
        least_us: 8000,
        delayed_ack_us: DELAYED_ACK_US,
    };

    #[test]
    fn floors_are_above_delayed_acks_first_and_never_below_the_round_trip() {
        let floors = |rtt_us| -> Vec<u32> {
            (0..5)
                .map_while(|step| LADDER.floor_us(step, rtt_us))
                .collect()
        };
        assert_eq!(floors(50.0), [0, 48_000, 20_000, 8_000]);
        assert_eq!(floors(10_000.0), [0, 48_000, 20_000]);
        assert_eq!(floors(30_000.0), [0, 48_000]);
        assert_eq!(floors(150_000.0), [0]);
        // 100 ticks a second: two of them are 20 ms, and a delayed ACK may take 50 ms.
        let slow = Ladder {
            tick_us: 10_000,
            ..LADDER
        };
        assert_eq!(slow.floor_us(1, 50.0), Some(60_000));
        assert_eq!(slow.floor_us(2, 50.0), Some(20_000));
        assert_eq!(slow.floor_us(3, 50.0), None);
        let bounded = Ladder {
            least_us: 30_000,
            ..LADDER
        };
        assert_eq!(bounded.floor_us(2, 50.0), Some(32_000));
    }

    #[test]
    fn floors_begin_lower_where_peers_bound_the_delay_of_their_acks() {
        let bound = |us| Ladder {
            delayed_ack_us: LADDER.bound_us(us),
            ..LADDER
        };
        let floors = |us| -> Vec<u32> {
            (0..5)
                .map_while(|step| bound(us).floor_us(step, 50.0))
                .collect()
        };
        assert_eq!(floors(5000), [0, 16_000, 8_000]);
        assert_eq!(floors(20_000), [0, 28_000, 20_000, 8_000]);
        assert_eq!(bound(5000).floor_us(2, 10_000.0), None);
        assert_eq!(bound(5000).floor_us(1, 80_000.0), Some(80_000));
        let fast = Ladder {
            tick_us: 1000,
            ..LADDER
        };
        assert_eq!(fast.floor_us(1, 50.0), Some(48_000));
    }

    #[test]
    fn syns_wait_for_three_of_the_longest_round_trips() {
        assert_eq!(LADDER.syn_us(0, 50.0), Some(0));
        assert_eq!(LADDER.syn_us(1, 50.0), Some(60_000));
        assert_eq!(LADDER.syn_us(2, 50.0), Some(20_000));
        assert_eq!(LADDER.syn_us(3, 50.0), None);
        assert_eq!(LADDER.syn_us(2, 30_000.0), Some(100_000));
        assert_eq!(LADDER.syn_us(1, 170_000.0), None);
    }

    /// Times of the kernel's documentation (ip-sysctl): 131 s with six retransmissions, since Linux 6.5 of
    /// four more in a line; before, 127 s.
    #[test]
    fn connect_gives_up_no_sooner() {
        let old = SynRetries {
            retries: 6,
            linear: 0,
        };
        assert_eq!(old.duration(1_000_000), Duration::from_secs(127));
        let new = SynRetries { linear: 4, ..old };
        assert_eq!(new.duration(1_000_000), Duration::from_secs(131));
        for kernel in [old, new] {
            for first_us in [20_000, 60_000, 250_000, 1_000_000] {
                let retries = kernel.count_for(first_us);
                let changed = SynRetries { retries, ..kernel };
                let (usual, time) = (kernel.duration(1_000_000), changed.duration(first_us));
                assert!(time >= usual, "{first_us}: {time:?}");
                assert!(time < usual * 2, "{first_us}: {time:?}");
            }
        }
        assert_eq!(new.count_for(1_000_000), 6);
        assert_eq!(new.count_for(20_000), 12);
    }
}
