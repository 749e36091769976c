//! Statistics of the agent since its start, over all sessions.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;
use thalweg_bpf_types::raw;
use thalweg_control::system;

use crate::events;
use crate::feature::Feature;
use crate::features;
use crate::kernel::ArmTable;
use crate::metrics::page::{KINDS, OTHERS};
use crate::repairs::Repairs;
use crate::scans;

/// Bounds of the durations of writes, s. The disk's own are milliseconds; requests that wait for
/// the store give up after ten seconds.
const WRITES_S: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];
const UNKNOWN: &str = "unknown";

/// Statistics of the agent.
pub struct AgentStatistics {
    /// Start of the agent.
    pub started: Instant,
    /// Start of the agent by the wall clock, s since 1970.
    pub started_s: f64,
    /// Events written to the store.
    pub stored: AtomicU64,
    /// Events that could not be written.
    pub lost: AtomicU64,
    /// Events whose host-hour is not among those that the store keeps.
    pub left_out: AtomicU64,
    /// Durations of writes of events, s.
    pub event_writes: Histogram,
    /// Durations of writes of host records, s.
    pub record_writes: Histogram,
    /// Metrics of scans of long connections.
    pub looks: scans::Figures,
    /// All features.
    pub features: Vec<Box<dyn Feature>>,
    /// Repairs of programs and pins.
    pub repairs: Repairs,
    /// Congestion controls that the kernel offered at the agent's start.
    pub arms_at_start: Vec<String>,
    counted: Mutex<Counted>,
}

/// Counts of the events that reached the agent.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Decisions by chosen arm and reason.
    pub decisions: BTreeMap<(String, String), u64>,
    /// Scored measurement intervals by arm and end.
    pub ends: BTreeMap<(String, String), u64>,
    /// Sums over scored measurement intervals, by arm.
    pub scored: BTreeMap<String, Scored>,
}

/// Sums over scored measurement intervals.
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

impl AgentStatistics {
    /// Statistics of an agent that starts now.
    pub fn begin(arms_at_start: Vec<String>) -> Self {
        Self {
            arms_at_start,
            started: Instant::now(),
            started_s: system::wall_ns() as f64 / 1e9,
            stored: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            event_writes: Histogram::new(WRITES_S),
            record_writes: Histogram::new(WRITES_S),
            looks: scans::Figures::default(),
            features: features::all(),
            repairs: Repairs::default(),
            counted: Mutex::new(Counted::default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts events, decisions and scored ends; `arms` is the current table.
    pub fn count(&self, events: &[&raw::thalweg_event], arms: &ArmTable) {
        self.lock().take(events, arms);
    }

    /// The counts so far.
    pub fn counted(&self) -> Counted {
        self.lock().clone()
    }
}

impl Counted {
    /// Counts events, first by number: names are made once for each kind, not for each event.
    fn take(&mut self, events: &[&raw::thalweg_event], arms: &ArmTable) {
        let mut decisions: BTreeMap<(u8, u8), u64> = BTreeMap::new();
        let mut ends: BTreeMap<(u8, u8), u64> = BTreeMap::new();
        let mut scored: BTreeMap<u8, Scored> = BTreeMap::new();
        for event in events {
            if u32::from(event.kind) == raw::THALWEG_EVENT_CLOSE {
                if u32::from(event.outcome) != raw::THALWEG_SCORED {
                    continue;
                }
                *ends.entry((event.arm, event.end)).or_default() += 1;
                scored.entry(event.arm).or_default().add(event);
            } else {
                let is_arm = arms.name(event.chosen_arm.into()).is_some();
                let arm = if is_arm { event.chosen_arm } else { event.arm };
                *decisions.entry((arm, event.reason)).or_default() += 1;
            }
        }
        let name = |arm: u8| arms.name(arm.into()).unwrap_or(UNKNOWN).to_owned();
        for ((arm, reason), number) in decisions {
            let kind = (name(arm), events::reason(reason.into()).to_owned());
            *entry(&mut self.decisions, kind, pair) += number;
        }
        for ((arm, end), number) in ends {
            let kind = (name(arm), events::end(end.into()).to_owned());
            *entry(&mut self.ends, kind, pair) += number;
        }
        for (arm, sums) in scored {
            entry(&mut self.scored, name(arm), || OTHERS.to_owned()).add_all(&sums);
        }
    }
}

fn pair() -> (String, String) {
    (OTHERS.to_owned(), OTHERS.to_owned())
}

/// Entry of a kind; that of the others where there are too many kinds.
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
    fn add(&mut self, event: &raw::thalweg_event) {
        self.add_all(&Self {
            bytes: event.bytes,
            duration_us: event.duration_us,
            segments: event.segs_out.into(),
            retransmitted: event.retrans.into(),
        });
    }

    fn add_all(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.duration_us += other.duration_us;
        self.segments += other.segments;
        self.retransmitted += other.retransmitted;
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
