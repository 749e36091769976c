//! Remote hosts in the prefixes of `[clamp]`: their paths, as polls of open connections measure them,
//! and the clamp of each.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use thalweg_bpf_types::raw;
use thalweg_control::system;
use thalweg_learner::HostKey;
use thalweg_learner::clamp::{Path, Reading};

use super::iterator::{self, Programs, Remote};
use super::view::ClampFigures;
use crate::causes::Causes;
use crate::feature::{Context, Polled};
use crate::kernel::{Kernel, Setup};
use crate::view;

/// Interval of searches for connections in all network namespaces. Searches take at most 1 % of a
/// processor.
const SEARCH: Duration = Duration::from_secs(2);
const SEARCH_PAUSE: u32 = 100;
/// Most hosts with a clamp.
const HOSTS_MAX: usize = raw::THALWEG_CLAMPS as usize;
/// Time after which a host without connections is forgotten, ns.
const IDLE_NS: u64 = 600_000_000_000;
/// Least relative difference that changes a clamp, as a divisor.
const STEPS: u32 = 8;
/// Causes of the problem `clamps`: a visit to the connections, and a change of the table.
const VISIT: &str = "visit";
const CHANGE: &str = "change";

/// The clamps; the measured paths outlive a change of the configuration.
#[derive(Default)]
pub struct Clamps {
    known: Mutex<Known>,
    /// Number of times that a clamp was set; `refused` counts the kernel's refusals.
    set: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct Known {
    hosts: HashMap<Remote, Entry>,
    /// Acknowledged bytes of each connection at the last poll, by its cookie.
    acked: HashMap<u64, u64>,
    /// Files of the network namespaces, by cookie. Each poll opens them again: an open file would
    /// keep a namespace alive.
    files: HashMap<u64, PathBuf>,
    /// Time of the next search for namespaces; `None`: now.
    search: Option<Instant>,
    /// Reasons that some connections do not get their clamps.
    faults: Causes,
}

/// A remote host.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Path to the host.
    pub path: Path,
    /// Clamp of the host, segments.
    pub segments: Option<u32>,
    /// Number of open connections at the last poll.
    pub connections: u64,
    /// Number of connections with a clamp from the agent.
    pub clamped: u64,
    /// Number of connections that are left to a policy or a route.
    pub left: u64,
    seen_ns: u64,
}

impl Entry {
    /// Whether the host has had no connection for long.
    fn is_idle(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.seen_ns) >= IDLE_NS
    }
}

/// Sums over the connections of one poll.
#[derive(Default)]
struct Scan {
    readings: HashMap<Remote, Found>,
    acked: HashMap<u64, u64>,
    set: u64,
    refused: u64,
}

#[derive(Default)]
struct Found {
    readings: Vec<Reading>,
    connections: u64,
    clamped: u64,
    left: u64,
}

impl Scan {
    /// Takes the report of one connection; `before` has its acknowledged bytes at the last poll.
    fn take(&mut self, report: &raw::thalweg_clamp_report, before: Option<u64>) {
        let found = self.readings.entry(Remote::from(&report.host)).or_default();
        let is = |flag| report.flags & flag != 0;
        found.connections += 1;
        found.clamped += u64::from(report.segments != 0);
        found.left += u64::from(is(raw::THALWEG_CLAMP_LEFT));
        self.set += u64::from(is(raw::THALWEG_CLAMP_SET) && report.segments != 0);
        self.refused += u64::from(report.error != 0);
        self.acked.insert(report.cookie, report.bytes_acked);
        let sends = before.is_some_and(|before| report.bytes_acked > before);
        if sends && report.min_rtt_us != u32::MAX {
            found.readings.push(Reading {
                delivered: report.rate_delivered_bytes,
                interval_us: report.rate_interval_us,
                min_rtt_us: report.min_rtt_us,
                mss: report.mss,
            });
        }
    }
}

impl Clamps {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Visits the open connections, gives them the clamps of the last poll, and computes those of
    /// the next one. Problems do not stop the rest of the work.
    pub fn poll(&self, context: &Context<'_>, programs: &Programs) -> Polled {
        let kernel = context.kernel;
        let now_ns = system::monotonic_ns();
        let mut known = self.lock();
        let began = Instant::now();
        let is_search = known.search.is_none_or(|at| at <= began);
        let files = (!is_search).then(|| known.files_with_connections());
        let visit = programs.visit(files, context.own_netns);
        if is_search {
            let pause = SEARCH.max(visit.elsewhere.saturating_mul(SEARCH_PAUSE));
            known.search = Some(began + pause);
            known.files = visit.files;
        }
        let mut scan = Scan::default();
        for report in &visit.reports {
            scan.take(report, known.acked.get(&report.cookie).copied());
        }
        self.set.fetch_add(scan.set, Ordering::Relaxed);
        self.refused.fetch_add(scan.refused, Ordering::Relaxed);
        known.acked = scan.acked;
        known.adopt(scan.readings, now_ns);
        let is_back = kernel.is_taken_back();
        let wanted = |remote: &Remote, entry: &Entry| match is_back
            || entry.is_idle(now_ns)
            || is_control(kernel.setup(), remote, now_ns)
        {
            true => None,
            false => entry.path.clamp_segments(),
        };
        let changed = known.change(programs.sets.then_some(kernel), now_ns, wanted);
        known.faults.note_outcome(CHANGE, changed);
        // Only a search passes each network namespace; other visits may leave out the one that
        // failed.
        if is_search || visit.outcome.is_err() {
            known.faults.note_outcome(VISIT, visit.outcome);
        }
        Polled {
            elsewhere: visit.elsewhere,
            problem: known.faults.in_words(),
        }
    }

    /// Forgets all hosts.
    pub fn forget(&self) {
        *self.lock() = Known::default();
    }

    /// All hosts.
    pub fn hosts(&self) -> Vec<(Remote, Entry)> {
        let known = self.lock();
        let mut hosts: Vec<_> = known
            .hosts
            .iter()
            .map(|(remote, entry)| (*remote, entry.clone()))
            .collect();
        hosts.sort_by_key(|(remote, _)| *remote);
        hosts
    }

    /// Metrics since the agent's start, with those of the polls.
    pub fn figures(&self, looks: view::Looks) -> ClampFigures {
        let known = self.lock();
        let with = known.hosts.values().filter(|it| it.segments.is_some());
        ClampFigures {
            hosts: with.count() as u64,
            connections: known.hosts.values().map(|it| it.clamped).sum(),
            set: self.set.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            looks,
        }
    }
}

impl Known {
    /// Files of the network namespaces with connections at the last poll, by cookie.
    fn files_with_connections(&self) -> HashMap<u64, PathBuf> {
        let with = self.hosts.iter().filter(|(_, entry)| entry.connections > 0);
        let file = |netns: u64| Some((netns, self.files.get(&netns)?.clone()));
        with.filter_map(|(remote, _)| file(remote.netns)).collect()
    }

    fn adopt(&mut self, mut readings: HashMap<Remote, Found>, now_ns: u64) {
        for remote in readings.keys() {
            if self.hosts.len() < HOSTS_MAX {
                self.hosts.entry(*remote).or_default();
            }
        }
        for (remote, entry) in &mut self.hosts {
            let found = readings.remove(remote).unwrap_or_default();
            if found.connections > 0 {
                entry.seen_ns = now_ns;
            }
            entry.connections = found.connections;
            entry.clamped = found.clamped;
            entry.left = found.left;
            entry.path.poll_readings(now_ns, found.readings);
        }
    }

    /// Applies the wanted clamps, without `kernel` only to the own state, and forgets idle hosts.
    /// The table has room for all hosts.
    fn change(
        &mut self,
        kernel: Option<&Kernel>,
        now_ns: u64,
        wanted: impl Fn(&Remote, &Entry) -> Option<u32>,
    ) -> Result<()> {
        let mut outcome = Ok(());
        for (remote, entry) in &mut self.hosts {
            let wanted = wanted(remote, entry);
            if !differs(entry.segments, wanted) {
                continue;
            }
            let changed = kernel.map_or(Ok(()), |it| iterator::set_clamp(it, remote, wanted));
            if changed.is_ok() {
                entry.segments = wanted;
            }
            outcome = outcome.and(changed);
        }
        self.hosts
            .retain(|_, entry| entry.segments.is_some() || !entry.is_idle(now_ns));
        outcome
    }
}

/// Whether a host is in the control group, whose connections keep their own windows.
fn is_control(setup: &Setup, remote: &Remote, now_ns: u64) -> bool {
    let (v4, v6) = setup.cluster;
    let key = HostKey::new(remote.netns, remote.address(), v4, v6);
    key.is_ok_and(|key| setup.control.contains_cluster(key.tag(), now_ns))
}

/// Whether a new clamp is worth a change.
fn differs(before: Option<u32>, now: Option<u32>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => before.abs_diff(now) > before / STEPS,
        _ => before != now,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
mod tests {
    use super::*;

    fn report(cookie: u64, last: u8, bytes_acked: u64) -> raw::thalweg_clamp_report {
        let mut addr = [0; 16];
        (addr[10], addr[11], addr[12], addr[15]) = (0xff, 0xff, 10, last);
        raw::thalweg_clamp_report {
            cookie,
            host: raw::thalweg_clamp_key { netns: 1, addr },
            bytes_acked,
            rate_delivered_bytes: 100_000,
            rate_interval_us: 1000,
            min_rtt_us: 50,
            mss: 1000,
            ..Default::default()
        }
    }

    #[test]
    fn connections_that_send_are_measured() {
        let mut scan = Scan::default();
        scan.take(&report(1, 1, 5000), Some(4000));
        // At rest; new; not measured yet.
        scan.take(&report(2, 1, 5000), Some(5000));
        scan.take(&report(3, 1, 5000), None);
        let unknown = raw::thalweg_clamp_report {
            min_rtt_us: u32::MAX,
            ..report(4, 2, 5000)
        };
        scan.take(&unknown, Some(0));
        assert_eq!(scan.acked.len(), 4);
        let mut known = Known::default();
        known.adopt(scan.readings, 7);
        let hosts: Vec<_> = known
            .hosts
            .values()
            .map(|entry| entry.connections)
            .collect();
        assert_eq!(hosts.iter().sum::<u64>(), 4);
        let first = Remote::from(&report(1, 1, 0).host);
        assert_eq!(first.address().to_string(), "10.0.0.1");
        let path = &known.hosts[&first].path;
        assert_eq!((path.largest_rate(), path.min_rtt_us()), (100_000_000, 50));
        known.files = HashMap::from([(1, "/proc/1/ns/net".into()), (2, "/proc/2/ns/net".into())]);
        let files = known.files_with_connections();
        assert_eq!(files.into_keys().collect::<Vec<_>>(), [1]);
        // Gone: it stays known, without connections.
        known.adopt(HashMap::new(), 8);
        assert_eq!(known.hosts[&first].connections, 0);
        assert!(known.files_with_connections().is_empty());
    }

    #[test]
    fn what_was_done_is_counted() {
        let mut scan = Scan::default();
        let flagged = |flags, segments, error| raw::thalweg_clamp_report {
            flags,
            segments,
            error,
            ..report(1, 1, 0)
        };
        scan.take(&flagged(raw::THALWEG_CLAMP_SET, 20, 0), None);
        scan.take(&flagged(raw::THALWEG_CLAMP_SET, 0, 0), None);
        scan.take(&flagged(raw::THALWEG_CLAMP_LEFT, 0, 0), None);
        scan.take(&flagged(0, 20, -1), None);
        let found = scan.readings.values().next().unwrap();
        assert_eq!((found.connections, found.clamped, found.left), (4, 2, 1));
        assert_eq!((scan.set, scan.refused), (1, 1));
    }

    #[test]
    fn small_differences_change_nothing() {
        assert!(!differs(Some(80), Some(90)));
        assert!(differs(Some(80), Some(91)));
        assert!(differs(Some(10), Some(12)));
        assert!(!differs(Some(10), Some(11)));
        assert!(differs(None, Some(10)) && differs(Some(10), None));
        assert!(!differs(None, None));
    }
}
