//! Figures of the agent from its start on; sessions follow each other in it.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;
use thalweg_control::system;

use crate::looks;
use crate::view::{Event, Measurement};

/// Bounds of the durations of writes, s. The disk's own are milliseconds; at ten seconds requests
/// that wait for the store give up.
const WRITES_S: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];
/// Most kinds of one figure, then the rest is counted as [`OTHERS`]: congestion controls come and go.
pub const KINDS: usize = 256;
/// What has no label of its own.
pub const OTHERS: &str = "(others)";
const UNKNOWN: &str = "unknown";

/// The figures.
pub struct Life {
    /// Its start.
    pub started: Instant,
    /// The same by the wall clock, s since 1970.
    pub started_s: f64,
    /// Events written to the store.
    pub stored: AtomicU64,
    /// Events that could not be written.
    pub lost: AtomicU64,
    /// Durations of writes of events, s.
    pub event_writes: Histogram,
    /// Durations of writes of host records, s.
    pub record_writes: Histogram,
    /// Looks at long connections.
    pub looks: looks::Figures,
    counted: Mutex<Counted>,
}

/// Counts of the events that reached the agent.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Decisions by chosen arm and reason.
    pub decisions: BTreeMap<(String, String), u64>,
    /// Scored stretches by arm and end.
    pub ends: BTreeMap<(String, String), u64>,
    /// What was scored, by arm.
    pub scored: BTreeMap<String, Scored>,
}

/// Sums over scored stretches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scored {
    /// Acknowledged bytes.
    pub bytes: u64,
    /// Time with data outstanding, µs.
    pub duration_us: u64,
    /// Data segments sent.
    pub segments: u64,
    /// Retransmissions among them.
    pub retransmitted: u64,
}

impl Life {
    /// Of an agent that starts now.
    pub fn begin() -> Self {
        Self {
            started: Instant::now(),
            started_s: system::wall_ns() as f64 / 1e9,
            stored: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            event_writes: Histogram::new(WRITES_S),
            record_writes: Histogram::new(WRITES_S),
            looks: looks::Figures::default(),
            counted: Mutex::new(Counted::default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts events.
    pub fn count(&self, events: &[Event]) {
        let mut counted = self.lock();
        events.iter().for_each(|event| counted.take(event));
    }

    /// The counts so far.
    pub fn counted(&self) -> Counted {
        self.lock().clone()
    }
}

impl Counted {
    fn take(&mut self, event: &Event) {
        let name = |arm: &Option<String>| arm.clone().unwrap_or_else(|| UNKNOWN.to_owned());
        match &event.measurement {
            None => {
                let chosen = event.chosen.as_ref().or(event.arm.as_ref()).cloned();
                let kind = (name(&chosen), event.reason.clone());
                *entry(&mut self.decisions, kind, pair) += 1;
            }
            Some(measured) if measured.outcome != "scored" => {}
            Some(measured) => {
                let kind = (name(&event.arm), measured.end.clone());
                *entry(&mut self.ends, kind, pair) += 1;
                entry(&mut self.scored, name(&event.arm), || OTHERS.to_owned()).add(measured);
            }
        }
    }
}

fn pair() -> (String, String) {
    (OTHERS.to_owned(), OTHERS.to_owned())
}

/// The entry of a kind; of the others where there are too many kinds.
fn entry<K: Ord, V: Default>(
    all: &mut BTreeMap<K, V>,
    kind: K,
    others: impl FnOnce() -> K,
) -> &mut V {
    let is_full = all.len() >= KINDS && !all.contains_key(&kind);
    all.entry(if is_full { others() } else { kind })
        .or_default()
}

impl Scored {
    fn add(&mut self, measured: &Measurement) {
        self.bytes += measured.bytes;
        self.duration_us += measured.duration_us;
        self.segments += u64::from(measured.segs_out);
        self.retransmitted += u64::from(measured.retrans);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_beyond_the_bound_are_counted_as_others() {
        let mut all = BTreeMap::new();
        for number in 0..KINDS + 10 {
            *entry(&mut all, format!("{number:04}"), || OTHERS.to_owned()) += 1;
        }
        assert_eq!(all.len(), KINDS + 1);
        assert_eq!(all[OTHERS], 10);
        *entry(&mut all, "0000".to_owned(), || OTHERS.to_owned()) += 1;
        assert_eq!(all["0000"], 2);
        assert_eq!(all.values().sum::<u64>() as usize, KINDS + 11);
    }
}
