//! Eviction of records from the table when there are too many.
//!
//! The kernel's table takes new hosts until it is full, and evicts none. An LRU table would: a peer
//! with its own prefix is as many hosts as it likes. So the agent evicts by the worth of records.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use thalweg_learner::{HostKey, Level};
use thalweg_units::prefix::prefix_mask;

/// Measurements that prove a record.
const PROVEN: u32 = 2;
/// Share of all records, as a divisor, beyond which a wide prefix loses records before others.
const CROWD: usize = 4;
/// Bits of a wide prefix, which one owner may have. IPv4 is in the 128-bit form.
const WIDE_IPV4: u8 = 96 + 16;
const WIDE_IPV6: u8 = 32;

/// Order of eviction: lesser records go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// The record was measured once at most.
    Once,
    /// The record is one of very many in a wide prefix.
    Crowd,
    Proven,
}

/// A record that may be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Key of the record.
    pub key: HostKey,
    /// Number of measurements.
    pub scored: u32,
    /// Time of the last use, ns of `CLOCK_MONOTONIC`.
    pub seen_ns: u64,
}

/// The wide prefix of a record: namespace, level, and address.
fn wide(key: &HostKey) -> (u64, Level, u128) {
    let bits = u128::from_be_bytes(key.addr);
    let length = match bits >> 32 {
        0xffff => WIDE_IPV4,
        _ => WIDE_IPV6,
    };
    (key.netns, key.level, bits & prefix_mask(length))
}

/// Records to evict so that `keep` stay: those measured once first, then those of crowded prefixes;
/// within each the longest unseen first.
pub fn surplus(entries: &[Entry], keep: usize) -> Vec<HostKey> {
    let count = entries.len().saturating_sub(keep);
    if count == 0 {
        return Vec::new();
    }
    let mut crowds: HashMap<_, usize> = HashMap::new();
    for entry in entries {
        *crowds.entry(wide(&entry.key)).or_default() += 1;
    }
    let worth = |entry: &Entry| match entry.scored {
        scored if scored < PROVEN => Worth::Once,
        _ if crowds[&wide(&entry.key)] > keep / CROWD => Worth::Crowd,
        _ => Worth::Proven,
    };
    let mut order: Vec<(Worth, u64, HostKey)> = entries
        .iter()
        .map(|entry| (worth(entry), entry.seen_ns, entry.key))
        .collect();
    order.sort_unstable();
    order.truncate(count);
    order.into_iter().map(|(_, _, key)| key).collect()
}

/// Schedule of evictions: counts of the last scan of the table.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Records, and counters of created and missed ones; `None`: the table was not scanned yet.
    last: Option<(u64, u64, u64)>,
    /// Time of the last scan.
    looked: Option<Instant>,
}

/// Least time between scans for misses alone: networks and windows may fill the table, and created
/// ones are not counted.
const PAUSE: Duration = Duration::from_secs(10);

impl Room {
    /// Whether there may be more records than the table has room for. Each created host may bring
    /// one network.
    pub fn is_due(&self, created: u64, missed: u64, most: u64, now: Instant) -> bool {
        self.last.is_none_or(|(records, before, missed_before)| {
            let fresh = created.saturating_sub(before);
            let rested = (self.looked).is_none_or(|looked| now - looked >= PAUSE);
            records + 2 * fresh > most || (missed > missed_before && (fresh > 0 || rested))
        })
    }

    /// Notes the result of a scan.
    pub fn note(&mut self, records: u64, created: u64, missed: u64, now: Instant) {
        self.last = Some((records, created, missed));
        self.looked = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: &str, scored: u32, seen_ns: u64) -> Entry {
        let key = HostKey::new(1, address.parse().unwrap(), 32, 64).unwrap();
        Entry {
            key,
            scored,
            seen_ns,
        }
    }

    fn texts(entries: &[Entry], keep: usize) -> Vec<String> {
        let keys = surplus(entries, keep);
        keys.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn surplus_takes_records_measured_once_first() {
        let entries = [
            entry("10.0.0.1", 9, 1),
            entry("10.1.0.2", 1, 50),
            entry("10.2.0.3", 1, 40),
            entry("10.3.0.4", 2, 2),
        ];
        assert_eq!(texts(&entries, 4), [""; 0]);
        assert_eq!(texts(&entries, 3), ["10.2.0.3"]);
        assert_eq!(texts(&entries, 2), ["10.2.0.3", "10.1.0.2"]);
        assert_eq!(texts(&entries, 1)[2], "10.0.0.1");
    }

    /// A peer with a /32, which has measured each of its hosts twice, and later than the others.
    #[test]
    fn surplus_takes_proven_records_of_a_crowded_prefix_before_others() {
        let mut entries: Vec<Entry> = (0..500)
            .map(|n| entry(&format!("198.51.{}.{}", n >> 8, n & 255), 3, n))
            .collect();
        entries.extend((0..500).map(|n| entry(&format!("2001:db9:{n:x}::"), 3, n)));
        let known = entries.clone();
        entries.extend((0..9000).map(|n| entry(&format!("2001:db8:{n:x}::"), 2, 1000 + n)));
        let gone = surplus(&entries, 4500);
        assert_eq!(gone.len(), entries.len() - 4500);
        assert!(known.iter().all(|known| !gone.contains(&known.key)));
    }

    /// Where all hosts are in one network, the longest unseen go, as ever.
    #[test]
    fn surplus_of_one_network_is_what_was_not_seen_for_longest() {
        let entries: Vec<Entry> = (0..100)
            .map(|n| entry(&format!("10.0.0.{n}"), 5, 1000 - n))
            .collect();
        assert_eq!(texts(&entries, 98), ["10.0.0.99", "10.0.0.98"]);
    }

    #[test]
    fn room_is_made_before_the_table_is_full() {
        let mut room = Room::default();
        let (now, later) = (Instant::now(), Instant::now() + PAUSE);
        assert!(room.is_due(0, 0, 100, now));
        room.note(90, 7, 0, now);
        assert!(!room.is_due(7, 0, 100, now));
        assert!(!room.is_due(12, 0, 100, now));
        assert!(room.is_due(13, 0, 100, now));
        // The table was full.
        assert!(room.is_due(8, 1, 100, now));
        // Of networks alone, perhaps.
        assert!(!room.is_due(7, 1, 100, now));
        assert!(room.is_due(7, 1, 100, later));
        assert!(!room.is_due(7, 0, 100, later));
    }
}
