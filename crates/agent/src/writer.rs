//! Thread that writes to the store, so that no other thread waits for the disk.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use thalweg_learner::HostKey;

pub mod jobs;

use jobs::{Job, WriterChannel};

use crate::kernel::HostBatch;
use crate::sampling::Sampler;
use crate::shared::Shared;
use crate::store::{HostRow, Moment, PRUNE_STEP, Saved, Store, StoreError};
use crate::view::Event;

/// Records per transaction, for which other writers wait.
const ROWS: usize = 256;
/// Interval of pruning the store.
const PRUNE: Duration = Duration::from_secs(60);

/// The running writer thread.
pub struct Writer {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<()>>,
}

impl Writer {
    /// Starts the thread. Call it when the kernel has all records of the store: from then on
    /// records that the kernel lacks are removed from the store.
    pub fn start(shared: Arc<Shared>, writer_channel: WriterChannel) -> Result<Self> {
        let state = State::new(Arc::clone(&shared), writer_channel);
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || state.run())?;
        Ok(Self { shared, thread })
    }

    /// Makes the thread finish pending work, save, and end.
    pub fn end(self) -> Result<()> {
        // The thread may have ended by itself; joining shows why.
        let _ = self.shared.writer_handle.jobs.send(Job::End);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the thread that writes to the store panicked")))
    }
}

/// State of the writer thread.
struct State {
    shared: Arc<Shared>,
    jobs: mpsc::Receiver<Job>,
    /// Jobs that arrived while records were being saved.
    later: Vec<Job>,
    store: Store,
    /// Records as stored; `None`: they must be read.
    saved: Option<Saved>,
    /// `established + closed` at the last snapshot: if unchanged, there is nothing to save.
    activity: u64,
    /// [`Shared::imports`] at the last snapshot.
    imports: u64,
    tried: Instant,
    /// Time of the last removal of old events; `None`: not in this session.
    pruned: Option<Instant>,
    /// Number of events lost since storing them began to fail.
    failing: Option<u64>,
}

impl State {
    fn new(shared: Arc<Shared>, writer_channel: WriterChannel) -> Self {
        let now = Instant::now();
        Self {
            imports: shared.imports(),
            shared,
            jobs: writer_channel.jobs,
            later: Vec::new(),
            store: writer_channel.store,
            saved: None,
            activity: 0,
            tried: now,
            pruned: None,
            failing: None,
        }
    }

    fn run(mut self) -> Result<()> {
        let interval = self.shared.config.snapshot.interval;
        // Later counts are those of the walks for the store.
        let counted = self.shared.count_hosts();
        self.report("count", "the host records are not counted", counted);
        loop {
            let snapshot = interval.saturating_sub(self.tried.elapsed());
            let prune = self.prune_in();
            let job = if self.later.is_empty() {
                self.jobs.recv_timeout(snapshot.min(prune))
            } else {
                Ok(self.later.remove(0))
            };
            match job {
                Ok(Job::Events(events)) => self.store_events(&events),
                // The requester may be gone.
                Ok(Job::Save(reply)) => drop(reply.send(self.save())),
                Ok(Job::End) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return self.save().and(self.save_sums());
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if self.tried.elapsed() >= interval {
                self.tried = Instant::now();
                let sums = self.save_sums();
                let outcome = self.save_if_changed().and(sums);
                self.report("snapshot", "the host records are not saved", outcome);
            }
            if self.prune_in().is_zero() {
                self.pruned = Some(Instant::now());
                let outcome = self.prune();
                self.report("retention", "old events are not removed", outcome);
            }
        }
    }

    /// Time until old events must be removed. A new session removes at once, as reloads and
    /// restarts may come more often than [`PRUNE`].
    fn prune_in(&self) -> Duration {
        let since = self.pruned.map(|at| at.elapsed());
        since.map_or(Duration::ZERO, |since| PRUNE.saturating_sub(since))
    }

    /// Logs one line when something begins to fail, and one when it works again.
    fn report(&self, topic: &'static str, what: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.shared.trouble_ends(topic, &format!("no more: {what}")),
            Err(error) => self.shared.trouble(topic, format!("{what}: {error:#}")),
        }
    }

    fn store_events(&mut self, events: &[Event]) {
        let count = events.len() as u64;
        let shared = Arc::clone(&self.shared);
        let writer_handle = &shared.writer_handle;
        writer_handle.waiting.fetch_sub(count, Ordering::Relaxed);
        let began = Instant::now();
        let written = match shared.sampling(|sampling| sampling.has_turned()) {
            true => self.save_sampling(),
            false => Ok(()),
        };
        let written = written.and_then(|()| self.store.append_events(events, Moment::now()));
        writer_handle
            .statistics
            .event_writes
            .observe(began.elapsed().as_secs_f64());
        match written {
            Ok(_) => {
                writer_handle
                    .statistics
                    .stored
                    .fetch_add(count, Ordering::Relaxed);
                if let Some(lost) = self.failing.take() {
                    let how = format!("events are stored again; {lost} were lost");
                    self.shared.trouble_ends("store", &how);
                }
            }
            Err(error) => {
                writer_handle
                    .statistics
                    .lost
                    .fetch_add(count, Ordering::Relaxed);
                *self.failing.get_or_insert(0) += count;
                let error = anyhow::Error::from(error);
                let text = format!("events are not stored: {error:#}");
                self.shared.trouble("store", text);
            }
        }
    }

    /// Stores the events that arrived meanwhile; other jobs wait.
    fn attend(&mut self) {
        while let Ok(job) = self.jobs.try_recv() {
            match job {
                Job::Events(events) => self.store_events(&events),
                job => self.later.push(job),
            }
        }
    }

    /// Saves changed numbers of events, and what changed in features.
    fn save_sums(&mut self) -> Result<()> {
        let mut saved = self.save_sampling();
        for feature in &self.shared.statistics.features {
            saved = feature.save(&mut self.store).and(saved);
        }
        Ok(saved?)
    }

    /// Saves the shares and numbers of events. No other thread waits for the disk meanwhile.
    fn save_sampling(&mut self) -> Result<(), StoreError> {
        let changes = self.shared.sampling(Sampler::take_changes);
        let saved = self.store.save_sampling(&changes);
        if saved.is_err() {
            self.shared.sampling(|sampling| sampling.put_back(&changes));
        }
        saved
    }

    fn save_if_changed(&mut self) -> Result<()> {
        let counters = self.shared.kernel.counters()?;
        let activity = counters.established + counters.closed;
        if activity == self.activity && self.shared.imports() == self.imports {
            self.store.note_clock(Moment::now())?;
            self.shared.note_saved();
            return Ok(());
        }
        self.save()?;
        self.activity = activity;
        Ok(())
    }

    /// Saves the changes since the last save, and removes records that the kernel no longer has.
    fn save(&mut self) -> Result<()> {
        let imports = self.shared.imports();
        let outcome = loop {
            let mut saved = match self.saved.take() {
                Some(saved) if self.store.is_current(&saved) => saved,
                _ => {
                    let header = self.shared.snapshot_header(self.shared.mode());
                    self.store.adopt(&header)?;
                    self.store.saved(self.shared.mode())?
                }
            };
            if imports != self.imports {
                saved.distrust();
            }
            let outcome = self.save_changes(&mut saved);
            // If records were removed on request meanwhile, the save starts over.
            let is_over = outcome.is_ok() || self.store.is_current(&saved);
            self.saved = Some(saved);
            if is_over {
                break outcome;
            }
        };
        outcome.context("saving what was learned")?;
        self.imports = imports;
        self.shared.note_saved();
        Ok(())
    }

    fn save_changes(&mut self, saved: &mut Saved) -> Result<()> {
        fail_point!("snapshot::begun");
        let shared = Arc::clone(&self.shared);
        saved.begin();
        let mut changed = HostBatch::new();
        let mut written = 0;
        let mut hosts = 0;
        shared.kernel.walk_own_records(|batch| {
            let of_hosts = batch.iter().filter(|(key, _)| !key.level.is_group());
            hosts += of_hosts.count() as u64;
            let store = &self.store;
            changed.extend(
                batch
                    .into_iter()
                    .filter(|(key, host)| !store.has(saved, key, host)),
            );
            if changed.len() >= ROWS {
                written += self.write(saved, &mut changed)?;
            }
            self.attend();
            Ok(())
        })?;
        shared.note_hosts(hosts);
        // A host that the walk did not find is looked up by its key before it is removed: a table
        // that is read short must not empty the store.
        let mut gone: Vec<HostKey> = Vec::new();
        for id in saved.missing() {
            let Some(key) = self.store.host_of(id)? else {
                continue;
            };
            match shared.kernel.host(&key)? {
                Some(host) => changed.push((key, host)),
                None => gone.push(key),
            }
            if changed.len() >= ROWS {
                written += self.write(saved, &mut changed)?;
            }
        }
        written += self.write(saved, &mut changed)?;
        fail_point!("snapshot::written");
        for keys in gone.chunks(ROWS) {
            self.store.remove_hosts(shared.mode(), saved, keys)?;
            fail_point!("snapshot::removed");
            self.attend();
        }
        self.store.remove_unreadable(saved)?;
        if written > 0 || !gone.is_empty() {
            let header = shared.snapshot_header(shared.mode());
            self.store.note_saved(&header, Moment::now())?;
            fail_point!("snapshot::noted");
        }
        Ok(())
    }

    /// Writes records and empties the list; returns their number.
    fn write(&mut self, saved: &mut Saved, changed: &mut HostBatch) -> Result<usize> {
        let arms = self.shared.kernel.arms()?;
        for some in changed.chunks(ROWS) {
            let moment = Moment::now();
            let rows: Vec<HostRow> = some
                .iter()
                .map(|(key, host)| {
                    HostRow::new(*key, host, moment.monotonic_ns, |index| arms.name(index))
                })
                .collect();
            let began = Instant::now();
            let written = self
                .store
                .save_hosts(self.shared.mode(), saved, &rows, moment);
            let statistics = &self.shared.writer_handle.statistics;
            statistics
                .record_writes
                .observe(began.elapsed().as_secs_f64());
            written?;
            self.attend();
        }
        let count = changed.len();
        changed.clear();
        Ok(count)
    }

    fn prune(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let events = &shared.config.events;
        loop {
            let moment = Moment::now();
            let removed = self
                .store
                .prune(moment, events.retention, events.retention_max)?;
            if removed < PRUNE_STEP {
                return Ok(());
            }
            self.attend();
        }
    }
}
