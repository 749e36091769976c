//! The operator: publishes policies, and watches whether the cluster answers. A listener hears what
//! agents tell. Both are in a namespace of their own.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};
use thalweg_fleet::keys::SigningKey;
use thalweg_fleet::{Fleet, Identity, Incoming, Limits, Name, Operator, Settings, setup};

use super::light;

/// The listener's name.
pub const LISTENER: &str = "listener";
/// Between two policies, and two looks.
const POLICY: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(250);
/// A cluster that does not answer for so long is away.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Seen {
    /// Since when each look was answered; none: the last was not.
    available: Option<Instant>,
    /// When each policy was there, by number.
    published: BTreeMap<u64, Instant>,
    /// What the bucket says that agents have measured.
    measured: BTreeMap<String, u32>,
}

#[derive(Default)]
struct Common {
    seen: Mutex<Seen>,
    ends: AtomicBool,
    publishes: AtomicBool,
}

impl Common {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread.
pub struct Operations {
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
}

impl Operations {
    /// Starts it.
    pub fn start(
        fleet: &Path,
        servers: &[String],
        namespace: &str,
        limits: Limits,
    ) -> Result<Self> {
        let common = Arc::new(Common::default());
        common.publishes.store(true, Ordering::Relaxed);
        let name = Name::new(setup::OPERATOR)?;
        let identity = Identity::Nkey(fleet.join("operator.nk"));
        let mut settings = Settings::new(servers.to_vec(), name, identity);
        settings.ca = Some(fleet.join("ca.pem"));
        settings.pace.timeout = PATIENCE;
        let key = SigningKey::read_file(&fleet.join("policy.nk"))?;
        let mut listens = light::settings(fleet, LISTENER, servers)?;
        listens.pace.look = Duration::from_secs(1);
        let file = Path::new("/run/netns").join(namespace);
        let inside = File::open(&file).with_context(|| file.display().to_string())?;
        let shared = Arc::clone(&common);
        let thread = std::thread::spawn(move || {
            // Sockets of this thread, and of those that it starts, are in the namespace.
            let entered = setns(inside, CloneFlags::CLONE_NEWNET).map_err(anyhow::Error::from);
            let done = entered.and_then(|()| work(&shared, &settings, &listens, &key, &limits));
            if let Err(why) = done {
                eprintln!("the operator gave up: {why:#}");
            }
        });
        Ok(Self {
            common,
            thread: Some(thread),
        })
    }

    /// Since when the cluster answers.
    pub fn available(&self) -> Option<Instant> {
        self.common.lock().available
    }

    /// Numbers of policies, and when each was there.
    pub fn published(&self) -> BTreeMap<u64, Instant> {
        self.common.lock().published.clone()
    }

    /// There will be no more policies.
    pub fn stop_publishing(&self) {
        self.common.publishes.store(false, Ordering::Relaxed);
    }

    /// How much an agent has measured, by the bucket.
    pub fn measured(&self, agent: &str) -> Option<u32> {
        self.common.lock().measured.get(agent).copied()
    }

    /// Agents of which the bucket does not say yet that they have measured so much.
    pub fn missing(&self, wanted: &[(String, u32)]) -> Vec<String> {
        let seen = self.common.lock();
        let is_there = |agent: &String, measured: u32| {
            let found = seen.measured.get(agent);
            found.is_some_and(|found| *found >= measured)
        };
        let missing = wanted
            .iter()
            .filter(|(agent, measured)| !is_there(agent, *measured));
        missing.map(|(agent, _)| agent.clone()).collect()
    }
}

impl Drop for Operations {
    fn drop(&mut self) {
        self.common.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it panicked, that was printed.
            drop(thread.join());
        }
    }
}

fn work(
    common: &Common,
    settings: &Settings,
    listens: &Settings,
    key: &SigningKey,
    limits: &Limits,
) -> Result<()> {
    let listener = Fleet::start(listens)?;
    let mut operator = None;
    let mut next = Instant::now();
    while !common.ends.load(Ordering::Relaxed) {
        let answered = answer(&mut operator, settings, common, key, limits, &mut next);
        let mut seen = common.lock();
        if answered.is_none() {
            operator = None;
            seen.available = None;
        } else if seen.available.is_none() {
            seen.available = Some(Instant::now());
        }
        drop(seen);
        hear(&listener, common);
    }
    Ok(())
}

/// One look, and a policy if it is time. None: the cluster did not answer.
fn answer(
    operator: &mut Option<Operator>,
    settings: &Settings,
    common: &Common,
    key: &SigningKey,
    limits: &Limits,
    next: &mut Instant,
) -> Option<()> {
    if operator.is_none() {
        *operator = Some(Operator::connect(settings).ok()?);
    }
    let operator = operator.as_mut()?;
    // Each bucket has a leader of its own, and an agent needs all of them.
    operator.make_all(limits).ok()?;
    let all = Name::all();
    let found = operator.last_policies().ok()?.remove(&all);
    let last = found.map(|found| found.unverified().number);
    if let Some(number) = last {
        // Also one whose confirmation was lost.
        common
            .lock()
            .published
            .entry(number)
            .or_insert_with(Instant::now);
    }
    if Instant::now() >= *next && common.publishes.load(Ordering::Relaxed) {
        let number = operator
            .publish_policy(
                &all,
                &super::real::policy(last.unwrap_or_default()),
                1_000_000,
                key,
                &[],
            )
            .ok()?;
        common
            .lock()
            .published
            .entry(number)
            .or_insert_with(Instant::now);
        *next = Instant::now() + POLICY;
    }
    Some(())
}

fn hear(listener: &Fleet, common: &Common) {
    for incoming in listener.take_messages(LOOK) {
        let Incoming::Priors { priors, .. } = incoming else {
            continue;
        };
        for measured in &priors.networks {
            if measured.network == light::network(priors.agent.as_str())
                && let Some(arm) = measured.arms.first()
            {
                let mut seen = common.lock();
                seen.measured.insert(priors.agent.to_string(), arm.segments);
            }
        }
    }
}
