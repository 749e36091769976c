//! State that the event loop and the API share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use thalweg_control::attempts::Attempts;
use thalweg_control::containers;
use thalweg_control::policy::history::History;
use thalweg_control::system::{self, NetworkNamespace};
use thalweg_learner::{HostKey, Mode};
use tokio::sync::{broadcast, watch};

use crate::api::tcp::PortListener;
use crate::arms::find_newcomers;
use crate::comparison::Compared;
use crate::config::Config;
use crate::feature;
use crate::hints::hint_for;
use crate::kernel::{ArmTable, Kernel};
use crate::present::Presenter;
use crate::reload::{Ready, Refused, Reload};
use crate::repairs::{self, Problems};
use crate::sampling::Sampler;
use crate::statistics::AgentStatistics;
use crate::store::{FILE_NAME, HostRow, Moment, Restored, Snapshot, Store, StoreError};
use crate::view::{self, Event};
use crate::writer::jobs::{self, WriterChannel, WriterHandle};

/// Events that a slow follower may lag behind. Beyond that it misses some, and gets a notice.
const LIVE_EVENTS: usize = 1024;

/// Beginning of the problem that reports a refused configuration.
pub const NOT_TAKEN: &str = "the new configuration was not taken";

/// The agent's state, except the event ring.
pub struct Shared {
    /// The kernel side.
    pub kernel: Kernel,
    /// The configuration in force.
    pub config: Config,
    /// Listener of the API's port, if there is one.
    pub port_listener: Option<PortListener>,
    /// Cookie of the agent's own network namespace.
    pub own_netns: u64,
    /// Policies that were applied.
    pub policies: History,
    /// Live events.
    pub live: broadcast::Sender<Arc<Event>>,
    /// Last count of the host records.
    hosts: AtomicU64,
    /// Writer handle of the store's thread.
    pub writer_handle: WriterHandle,
    /// State of the writer thread, until it starts.
    writer_channel: Mutex<Option<WriterChannel>>,
    /// Store for queries, and for removals on request.
    store: Mutex<Store>,
    sampling: Mutex<Sampler>,
    /// Names of containers, by the cookie of their network namespace.
    containers: Mutex<Arc<HashMap<u64, String>>>,
    /// Number of imported documents.
    imports: AtomicU64,
    boot_id: String,
    /// Statistics since the agent's start.
    pub statistics: Arc<AgentStatistics>,
    /// Start of the session.
    began: Instant,
    /// Time at which the store last had every record; `None`: not in this session.
    saved_at: Mutex<Option<Instant>>,
    problems: Mutex<Problems>,
    /// Identity of the store's file at the begin of the session.
    pub(crate) store_file: Option<(u64, u64)>,
    /// Time of the event loop's last pass, ns of the kernel's clock.
    pub(crate) passed_ns: AtomicU64,
    stopping: AtomicBool,
    jobs: Mutex<Jobs>,
    stop: watch::Sender<bool>,
    /// Number of configurations that the agent has begun with: 1, and one more for each reload.
    pub session: u64,
    /// Change to the next configuration.
    reload: Arc<Reload>,
}

/// Jobs of the API that use the session.
#[derive(Default)]
struct Jobs {
    /// Number of running jobs.
    running: usize,
    /// Whether no further job may begin.
    closed: bool,
}

/// A running job, until it is dropped.
pub struct Job(Arc<Shared>);

impl Drop for Job {
    fn drop(&mut self) {
        lock(&self.0.jobs).running -= 1;
    }
}

/// Whether two texts differ in more than their numbers. Numbers of an address are no words.
fn differs_beyond_numbers(one: &str, other: &str) -> bool {
    let word = |word: &str| {
        let bare = word.trim_matches(|char: char| char.is_ascii_punctuation());
        let is_number = bare.parse::<f64>().is_ok();
        if is_number {
            "0".to_owned()
        } else {
            word.to_owned()
        }
    };
    !one.split(' ').map(word).eq(other.split(' ').map(word))
}

/// A poisoned lock means that another thread panicked. Its data is still consistent, because every
/// guarded value is replaced or changed in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Name of this machine.
fn node_name() -> String {
    nix::sys::utsname::uname()
        .map(|names| names.nodename().to_string_lossy().into_owned())
        .unwrap_or_default()
}

impl Shared {
    /// Creates the state of a session.
    pub fn new(
        kernel: Kernel,
        ready: Ready,
        mut store: Store,
        own_netns: u64,
        session: u64,
        reload: Arc<Reload>,
        statistics: Arc<AgentStatistics>,
    ) -> Result<Self> {
        let asked = store.again()?;
        let state = &ready.config.paths.state;
        let (store_file, policies) = (repairs::store_file(state), History::at(state));
        let now = Moment::now();
        let kept = store.sampling(now)?;
        let sampler = Sampler::new(kept, &ready.config.events, now.monotonic_ns);
        let (writer_handle, writer_channel) = jobs::prepare(store, Arc::clone(&statistics));
        Ok(Self {
            kernel,
            config: ready.config,
            port_listener: ready.port_listener,
            own_netns,
            policies,
            live: broadcast::channel(LIVE_EVENTS).0,
            hosts: AtomicU64::new(0),
            writer_handle,
            writer_channel: Mutex::new(Some(writer_channel)),
            store: Mutex::new(asked),
            sampling: Mutex::new(sampler),
            containers: Mutex::default(),
            imports: AtomicU64::new(0),
            boot_id: system::boot_id()?,
            statistics,
            began: Instant::now(),
            saved_at: Mutex::new(None),
            problems: Mutex::default(),
            store_file,
            passed_ns: AtomicU64::new(system::monotonic_ns()),
            stopping: AtomicBool::new(false),
            jobs: Mutex::new(Jobs::default()),
            stop: watch::channel(false).0,
            session,
            reload,
        })
    }

    /// Reads the configuration again. Returns whether it changed; then another session begins.
    ///
    /// # Errors
    /// The configuration is refused: the present one stays, and `status` reports the refusal.
    pub fn reload(&self) -> Result<bool, Refused> {
        let outcome = self.reload.prepare(
            &self.config,
            self.port_listener.as_ref(),
            &self.kernel.setup().named,
        );
        match &outcome {
            Ok(true) => {
                tracing::info!("a new configuration is taken up");
                self.stop();
            }
            Ok(false) => {
                self.problem("configuration", None);
                tracing::info!("the configuration is as it was");
            }
            Err(why) => self.refuse_configuration(&why.to_string()),
        }
        outcome
    }

    /// Reports that a new configuration was refused.
    pub fn refuse_configuration(&self, why: &str) {
        self.problem("configuration", Some(format!("{NOT_TAKEN}: {why}")));
    }

    /// Ends the agent, which takes no other configuration.
    pub fn end(&self) {
        self.reload.end();
        self.stop();
    }

    /// Takes the state of the writer thread; `None` after the first call.
    pub fn take_writer_channel(&self) -> Option<WriterChannel> {
        lock(&self.writer_channel).take()
    }

    /// Number of imported documents: no counter of the programs includes their records.
    pub fn imports(&self) -> u64 {
        self.imports.load(Ordering::SeqCst)
    }

    /// Uses the store. A write here waits for at most one transaction of the writer thread.
    pub fn store<T>(&self, action: impl FnOnce(&mut Store) -> Result<T, StoreError>) -> Result<T> {
        Ok(action(&mut lock(&self.store))?)
    }

    /// Uses the sampling of stored events.
    pub fn sampling<T>(&self, action: impl FnOnce(&mut Sampler) -> T) -> T {
        action(&mut lock(&self.sampling))
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.kernel.params().mode
    }

    /// A presenter of records under this arm table.
    pub fn presenter<'a>(&'a self, arms: &'a ArmTable) -> Presenter<'a> {
        Presenter::new(&self.kernel, arms, Arc::clone(&lock(&self.containers)))
    }

    /// Context of the agent's features.
    pub fn feature_context(&self) -> feature::Context<'_> {
        feature::Context {
            kernel: &self.kernel,
            own_netns: self.own_netns,
            containers: Arc::clone(&lock(&self.containers)),
            policies: &self.policies,
            store: &self.store,
            sampling: &self.sampling,
            records: self,
            state: &self.config.paths.state,
            reporter: self,
            is_stopping: self.is_stopping(),
            features: &self.statistics.features,
        }
    }

    fn feature_statuses(&self) -> BTreeMap<String, serde_json::Value> {
        let features = self.statistics.features.iter();
        features
            .filter_map(|feature| Some((feature.name().to_owned(), feature.status()?)))
            .collect()
    }

    /// Finds the containers of the network namespaces. The agent's own namespace has no name, as
    /// containers in the machine's network cannot be distinguished.
    pub fn name_containers(&self, namespaces: &[NetworkNamespace]) {
        let others = namespaces.iter().filter(|one| one.cookie != self.own_netns);
        let cookies: HashMap<u64, u64> = others.map(|one| (one.file, one.cookie)).collect();
        let mut titles: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        let running = if cookies.is_empty() {
            Vec::new()
        } else {
            containers::running_containers()
        };
        for container in running {
            let file = container.network_namespace();
            if let Some(cookie) = file.and_then(|file| cookies.get(&file)) {
                let title = container.display_name().to_owned();
                titles.entry(*cookie).or_default().insert(title);
            }
        }
        let names = titles.into_iter().map(|(cookie, titles)| {
            let titles: Vec<String> = titles.into_iter().collect();
            (cookie, titles.join(", "))
        });
        *lock(&self.containers) = Arc::new(names.collect());
    }

    /// Sets or (with `None`) clears a problem, which `status` shows until it is cleared. It is
    /// logged when it appears, when it changes in more than numbers, and when it ends.
    pub fn problem(&self, topic: &'static str, text: Option<String>) {
        let mut problems = lock(&self.problems);
        match text {
            Some(text) => {
                let before = problems.get(topic);
                if before.is_none_or(|before| differs_beyond_numbers(before, &text)) {
                    tracing::error!(topic, "{text}");
                }
                problems.insert(topic, text);
            }
            None => {
                if problems.remove(topic).is_some() {
                    tracing::info!(topic, "problem is gone: {topic}");
                }
            }
        }
    }

    /// Sets a problem as [`Shared::problem`] does, of a kind that nobody must repair.
    pub fn warning(&self, topic: &'static str, text: String) {
        let before = lock(&self.problems).insert(topic, text.clone());
        if before.as_ref() != Some(&text) {
            tracing::warn!(topic, "{text}");
        }
    }

    /// Sets a problem as [`Shared::problem`] does, but logs only its first text.
    pub fn trouble(&self, topic: &'static str, text: String) {
        if lock(&self.problems).insert(topic, text.clone()).is_none() {
            tracing::error!(topic, "{text}");
        }
    }

    /// Clears a problem of [`Shared::trouble`], if there is one, and logs how it ended.
    pub fn trouble_ends(&self, topic: &'static str, how: &str) {
        if lock(&self.problems).remove(topic).is_some() {
            tracing::info!(topic, "{how}");
        }
    }

    /// A snapshot of the present moment, without records.
    pub fn snapshot_header(&self, mode: Mode) -> Snapshot {
        Snapshot {
            mode,
            boot_id: self.boot_id.clone(),
            own_netns: self.own_netns,
            saved_at_ms: (system::wall_ns() / 1_000_000) as i64,
            hosts: Vec::new(),
        }
    }

    /// Saves all host records to the store.
    pub fn save_snapshot(&self) -> Result<()> {
        self.writer_handle.save()
    }

    /// Notes that the store has every record, whether or not there was one to save.
    pub fn note_saved(&self) {
        *lock(&self.saved_at) = Some(Instant::now());
    }

    /// Time since the store had every record, or the session began.
    pub fn unsaved_for(&self) -> Duration {
        lock(&self.saved_at).unwrap_or(self.began).elapsed()
    }

    /// Problems that parts of the agent have reported.
    pub fn noted_problems(&self) -> Problems {
        lock(&self.problems).clone()
    }

    /// Notes a count of the host records.
    pub fn note_hosts(&self, count: u64) {
        self.hosts.store(count, Ordering::Relaxed);
    }

    /// Restores the store's records into the kernel, if there are any. After a reboot only those of
    /// the agent's own namespace can be identified: cookies are new.
    pub fn restore_stored(&self) -> Result<Option<Restored>> {
        let mut store = lock(&self.store);
        let Some(header) = store.header(self.mode())? else {
            return Ok(None);
        };
        let moment = Moment::now();
        let anew = header.boot_id != self.boot_id;
        let mut restoring = self.restoring(&header, anew, moment, 0)?;
        let faults = store.each_host(self.mode(), moment, |row| restoring.put(&row))?;
        store.adopt(&self.snapshot_header(self.mode()))?;
        drop(store);
        if let Some(first) = faults.first() {
            let text = format!(
                "{} host records of the store are not valid and were left out: {first}",
                faults.len()
            );
            self.problem("store-records", Some(text));
        }
        Ok(Some(restoring.finish()?))
    }

    fn restoring<'a>(
        &'a self,
        header: &'a Snapshot,
        anew: bool,
        moment: Moment,
        elapsed_ms: u64,
    ) -> Result<Restoring<'a>> {
        let arms = self.kernel.arms()?;
        Ok(Restoring {
            shared: self,
            header,
            anew,
            now_ns: moment.monotonic_ns,
            elapsed_ms,
            system_arm: arms.index(&system::default_cc()?),
            arms,
            put: Vec::new(),
            left_out: 0,
        })
    }

    /// Counts the host records, for `status`: a walk over all of them.
    pub fn count_hosts(&self) -> Result<()> {
        self.note_hosts(self.kernel.count_hosts()?);
        Ok(())
    }

    /// The response to `GET /v1/status`; it never waits.
    pub fn status(&self) -> Result<view::Status> {
        self.status_of(self.health().problems)
    }

    /// The response to `GET /v1/status` with known problems.
    pub fn status_of(&self, problems: Problems) -> Result<view::Status> {
        let setup = self.kernel.setup();
        Ok(view::Status {
            version: env!("CARGO_PKG_VERSION").to_string(),
            machine: node_name(),
            pid: std::process::id(),
            uptime_s: self.statistics.started.elapsed().as_secs(),
            session: self.session,
            mode: self.mode().name().to_string(),
            dry_run: setup.dry_run,
            trials: setup.advise.only.then_some(setup.advise.trials),
            cgroup: setup.cgroup.display().to_string(),
            pin: setup.pin.display().to_string(),
            store: self
                .config
                .paths
                .state
                .join(FILE_NAME)
                .display()
                .to_string(),
            abi_version: thalweg_bpf_types::raw::THALWEG_ABI_VERSION,
            took_over: self.kernel.took_over(),
            kernel_busy_time: setup.kernel_btf,
            hosts: self.hosts.load(Ordering::Relaxed),
            hosts_max: u64::from(setup.hosts_max),
            map_bytes: self.kernel.map_bytes(),
            resident_bytes: system::resident_bytes(),
            counters: self.kernel.counters()?,
            looks: self
                .kernel
                .has_iterator()
                .then(|| self.statistics.looks.shown()),
            features: self.feature_statuses(),
            events_stored: self.statistics.stored.load(Ordering::Relaxed),
            events_lost: self.statistics.lost.load(Ordering::Relaxed),
            events_share: self.sampling(|sampling| sampling.share()),
            events_left_out: self.statistics.left_out.load(Ordering::Relaxed),
            snapshot_age_s: lock(&self.saved_at).map(|at| at.elapsed().as_secs()),
            newcomers: find_newcomers(&self.config, &self.statistics.arms_at_start),
            health: repairs::severity(problems.keys()),
            repairs: self.statistics.repairs.shown(),
            fixes: problems
                .keys()
                .map(|topic| hint_for(topic).to_owned())
                .collect(),
            problems: problems.into_values().collect(),
        })
    }

    /// Asks all threads to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Without receivers this fails: all threads have ended already.
        let _ = self.stop.send(true);
    }

    /// Begins a job; the session lasts until its end. `None`: the session is ending.
    pub fn begin(self: &Arc<Self>) -> Option<Job> {
        let mut jobs = lock(&self.jobs);
        if jobs.closed {
            return None;
        }
        jobs.running += 1;
        Some(Job(Arc::clone(self)))
    }

    /// Refuses further jobs.
    pub fn close(&self) {
        lock(&self.jobs).closed = true;
    }

    /// Whether no job runs, and none may begin.
    pub fn is_done(&self) -> bool {
        let jobs = lock(&self.jobs);
        jobs.closed && jobs.running == 0
    }

    /// Whether the threads were asked to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Resolves when the threads are asked to end.
    pub fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}

impl feature::Session for Shared {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping()
    }

    fn noted_kinds(&self) -> Vec<&'static str> {
        self.noted_problems().into_keys().collect()
    }

    fn checked_kinds(&self) -> Vec<&'static str> {
        self.health().problems.into_keys().collect()
    }

    fn compared(&self, learner: bool) -> Vec<Compared> {
        let context = self.feature_context();
        let features = context.features.iter();
        features
            .flat_map(|it| it.comparisons(learner, &context))
            .collect()
    }
}

impl feature::Records for Shared {
    fn document_header(&self) -> Snapshot {
        self.snapshot_header(self.mode())
    }

    fn count_records(&self) -> Result<()> {
        self.count_hosts()
    }

    fn import(
        &self,
        header: &Snapshot,
        mut records: &mut dyn Iterator<Item = Result<HostRow>>,
    ) -> Result<Restored> {
        let now_ms = (system::wall_ns() / 1_000_000) as i64;
        let elapsed_ms = u64::try_from(now_ms - header.saved_at_ms).unwrap_or(0);
        let mut restoring = self.restoring(header, true, Moment::now(), elapsed_ms)?;
        let outcome = Iterator::try_for_each(&mut records, |row| restoring.put(&row?));
        // The kernel got records that the store lacks.
        self.imports.fetch_add(1, Ordering::SeqCst);
        outcome?;
        let restored = restoring.finish()?;
        self.count_hosts()?;
        Ok(restored)
    }
}

impl feature::Reporter for Shared {
    fn problem(&self, kind: &'static str, text: Option<String>) {
        let repairs = &self.statistics.repairs;
        self.problem(kind, text.map(|it| repairs.with_refusal(kind, it)));
    }

    fn warning(&self, kind: &'static str, text: String) {
        self.warning(kind, text);
    }

    fn note_repairs(&self, kind: &'static str, attempts: Attempts) {
        self.statistics.repairs.note(kind, attempts);
    }
}

/// A restoration of records into the kernel.
pub struct Restoring<'a> {
    shared: &'a Shared,
    /// Source of the records.
    header: &'a Snapshot,
    /// Whether the agent's own network namespace may have another cookie now.
    anew: bool,
    now_ns: u64,
    /// Time since the ages of the records were computed.
    elapsed_ms: u64,
    arms: ArmTable,
    system_arm: Option<usize>,
    put: Vec<HostKey>,
    left_out: u64,
}

impl Restoring<'_> {
    /// Writes one record to the kernel.
    pub fn put(&mut self, row: &HostRow) -> Result<()> {
        let mut key = row.key;
        if key.netns != self.header.own_netns {
            // Cookies are valid only within one boot.
            if self.header.boot_id != self.shared.boot_id {
                self.left_out += 1;
                return Ok(());
            }
        } else if self.anew {
            key.netns = self.shared.own_netns;
        }
        let kernel = &self.shared.kernel;
        let mut host = row.restore(
            self.now_ns,
            self.elapsed_ms,
            kernel.params(),
            self.system_arm,
            |name| self.arms.index(name),
        );
        kernel.leave_fleet(&key, &mut host)?;
        kernel.insert_host(&key, &host)?;
        if !key.level.is_group() {
            self.put.push(key);
        }
        fail_point!("restore::host");
        Ok(())
    }

    /// Counts the records that stayed: a full table evicts the least valuable.
    pub fn finish(self) -> Result<Restored> {
        let mut restored = 0;
        for key in &self.put {
            restored += u64::from(self.shared.kernel.host(key)?.is_some());
        }
        Ok(Restored {
            restored,
            left_out: self.left_out + self.put.len() as u64 - restored,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::differs_beyond_numbers;

    #[test]
    fn problem_whose_numbers_alone_change_is_no_news() {
        assert!(!differs_beyond_numbers(
            "15 of 16 were (30 MB)",
            "150 of 160 were (1.5 MB)"
        ));
        assert!(differs_beyond_numbers("15 of 16 were", "15 of 16 are"));
        assert!(differs_beyond_numbers("15 of 16 were", "15 of 16"));
        assert!(differs_beyond_numbers(
            "192.0.2.7 is slow",
            "192.0.2.8 is slow"
        ));
        assert!(!differs_beyond_numbers(
            "it hangs, 3 s; no more",
            "it hangs, 4 s; no more"
        ));
    }
}
