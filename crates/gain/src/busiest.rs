//! What limits the connections of each network, of the busiest ones: bounded, however many there are.

use std::collections::BTreeMap;

use crate::baseline::Connection;
use crate::limits::{Held, Limit, Limits};

/// Bytes from which a connection shows what a path carries.
const SHOWS_BYTES: u64 = 128 << 10;
/// Connections that nothing limits before they tell what a path carries.
const SHOWN_BY: u64 = 3;
/// Least gain in the rate that is worth a change.
const WORTH: f64 = 1.1;

/// Account of a network's paths, from its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    /// Limits of the connections.
    pub limits: Limits,
    /// Connections of 128 KiB or more that neither window nor buffer limited.
    pub free: Held,
    /// The highest rate of any, bytes per second.
    pub fastest: f64,
}

/// Effect of lifting a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lifted {
    /// Connections that it does not hold up have this rate there, bytes per second.
    To(f64),
    /// Unlimited connections are no faster.
    NoGain,
    /// There are none: what the path carries is not known.
    Unknown,
}

impl Account {
    fn add_connection(&mut self, connection: &Connection) {
        if connection.busy_us == 0 || connection.held.is_none() {
            return;
        }
        self.limits.add_connection(connection);
        if connection.bytes < SHOWS_BYTES {
            return;
        }
        let rate = connection.bytes as f64 * 1e6 / connection.busy_us as f64;
        self.fastest = self.fastest.max(rate);
        if !connection.is_held() {
            // Of all its time.
            self.free.add(connection, connection.busy_us);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.limits.merge(&other.limits);
        self.free.merge(&other.free);
        self.fastest = self.fastest.max(other.fastest);
    }

    /// Effect of lifting a limit, by the connections that it does not limit.
    pub fn lift_limit(&self, limit: Limit) -> Lifted {
        let rate = self.free.held_rate();
        match () {
            () if self.free.connections < SHOWN_BY => Lifted::Unknown,
            () if rate > WORTH * self.limits.held_by(limit).held_rate() => Lifted::To(rate),
            () => Lifted::NoGain,
        }
    }
}

/// A network: sums of this period and of the one before.
#[derive(Clone, Debug, Default)]
struct Entry {
    /// Busy time that it may have had before it had a place, µs.
    floor: f64,
    period: u64,
    now: Account,
    before: Account,
}

impl Entry {
    fn advance_period(&mut self, period: u64) {
        if self.period < period {
            let is_next = self.period + 1 == period;
            let now = std::mem::take(&mut self.now);
            self.before = if is_next { now } else { Account::default() };
            self.floor = 0.0;
            self.period = period;
        }
    }

    fn sum_periods(&self) -> Account {
        let mut sum = self.now;
        sum.merge(&self.before);
        sum
    }

    fn entry_weight(&self) -> f64 {
        self.floor + self.now.limits.busy_us + self.before.limits.busy_us
    }
}

/// The busiest networks. A new one takes the place of the least busy, and its weight with it, so
/// that no network with more than 1/N of the busy time is missing (space saving; Metwally et al.,
/// ICDT 2005).
#[derive(Clone, Debug)]
pub struct Busiest<K> {
    most: usize,
    entries: BTreeMap<K, Entry>,
}

impl<K: Ord + Clone> Busiest<K> {
    /// An empty list of at most this many networks.
    pub fn with_capacity(most: usize) -> Self {
        Self {
            most: most.max(1),
            entries: BTreeMap::new(),
        }
    }

    /// Counts what ended in a period; periods are numbered.
    pub fn add_connection(&mut self, key: K, period: u64, connection: &Connection) {
        if !self.entries.contains_key(&key) {
            let floor = self.make_room(period);
            let entry = Entry {
                floor,
                period,
                ..Entry::default()
            };
            self.entries.insert(key.clone(), entry);
        }
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.advance_period(period);
            entry.now.add_connection(connection);
        }
    }

    /// Removes the least busy one if all places are taken; returns its weight.
    fn make_room(&mut self, period: u64) -> f64 {
        if self.entries.len() < self.most {
            return 0.0;
        }
        let weight = |entry: &Entry| match entry.period + 1 < period {
            true => 0.0,
            false => entry.entry_weight(),
        };
        let weights = self.entries.iter().map(|(key, entry)| (key, weight(entry)));
        let least = weights.min_by(|one, other| one.1.total_cmp(&other.1));
        let Some((key, weight)) = least.map(|(key, weight)| (key.clone(), weight)) else {
            return 0.0;
        };
        self.entries.remove(&key);
        weight
    }

    /// Every network with connections in a period or the one before, the busiest first.
    pub fn busiest_first(&self, period: u64) -> Vec<(K, Account)> {
        let mut all: Vec<(K, Account)> = self
            .entries
            .iter()
            .map(|(key, entry)| {
                let mut entry = entry.clone();
                entry.advance_period(period);
                (key.clone(), entry.sum_periods())
            })
            .filter(|(_, account)| account.limits.connections > 0)
            .collect();
        all.sort_by(|one, other| other.1.limits.busy_us.total_cmp(&one.1.limits.busy_us));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Chronographs;

    fn connection(bytes: u64, busy_us: u64, buffer_us: u64) -> Connection {
        Connection {
            bytes,
            busy_us,
            srtt_us: 100_000,
            held: Some(Chronographs {
                open_us: busy_us,
                receiver_us: 0,
                buffer_us,
            }),
            ..Connection::default()
        }
    }

    /// One of a second, held up by its buffer or not.
    fn one(buffer: bool) -> Connection {
        let bytes = if buffer { 1_000_000 } else { 3_000_000 };
        connection(bytes, 1_000_000, if buffer { 900_000 } else { 0 })
    }

    #[test]
    fn what_the_path_carries_is_known_by_connections_without_a_limit() {
        let mut account = Account::default();
        account.add_connection(&one(true));
        assert_eq!(account.lift_limit(Limit::Buffer), Lifted::Unknown);
        // Too small to show anything, and none of the kernel's words.
        account.add_connection(&connection(1000, 100, 0));
        account.add_connection(&Connection {
            held: None,
            ..one(false)
        });
        assert_eq!(
            (account.free.connections, account.limits.connections),
            (0, 2)
        );
        for _ in 0..3 {
            account.add_connection(&one(false));
        }
        assert_eq!(account.lift_limit(Limit::Buffer), Lifted::To(3_000_000.0));
        assert_eq!(account.fastest, 3_000_000.0);
        // Without a limit they are as slow.
        let mut slow = Account::default();
        slow.add_connection(&one(true));
        for _ in 0..3 {
            slow.add_connection(&connection(1_050_000, 1_000_000, 0));
        }
        assert_eq!(slow.lift_limit(Limit::Buffer), Lifted::NoGain);
    }

    #[test]
    fn old_periods_fade() {
        let mut busiest = Busiest::with_capacity(4);
        busiest.add_connection("a", 7, &one(true));
        busiest.add_connection("a", 8, &one(false));
        let connections = |period| -> Vec<u64> {
            let all = busiest.busiest_first(period).into_iter();
            all.map(|(_, account)| account.limits.connections).collect()
        };
        assert_eq!(connections(8), [2]);
        assert_eq!(connections(9), [1]);
        assert_eq!(connections(10), [0; 0]);
    }

    #[test]
    fn the_busiest_have_a_place_whatever_comes_and_goes() {
        let mut busiest = Busiest::with_capacity(8);
        for round in 0..2_000u32 {
            // A third of the time is that of one network; each of the others comes once.
            busiest.add_connection(0, 1, &connection(500_000, 500_000, 0));
            busiest.add_connection(1 + round, 1, &connection(1_000_000, 1_000_000, 0));
            assert!(busiest.entries.len() <= 8);
        }
        let all = busiest.busiest_first(1);
        assert_eq!(all[0].0, 0);
        // It lost no more than the others' share of a place.
        assert!(
            all[0].1.limits.busy_us > 0.9 * 2_000.0 * 500_000.0,
            "{all:?}"
        );
    }
}
