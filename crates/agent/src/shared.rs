//! What the keeper thread and the API share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use thalweg_core::Mode;
use tokio::sync::{broadcast, watch};

use crate::config::Config;
use crate::kernel::{ArmTable, Kernel};
use crate::present::Presenter;
use crate::store::{HostRow, Snapshot, Store, StoreError};
use crate::system;
use crate::view::{self, Event};

/// Events a slow follower may lag behind before it misses some (and is told so).
const LIVE_EVENTS: usize = 1024;

/// The agent's state, but for the event ring.
pub struct Shared {
    /// The kernel side.
    pub kernel: Kernel,
    /// The configuration in force.
    pub config: Config,
    /// Cookie of the agent's own network namespace.
    pub own_netns: u64,
    /// Events as they come.
    pub live: broadcast::Sender<Arc<Event>>,
    /// Events written to the store.
    pub events_stored: AtomicU64,
    store: Mutex<Store>,
    boot_id: String,
    started: Instant,
    snapshot_at: Mutex<Option<Instant>>,
    problems: Mutex<BTreeMap<&'static str, String>>,
    stopping: AtomicBool,
    stop: watch::Sender<bool>,
}

/// Outcome of putting records back into the kernel.
pub struct Restored {
    /// Records written.
    pub restored: u64,
    /// Records of namespaces that cannot be told apart any more.
    pub left_out: u64,
}

/// A poisoned lock means that another thread panicked; its data is whole all the same,
/// because every guarded value is replaced or changed in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Puts the parts together.
    pub fn new(kernel: Kernel, config: Config, store: Store, own_netns: u64) -> Result<Self> {
        Ok(Self {
            kernel,
            config,
            own_netns,
            live: broadcast::channel(LIVE_EVENTS).0,
            events_stored: AtomicU64::new(0),
            store: Mutex::new(store),
            boot_id: system::boot_id()?,
            started: Instant::now(),
            snapshot_at: Mutex::new(None),
            problems: Mutex::new(BTreeMap::new()),
            stopping: AtomicBool::new(false),
            stop: watch::channel(false).0,
        })
    }

    /// Uses the store.
    pub fn store<T>(&self, action: impl FnOnce(&mut Store) -> Result<T, StoreError>) -> Result<T> {
        Ok(action(&mut lock(&self.store))?)
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.kernel.params().mode
    }

    /// A presenter of records under this arm table.
    pub fn presenter<'a>(&'a self, arms: &'a ArmTable) -> Presenter<'a> {
        let system_arm = system::default_cc().ok().and_then(|name| arms.index(&name));
        Presenter {
            arms,
            params: self.kernel.params(),
            system_arm,
            // Without them every host is shown as if it were in the agent's own namespace.
            defaults: self.kernel.defaults().unwrap_or_default(),
        }
    }

    /// States or (with `None`) withdraws a problem that `status` shows until it is gone. It is
    /// logged when it appears and when it goes.
    pub fn problem(&self, topic: &'static str, text: Option<String>) {
        let mut problems = lock(&self.problems);
        match text {
            Some(text) => {
                if problems.get(topic) != Some(&text) {
                    tracing::error!(topic, "{text}");
                }
                problems.insert(topic, text);
            }
            None => {
                if problems.remove(topic).is_some() {
                    tracing::info!(topic, "problem is gone");
                }
            }
        }
    }

    /// All host records, ready for the store or for export.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let arms = self.kernel.arms()?;
        let now_ns = system::monotonic_ns();
        let mut hosts = Vec::new();
        self.kernel.walk_hosts(|batch| {
            hosts.extend(
                batch
                    .iter()
                    .map(|(key, host)| HostRow::new(*key, host, now_ns, |i| arms.name(i))),
            );
            Ok(())
        })?;
        Ok(Snapshot {
            hosts,
            ..self.snapshot_header(self.mode())
        })
    }

    /// A snapshot of now without records.
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
        let arms = self.kernel.arms()?;
        let now_ns = system::monotonic_ns();
        // Record by record: a full table does not fit the agent's memory budget.
        lock(&self.store)
            .save_walk(&self.snapshot_header(self.mode()), |save| {
                self.kernel.walk_hosts(|batch| {
                    batch.iter().try_for_each(|(key, host)| {
                        save(&HostRow::new(*key, host, now_ns, |index| arms.name(index)))
                    })
                })
            })
            .context("saving the host records")?;
        *lock(&self.snapshot_at) = Some(Instant::now());
        Ok(())
    }

    /// Puts records back into the kernel. After a reboot only those of the agent's own
    /// namespace can be told: cookies are given out anew.
    pub fn restore(&self, snapshot: &Snapshot) -> Result<Restored> {
        let arms = self.kernel.arms()?;
        let now_ns = system::monotonic_ns();
        let now_ms = (system::wall_ns() / 1_000_000) as i64;
        let elapsed_ms = u64::try_from(now_ms - snapshot.saved_at_ms).unwrap_or(0);
        let same_boot = snapshot.boot_id == self.boot_id;
        let system_arm = arms.index(&system::default_cc()?);
        let mut result = Restored {
            restored: 0,
            left_out: 0,
        };
        for row in &snapshot.hosts {
            let mut key = row.key;
            if key.netns == snapshot.own_netns {
                key.netns = self.own_netns;
            } else if !same_boot {
                result.left_out += 1;
                continue;
            }
            let host = row.restore(
                now_ns,
                elapsed_ms,
                self.kernel.params(),
                system_arm,
                |name| arms.index(name),
            );
            self.kernel.insert_host(&key, &host)?;
            result.restored += 1;
        }
        Ok(result)
    }

    /// The answer of `GET /v1/status`.
    pub fn status(&self) -> Result<view::Status> {
        let setup = self.kernel.setup();
        Ok(view::Status {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            mode: self.mode().name().to_string(),
            dry_run: setup.dry_run,
            cgroup: setup.cgroup.display().to_string(),
            pin: setup.pin.display().to_string(),
            store: lock(&self.store).path().display().to_string(),
            abi_version: thalweg_abi::raw::THALWEG_ABI_VERSION,
            took_over: self.kernel.took_over(),
            kernel_busy_time: setup.kernel_btf,
            hosts: self.kernel.count_hosts()?,
            hosts_max: u64::from(setup.hosts_max),
            map_bytes: self.kernel.map_bytes(),
            resident_bytes: system::resident_bytes(),
            counters: self.kernel.counters()?,
            events_stored: self.events_stored.load(Ordering::Relaxed),
            snapshot_age_s: lock(&self.snapshot_at).map(|at| at.elapsed().as_secs()),
            problems: lock(&self.problems).values().cloned().collect(),
        })
    }

    /// Asks all threads to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Nobody listens any more: all have ended already.
        let _ = self.stop.send(true);
    }

    /// Whether the end was asked for.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Resolves when the end is asked for.
    pub fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}
