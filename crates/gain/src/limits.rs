//! What holds connections up, by the kernel's chronographs: the receiver's window, the send buffer,
//! the application, or else the network, of which alone a congestion control is in charge.

use crate::baseline::Connection;

/// Share of its busy time beyond which a limit holds a connection up.
const HELD: f64 = 0.25;
/// A connection counts for at most this much busy time, 10 s: one that hung for an hour would
/// otherwise outweigh all others.
const BUSY_MAX_US: f64 = 10e6;

/// Times that the kernel counted in a connection, µs. The rest is in [`Connection::busy_us`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chronographs {
    /// From establishment to the end.
    pub open_us: u64,
    /// Part of the busy time in which the receiver's window was full.
    pub receiver_us: u64,
    /// Part of the busy time in which the send buffer was full.
    pub buffer_us: u64,
}

/// A limit that no congestion control can lift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The window that the receiver advertises.
    Receiver,
    /// The send buffer.
    Buffer,
}

impl Connection {
    /// Share of the connection that each sum takes.
    fn counted_terms(&self) -> f64 {
        (BUSY_MAX_US / self.busy_us as f64).min(1.0)
    }

    /// Whether the receiver or the send buffer held it up.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some_and(|held| {
            (held.receiver_us + held.buffer_us) as f64 > HELD * self.busy_us as f64
        })
    }
}

/// Connections that one limit holds up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// Time of all connections at the limit, µs.
    pub limited_us: f64,
    /// Connections that it held up for more than a quarter of their busy time; the rest is of
    /// these alone.
    pub connections: u64,
    /// Acknowledged bytes.
    pub bytes: f64,
    /// Busy time, µs.
    pub busy_us: f64,
    /// Sum of the smoothed RTT times the busy time, µs².
    pub rtt_us2: f64,
}

impl Held {
    pub(crate) fn add(&mut self, connection: &Connection, limited_us: u64) {
        let counted = connection.counted_terms();
        let busy_us = connection.busy_us as f64;
        self.limited_us += counted * limited_us as f64;
        if limited_us as f64 > HELD * busy_us {
            self.connections += 1;
            self.bytes += counted * connection.bytes as f64;
            self.busy_us += counted * busy_us;
            self.rtt_us2 += counted * busy_us * f64::from(connection.srtt_us);
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.limited_us += other.limited_us;
        self.connections += other.connections;
        self.bytes += other.bytes;
        self.busy_us += other.busy_us;
        self.rtt_us2 += other.rtt_us2;
    }

    /// Rate of the connections that it holds up, bytes per second; 0 without any.
    pub fn held_rate(&self) -> f64 {
        ratio_or_zero(self.bytes * 1e6, self.busy_us)
    }

    /// RTT of the held connections, µs.
    pub fn rtt_us(&self) -> f64 {
        ratio_or_zero(self.rtt_us2, self.busy_us)
    }

    /// Data in flight of the held connections, bytes: all that the limit allows.
    pub fn in_flight(&self) -> f64 {
        self.held_rate() * self.rtt_us() / 1e6
    }
}

/// Limits of a group's connections: sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Connections of which the kernel told, and that sent data.
    pub connections: u64,
    /// From establishment to the end, µs.
    pub open_us: f64,
    /// Time with data outstanding, µs.
    pub busy_us: f64,
    /// The receiver's window.
    pub receiver: Held,
    /// The send buffer.
    pub buffer: Held,
}

impl Limits {
    /// How many sums there are.
    pub const NUMBERS: usize = 13;

    /// Adds a connection.
    pub fn add_connection(&mut self, connection: &Connection) {
        let Some(held) = connection.held else { return };
        if connection.busy_us == 0 {
            return;
        }
        let counted = connection.counted_terms();
        self.connections += 1;
        self.open_us += counted * held.open_us.max(connection.busy_us) as f64;
        self.busy_us += counted * connection.busy_us as f64;
        let most = |us: u64| us.min(connection.busy_us);
        self.receiver.add(connection, most(held.receiver_us));
        self.buffer.add(connection, most(held.buffer_us));
    }

    /// Adds others.
    pub fn merge(&mut self, other: &Self) {
        self.connections += other.connections;
        self.open_us += other.open_us;
        self.busy_us += other.busy_us;
        self.receiver.merge(&other.receiver);
        self.buffer.merge(&other.buffer);
    }

    /// The sums, for keeping.
    pub fn to_numbers(&self) -> [f64; Self::NUMBERS] {
        let held = |it: &Held| {
            [
                it.limited_us,
                it.connections as f64,
                it.bytes,
                it.busy_us,
                it.rtt_us2,
            ]
        };
        let [receiver, buffer] = [&self.receiver, &self.buffer].map(held);
        let mut numbers = [0.0; Self::NUMBERS];
        numbers[..3].copy_from_slice(&[self.connections as f64, self.open_us, self.busy_us]);
        numbers[3..8].copy_from_slice(&receiver);
        numbers[8..].copy_from_slice(&buffer);
        numbers
    }

    /// Limits from kept sums; `None` where a number cannot be a sum of these.
    pub fn from_numbers(numbers: [f64; Self::NUMBERS]) -> Option<Self> {
        if numbers.iter().any(|it| !it.is_finite() || *it < 0.0) {
            return None;
        }
        let held = |at: usize| Held {
            limited_us: numbers[at],
            connections: numbers[at + 1] as u64,
            bytes: numbers[at + 2],
            busy_us: numbers[at + 3],
            rtt_us2: numbers[at + 4],
        };
        Some(Self {
            connections: numbers[0] as u64,
            open_us: numbers[1],
            busy_us: numbers[2],
            receiver: held(3),
            buffer: held(8),
        })
    }

    /// Connections that one limit holds up.
    pub fn held_by(&self, limit: Limit) -> &Held {
        match limit {
            Limit::Receiver => &self.receiver,
            Limit::Buffer => &self.buffer,
        }
    }

    /// Share of the busy time at a limit.
    pub fn limit_share(&self, limit: Limit) -> f64 {
        ratio_or_zero(self.held_by(limit).limited_us, self.busy_us)
    }

    /// Share of the busy time that is left to the network.
    pub fn network_share(&self) -> f64 {
        let limited = self.limit_share(Limit::Receiver) + self.limit_share(Limit::Buffer);
        (1.0 - limited).max(0.0)
    }

    /// Share of the time in which the application had nothing to send.
    pub fn idle_share(&self) -> f64 {
        1.0 - ratio_or_zero(self.busy_us, self.open_us)
    }

    /// Whether a limit decides how long transfers take.
    pub fn is_binding(&self, limit: Limit) -> bool {
        self.limit_share(limit) > HELD
    }
}

fn ratio_or_zero(sum: f64, of: f64) -> f64 {
    if of > 0.0 { sum / of } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(busy_us: u64, held: Chronographs) -> Connection {
        Connection {
            bytes: 1_000_000,
            busy_us,
            srtt_us: 50_000,
            held: Some(held),
            ..Connection::default()
        }
    }

    #[test]
    fn shares_by_hand() {
        let mut limits = Limits::default();
        let mut add = |busy_us, open_us, receiver_us, buffer_us| {
            limits.add_connection(&connection(
                busy_us,
                Chronographs {
                    open_us,
                    receiver_us,
                    buffer_us,
                },
            ));
        };
        // 1 MB in 2 s through a window: half of it at the limit.
        add(2_000_000, 2_000_000, 1_000_000, 100_000);
        // Another in 1 s at the network's rate, then four idle seconds.
        add(1_000_000, 5_000_000, 100_000, 0);
        assert_eq!(limits.connections, 2);
        assert!((limits.limit_share(Limit::Receiver) - 1.1 / 3.0).abs() < 1e-12);
        assert!((limits.limit_share(Limit::Buffer) - 0.1 / 3.0).abs() < 1e-12);
        assert!((limits.network_share() - 1.8 / 3.0).abs() < 1e-12);
        assert!((limits.idle_share() - 4.0 / 7.0).abs() < 1e-12);
        assert!(limits.is_binding(Limit::Receiver) && !limits.is_binding(Limit::Buffer));
        let held = limits.held_by(Limit::Receiver);
        // Only the first: 500 kB/s over 50 ms.
        assert_eq!((held.connections, held.held_rate()), (1, 500_000.0));
        assert_eq!((held.rtt_us(), held.in_flight()), (50_000.0, 25_000.0));
        assert_eq!(limits.held_by(Limit::Buffer).connections, 0);
        assert_eq!(limits.held_by(Limit::Buffer).in_flight(), 0.0);
    }

    #[test]
    fn parts_sum_to_the_whole() {
        let some = |busy_us| {
            let mut limits = Limits::default();
            let held = Chronographs {
                open_us: 3 * busy_us,
                receiver_us: busy_us / 2,
                buffer_us: busy_us / 3,
            };
            limits.add_connection(&connection(busy_us, held));
            limits
        };
        let (mut whole, second) = (some(1000), some(3000));
        whole.merge(&second);
        assert_eq!((whole.connections, whole.busy_us), (2, 4000.0));
        assert_eq!(whole.open_us, 12_000.0);
        assert_eq!(whole.receiver.limited_us, 2000.0);
        assert_eq!(whole.buffer.connections, 2);
        assert_eq!(Limits::from_numbers(whole.to_numbers()), Some(whole));
        for broken in [f64::NAN, f64::INFINITY, -1.0] {
            let mut numbers = whole.to_numbers();
            numbers[Limits::NUMBERS - 1] = broken;
            assert_eq!(Limits::from_numbers(numbers), None);
        }
    }

    #[test]
    fn connection_that_hung_hides_no_limit() {
        let mut limits = Limits::default();
        let at_window = Chronographs {
            open_us: 1_000_000,
            receiver_us: 900_000,
            buffer_us: 0,
        };
        (0..40).for_each(|_| limits.add_connection(&connection(1_000_000, at_window)));
        // An hour of retransmissions, without a limit.
        limits.add_connection(&connection(3_600_000_000, Chronographs::default()));
        assert!((limits.limit_share(Limit::Receiver) - 36.0 / 50.0).abs() < 1e-9);
        assert_eq!(limits.held_by(Limit::Receiver).held_rate(), 1e6);
        // One at the window for an hour makes none of the others.
        let mut limits = Limits::default();
        (0..40)
            .for_each(|_| limits.add_connection(&connection(1_000_000, Chronographs::default())));
        let hour = Chronographs {
            receiver_us: 3_600_000_000,
            ..Chronographs::default()
        };
        limits.add_connection(&connection(3_600_000_000, hour));
        assert!(!limits.is_binding(Limit::Receiver), "{limits:?}");
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_left_out() {
        let mut limits = Limits::default();
        let silent = Connection {
            held: None,
            ..connection(1000, Chronographs::default())
        };
        limits.add_connection(&silent);
        limits.add_connection(&connection(0, Chronographs::default()));
        assert_eq!(limits, Limits::default());
        assert_eq!((limits.idle_share(), limits.network_share()), (1.0, 1.0));
    }

    #[test]
    fn chronographs_that_exceed_the_time_are_cut() {
        let mut limits = Limits::default();
        let held = Chronographs {
            open_us: 10,
            receiver_us: u64::MAX,
            buffer_us: 0,
        };
        limits.add_connection(&connection(1000, held));
        assert_eq!(limits.limit_share(Limit::Receiver), 1.0);
        assert_eq!((limits.open_us, limits.idle_share()), (1000.0, 0.0));
    }
}
