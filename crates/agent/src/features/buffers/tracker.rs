//! Network namespaces with connections of the agent, polls of them, and changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use thalweg_control::system;

use super::groups::FirstLimits;
use super::namespace::{Namespace, Progresses};
use super::plan::{Bounds, Memory, Reason};
use super::record::{Changed, Record, restoring};
use super::sysctl::{self, Change, Sight, Written};
use super::view;
use crate::causes::Causes;
use crate::feature::{Context, Polled};
use crate::kernel::Kernel;
use crate::scans::{self, Looks, Stopwatch};

/// Interval of polls of the memory. Connections are read as often, where that takes at most 1 % of a
/// processor.
pub const INTERVAL: Duration = Duration::from_millis(200);
/// Interval of searches for files of namespaces, and the least one where a file is missing.
const SEARCH: Duration = Duration::from_secs(60);
const SEARCH_MISSING: Duration = Duration::from_secs(2);
/// Least interval of searches for namespaces with connections, and the least pause as a multiple of a
/// search's processor time: the slots of connections have 20 MB.
const COUNT: Duration = Duration::from_secs(1);
const COUNT_PAUSE: u32 = 1000;
/// Most namespaces that are followed.
const NAMESPACES_MAX: usize = 4096;
/// Causes of the problem `buffers`.
const SEEN: &str = "seen";
const READ: &str = "read";
const WRITE: &str = "write";
const MEMORY: &str = "memory";

/// Settings of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Whether limits are followed.
    pub is_enabled: bool,
    /// Whether limits are written: not in a dry run, nor under advice.
    pub sets: bool,
    /// `buffers.max`, bytes.
    pub max_bytes: u64,
    /// Whether network namespaces of ordinary users are entered.
    pub user_namespaces: bool,
}

/// Number of changes since the agent's start.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    raised: u64,
    lowered: u64,
    stepped_back: u64,
}

/// The followed namespaces.
#[derive(Default)]
pub struct Tracker(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Lower halves of the cookies of namespaces with a connection of the agent.
    seen: BTreeSet<u32>,
    /// Schedule of readings of connections; `None`: the first one is due.
    readings: Option<Looks>,
    /// Time of the next search for connections of the agent; `None`: now.
    count: Option<Instant>,
    namespaces: BTreeMap<u64, Namespace>,
    /// Namespaces where somebody else has changed a limit: they are left alone until the agent ends.
    left: BTreeSet<u64>,
    /// Files by cookie. Each poll opens them again: an open file would keep a namespace alive.
    files: BTreeMap<u64, PathBuf>,
    searched: Option<Instant>,
    progresses: Progresses,
    /// Cookie of the machine's first namespace, and its `tcp_mem` in bytes.
    first: Option<(u64, [u64; 3])>,
    memory: Option<Memory>,
    counts: Counts,
    faults: Causes,
}

impl Tracker {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the memory, reads the namespaces if that is due, and changes limits.
    pub fn poll(
        &self,
        session: &Session,
        statistics: &scans::Figures,
        context: &Context<'_>,
    ) -> Polled {
        let mut known = self.lock();
        let schedule = known.readings.take();
        let mut readings = schedule.unwrap_or_else(|| Looks::from_now(Some(INTERVAL)));
        let mut elsewhere = Duration::ZERO;
        if readings.are_due() {
            let seen = known.note_connections(context.kernel);
            known.faults.note_outcome(SEEN, seen);
            let (began, mut watch) = (Instant::now(), Stopwatch::default());
            elsewhere = watch.timed(|| known.read(session));
            readings.note(began, watch.total() + elsewhere, Some(statistics));
        } else {
            known.look_at_memory(session);
        }
        known.readings = Some(readings);
        let may_set = session.sets && !context.is_stopping && !context.kernel.has_let_go();
        if may_set {
            let written = known.write(&context.kernel.setup().pin, &mut elsewhere);
            known.faults.note_outcome(WRITE, written);
        }
        Polled {
            elsewhere,
            problem: known.problem(),
        }
    }

    /// Puts back the limits that this agent or one that was killed has changed; `pin` is the
    /// directory of pins.
    ///
    /// # Errors
    /// Limits that cannot be written.
    pub fn restore(&self, pin: &Path) -> Result<()> {
        let mut known = self.lock();
        let record = Record::open(pin);
        let mut changed = record
            .as_ref()
            .map_or(Ok(BTreeMap::new()), Record::entries)?;
        // A detach may have removed the record amid a change.
        let namespaces = std::mem::take(&mut known.namespaces);
        changed.extend(
            namespaces
                .into_iter()
                .map(|(netns, it)| (netns, it.changed)),
        );
        let (seen, left) = (
            std::mem::take(&mut known.seen),
            std::mem::take(&mut known.left),
        );
        *known = Known {
            seen,
            left,
            counts: known.counts,
            ..Known::default()
        };
        restore_limits(record, &changed)
    }

    /// First limits of the namespaces with a raised one.
    pub fn raised(&self) -> BTreeMap<u64, FirstLimits> {
        let known = self.lock();
        let raised = known.namespaces.iter().filter(|(_, it)| it.is_raised());
        raised
            .map(|(netns, it)| (*netns, [0, 1].map(|at| it.limits[at].first_bytes)))
            .collect()
    }

    /// The namespaces, for the view.
    pub fn namespaces(&self, containers: &HashMap<u64, String>) -> Vec<view::NamespaceBuffers> {
        let known = self.lock();
        let shown = known.namespaces.iter().map(|(netns, namespace)| {
            let limit = |at: usize| view::BufferLimit {
                first_bytes: namespace.limits[at].first_bytes,
                now_bytes: namespace.limits[at].now_bytes,
                wanted_bytes: namespace.wanted[at].map(|(bytes, _)| bytes),
                connections: namespace.at_limit[at] as u64,
            };
            view::NamespaceBuffers {
                netns: *netns,
                container: containers.get(netns).cloned(),
                left: known.left.contains(netns),
                receive: limit(0),
                send: limit(1),
            }
        });
        shown.collect()
    }

    /// Figures for `status` and metrics.
    pub fn figures(&self, looks: crate::view::Looks) -> view::BufferFigures {
        let known = self.lock();
        let raised = known.namespaces.values().filter(|it| it.is_raised());
        view::BufferFigures {
            namespaces: known.namespaces.len() as u64,
            raised: raised.count() as u64,
            left: known.left.len() as u64,
            raises: known.counts.raised,
            lowerings: known.counts.lowered,
            step_backs: known.counts.stepped_back,
            memory_bytes: known.memory.map_or(0, |it| it.used_bytes),
            memory_mark_bytes: known.memory.map_or(0, |it| it.mark_bytes),
            looks,
        }
    }
}

impl Known {
    /// Notes the namespaces with a connection of the agent.
    fn note_connections(&mut self, kernel: &Kernel) -> Result<()> {
        let (now, mut watch) = (Instant::now(), Stopwatch::default());
        if self.count.is_some_and(|at| now < at) {
            return Ok(());
        }
        let found = watch.timed(|| kernel.connection_namespaces());
        let pause = COUNT.max(watch.total().saturating_mul(COUNT_PAUSE));
        self.count = Some(now + pause);
        for netns in found? {
            if netns != 0 && self.seen.len() < NAMESPACES_MAX {
                self.seen.insert(netns);
            }
        }
        Ok(())
    }

    /// Reads the namespaces, and computes the next limits; returns the time of other threads.
    fn read(&mut self, session: &Session) -> Duration {
        let began = Instant::now();
        let known: BTreeSet<u32> = self.files.keys().map(|netns| *netns as u32).collect();
        let pause = match self.first.is_some() && self.seen.is_subset(&known) {
            true => SEARCH,
            false => SEARCH_MISSING,
        };
        let is_search = self.searched.is_none_or(|at| began >= at + pause);
        if !is_search && self.files.is_empty() {
            return Duration::ZERO;
        }
        let files = (!is_search).then(|| self.files.values().cloned().collect());
        let users = session.user_namespaces;
        let visit = sysctl::read_namespaces(files, users, self.seen.clone());
        let shown = visit.answers.iter();
        let mut first = shown.filter_map(|(_, it)| Some((it.netns, it.tcp_mem?)));
        self.first = first.next().or(self.first);
        let bounds = self.bounds(session.max_bytes);
        self.memory = bounds.as_ref().ok().map(|it| it.memory);
        let mut outcome = Ok(());
        let (mut progresses, mut found) = (Progresses::new(), BTreeMap::new());
        for (file, Sight { netns, usage, .. }) in visit.answers {
            let Some(usage) = usage else { continue };
            found.insert(netns, file);
            match usage {
                Ok(usage) => self.adopt(netns, &usage, bounds.as_ref().ok(), &mut progresses),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        self.progresses = progresses;
        if is_search {
            self.searched = Some(began);
            self.namespaces.retain(|netns, _| found.contains_key(netns));
            self.seen = found.keys().map(|netns| *netns as u32).collect();
            self.left.retain(|netns| found.contains_key(netns));
        }
        // The process of a file may have ended: the next search finds another file.
        self.files = found;
        self.faults.note_outcome(READ, outcome);
        self.faults.note_outcome(MEMORY, bounds.map(drop));
        visit.time
    }

    /// Lowers limits between readings where memory comes to an end.
    fn look_at_memory(&mut self, session: &Session) {
        let bounds = self.bounds(session.max_bytes);
        let Some(bounds) = bounds.ok().filter(|it| it.memory.is_short()) else {
            return;
        };
        self.memory = Some(bounds.memory);
        let now_ns = system::monotonic_ns();
        let namespaces = self.namespaces.values_mut();
        namespaces.for_each(|it| it.step_back(&bounds, now_ns));
    }

    fn adopt(
        &mut self,
        netns: u64,
        usage: &sysctl::NamespaceUsage,
        bounds: Option<&Bounds>,
        after: &mut Progresses,
    ) {
        let (now_ns, is_left) = (system::monotonic_ns(), self.left.contains(&netns));
        let first = self.inherited(netns, usage.limits);
        let namespace = self.namespaces.entry(netns);
        let namespace = namespace.or_insert_with(|| Namespace::new(first, usage.limits, now_ns));
        if !namespace.poll(usage, bounds, &self.progresses, after, now_ns, is_left) {
            self.left.insert(netns);
        }
    }

    /// First limits of a namespace that may be new. It begins with those of the machine's first one
    /// (`tcp_sk_init` in net/ipv4/tcp_ipv4.c), raised ones, too.
    fn inherited(&self, netns: u64, limits: [u64; 2]) -> [u64; 2] {
        let first = self.first.filter(|(cookie, _)| *cookie != netns);
        let first = first.and_then(|(cookie, _)| self.namespaces.get(&cookie));
        [0, 1].map(|at| match first.map(|it| it.limits[at]) {
            Some(limit) if limit.now_bytes == limits[at] => limit.first_bytes,
            _ => limits[at],
        })
    }

    fn bounds(&self, max_bytes: u64) -> Result<Bounds> {
        let Some((_, tcp_mem)) = self.first else {
            bail!(
                "net.ipv4.tcp_mem is shown in the machine's first network namespace alone, which \
                 the agent cannot enter (CAP_SYS_ADMIN, CAP_SYS_PTRACE, the machine's processes): \
                 limits of buffers stay"
            );
        };
        let (used_bytes, total_bytes) = sysctl::read_memory()?;
        Ok(Bounds {
            max_bytes,
            memory: Memory {
                total_bytes,
                mark_bytes: Memory::mark(tcp_mem),
                used_bytes,
            },
        })
    }

    /// Records and writes the next limits.
    fn write(&mut self, pin: &Path, elsewhere: &mut Duration) -> Result<()> {
        let changing = self.namespaces.iter_mut();
        let mut changing = changing.filter(|(_, it)| it.has_changes()).peekable();
        if changing.peek().is_none() {
            return Ok(());
        }
        let record = Record::create(pin)?;
        let mut changes: BTreeMap<u64, Vec<Change>> = BTreeMap::new();
        for (netns, namespace) in changing {
            let wanted = namespace.prepare_changes();
            record.insert(*netns, &namespace.changed)?;
            changes.insert(*netns, wanted);
        }
        let files = changes.keys().filter_map(|it| self.files.get(it).cloned());
        let visit = sysctl::write_limits(Some(files.collect()), changes);
        *elsewhere += visit.time;
        let mut outcome = Ok(());
        for (_, (netns, written)) in visit.answers {
            outcome = outcome.and(self.note_written(netns, written));
            let namespace = self.namespaces.get(&netns);
            if namespace.is_some_and(|it| !it.is_raised()) {
                record.remove(netns)?;
            }
        }
        outcome
    }

    fn note_written(&mut self, netns: u64, written: Vec<(Change, Written)>) -> Result<()> {
        let Some(namespace) = self.namespaces.get_mut(&netns) else {
            return Ok(());
        };
        let mut outcome = Ok(());
        for (change, written) in written {
            match written {
                Written::Done => {
                    let reason = namespace.note_done(&change, system::monotonic_ns());
                    let (setting, to) = (change.direction.setting(), change.to);
                    tracing::info!(
                        netns,
                        "{setting} of a network namespace: at most {to} bytes"
                    );
                    match reason {
                        Some(Reason::Need) => self.counts.raised += 1,
                        Some(Reason::Memory) => self.counts.stepped_back += 1,
                        _ => self.counts.lowered += 1,
                    }
                }
                // The next poll sees it.
                Written::Left => {}
                Written::Refused(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    fn problem(&self) -> Option<String> {
        let left = (!self.left.is_empty()).then(|| {
            let cookies: Vec<String> = self.left.iter().map(u64::to_string).collect();
            format!(
                "somebody else has changed raised limits of buffers, which are left alone in \
                 network namespace {}",
                cookies.join(", ")
            )
        });
        let all = [self.faults.in_words(), left].into_iter().flatten();
        all.reduce(|one, other| format!("{one}; {other}"))
    }
}

/// Puts back changed limits, and removes their record. Limits that somebody else has changed stay, and
/// namespaces that are gone need nothing.
///
/// # Errors
/// Limits that cannot be written; they stay recorded.
pub fn restore_limits(record: Option<Record>, changed: &BTreeMap<u64, Changed>) -> Result<()> {
    let changes = changed.iter().map(|(netns, it)| (*netns, restoring(it)));
    let changes: BTreeMap<u64, Vec<Change>> = changes.filter(|(_, it)| !it.is_empty()).collect();
    let mut refused = Vec::new();
    if !changes.is_empty() {
        let visit = sysctl::write_limits(None, changes);
        for (_, (netns, written)) in visit.answers {
            refused.extend(note_restored(netns, written));
        }
    }
    ensure!(refused.is_empty(), "{}", refused.join("; "));
    let removed = record.map_or(Ok(()), Record::unpin);
    removed.context("removing the record of buffers")
}

/// Limits of a namespace that could not be put back.
fn note_restored(netns: u64, written: Vec<(Change, Written)>) -> Vec<String> {
    let mut refused = Vec::new();
    for (change, written) in written {
        match written {
            Written::Done => {}
            Written::Left => tracing::warn!(
                netns,
                "{} of a network namespace is somebody else's by now, and stays",
                change.direction.setting()
            ),
            Written::Refused(error) => refused.push(format!("{error:#}; it was {}", change.to)),
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::super::record::ChangedLimit;
    use super::super::sysctl::Direction;
    use super::*;

    #[test]
    fn new_namespace_with_raised_limits_of_the_first_one_has_its_first_limits() {
        let known = Known {
            first: Some((1, [0; 3])),
            namespaces: BTreeMap::from([(1, Namespace::new([6, 4], [6, 16], 0))]),
            ..Known::default()
        };
        assert_eq!(known.inherited(2, [6, 16]), [6, 4]);
        assert_eq!(known.inherited(2, [7, 8]), [7, 8]);
        assert_eq!(known.inherited(1, [6, 16]), [6, 16]);
    }

    #[test]
    fn interrupted_change_goes_back_from_either_limit() {
        let change = ChangedLimit {
            first: 4,
            before: 8,
            now: 16,
        };
        let back = Change {
            direction: Direction::Send,
            expected: [8, 16],
            to: 4,
        };
        assert_eq!(restoring(&[ChangedLimit::default(), change]), [back]);
    }
}
