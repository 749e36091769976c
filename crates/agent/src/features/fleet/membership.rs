//! The agent's place in a fleet. One thread does all of it. Neither connections nor the ring ever wait
//! for it, and it never waits for a server: the client (`thalweg_fleet`) does. See
//! `docs/reference/learner.md`, section *Fleet*.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use thalweg_bpf_types::raw;
use thalweg_control::policy::PolicyPaths;
use thalweg_control::system;
use thalweg_fleet::wire::{Arm, Measured, Network, Priors, Progress, Shard, Status};
use thalweg_fleet::{Fault, Fleet, Incoming, Kind, Outgoing, Settings, StartError, Traffic};
use thalweg_learner::HostKey;
use thalweg_learner::fleet::Prior;

use super::all::{self, Statuses};
use super::apply::Policies;
use super::cells::{self, Counted};
use super::form::{key_of, measured};
use super::records::{FleetNetworks, age_fleet, set_fleet};
use super::report_store::ReportStore;
use super::settings::FleetMember;
use super::view;
use crate::causes::Causes;
use crate::config::ConfigError;
use crate::feature::Session;
use crate::kernel::HostBatch;

/// Longest wait for messages.
const TICK: Duration = Duration::from_millis(500);
/// Messages that wait for the kernel's arms.
const ARRIVED_MAX: usize = 256;
/// Messages after which freed memory goes back to the system: messages are large, what is kept of
/// them is small.
const TRIM: u64 = 200;
/// Interval of scans of the agent's own networks.
const LOOK: Duration = Duration::from_secs(60);
/// Shortest pause between two updates of the fleet's records in the kernel; they take at most 1 % of
/// the time.
const SETTLE: Duration = Duration::from_secs(2);
const SETTLE_PAUSE: u32 = 100;
/// Longest pause between two updates of the fleet's records in the kernel: evidence ages.
const AGE: Duration = Duration::from_secs(600);
/// Age after which networks that are still measured are reported again; their weight halves after a
/// day.
const AGAIN: Duration = Duration::from_secs(20 * 3600);
/// Interval of statuses.
const STATUS: Duration = Duration::from_secs(600);
/// Most statuses between two regular ones, so that problems that come and go cause no more.
const NEWS: u32 = 2;
/// Longest wait for the statuses of all agents.
const PATIENCE: Duration = Duration::from_secs(5);
/// Difference of costs that is worth a message, bits in Q16: an eighth of a bit.
const TOLD_Q16: u64 = 1 << 13;
/// Causes of the problem `fleet`: reports cannot be noted, or not be written to the kernel; the
/// agent's own networks cannot be read; the status cannot be reported; the server refuses messages.
const HEARD: &str = "heard";
const IN_FORCE: &str = "in force";
const OWN_NETWORKS: &str = "own networks";
const OWN_STATUS: &str = "own status";
const SERVER: &str = "server";

/// Counts of the fleet's thread, for the API.
#[derive(Clone, Debug, Default)]
struct Seen {
    agents: usize,
    networks: usize,
    other_rule: u64,
    unheard: u64,
    in_force: FleetNetworks,
    told: usize,
    policies: Vec<Progress>,
}

/// Statuses of all agents, or the error.
type Read = Result<Arc<Statuses>, Fault>;

/// This agent's place in a fleet.
pub struct Membership {
    client: Fleet,
    settings: Settings,
    shares: bool,
    state: PathBuf,
    seen: Mutex<Seen>,
    /// Last read of the statuses, and its time.
    read: Mutex<Option<(Instant, Read)>>,
}

impl Membership {
    /// Starts the client. Known policies are read from the state directory.
    ///
    /// # Errors
    /// Settings that cannot work, as a key that cannot be read.
    pub fn start(member: &FleetMember, state: &Path) -> Result<Self> {
        let mut settings = member.settings().context("fleet.name is \"auto\"")?;
        settings.policies = Policies::numbers(state);
        // A key or a certificate that cannot be used is like a wrong line.
        let client = Fleet::start(&settings).map_err(|error| match error {
            StartError::Settings(fault) => anyhow!(ConfigError::Named {
                may_pass: fault.may_pass(),
                why: format!("{:#}", anyhow!(fault)),
            }),
            error => error.into(),
        });
        Ok(Self {
            client: client.context("[fleet] of the configuration")?,
            settings,
            shares: member.share,
            state: state.to_owned(),
            seen: Mutex::default(),
            read: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This agent's place in its fleet, for the API.
    pub fn place(&self) -> view::FleetPlace {
        let (state, seen) = (self.client.state(), self.lock().clone());
        let traffic = |it: Traffic| view::FleetTraffic {
            messages: it.messages,
            bytes: it.bytes,
        };
        let faults = state.faults.iter();
        view::FleetPlace {
            agent: self.settings.agent.to_string(),
            labels: self
                .settings
                .labels
                .iter()
                .map(ToString::to_string)
                .collect(),
            server: state.connected.as_ref().map(|it| it.server.clone()),
            connected_s: state
                .connected
                .as_ref()
                .map(|it| it.since.elapsed().as_secs()),
            connections: state.connections,
            faults: faults
                .map(|(kind, number)| (kind.name().to_owned(), *number))
                .collect(),
            last_fault: state.last.as_ref().map(|last| view::FleetFault {
                kind: last.fault.kind.name().to_owned(),
                text: last.fault.text.clone(),
                age_s: last.at.elapsed().as_secs(),
            }),
            shares: self.shares,
            takes: self.settings.take,
            told: seen.told as u64,
            agents: seen.agents as u64,
            networks: seen.networks as u64,
            in_force: seen.in_force.written as u64,
            left_out: seen.in_force.left_out as u64,
            other_rule: seen.other_rule,
            unheard: seen.unheard,
            policies: seen.policies.iter().map(all::progress).collect(),
            sent: traffic(state.sent),
            received: traffic(state.received),
        }
    }

    /// Statuses of all agents, read at most `most` ago, so that many requests cause one read. An
    /// error is kept for the same time.
    ///
    /// # Errors
    /// The fleet is away, or does not answer in time.
    pub fn statuses(&self, most: Duration) -> Read {
        let mut last = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, read)) = &*last
            && at.elapsed() < most
        {
            return read.clone();
        }
        let read = self.client.request_statuses(PATIENCE);
        let read = read.map(|members| Arc::new(Statuses::new(members)));
        *last = Some((Instant::now(), read.clone()));
        read
    }

    /// Runs until the session ends.
    pub fn run(&self, session: &dyn Session) {
        let _watch = Watch(session);
        let setup = session.kernel().setup();
        let place = PolicyPaths {
            pin: setup.pin.clone(),
            cgroup: setup.cgroup.clone(),
        };
        let (agent, labels) = (self.settings.agent.clone(), self.settings.labels.clone());
        let policies = Policies::new(agent, labels, &self.state, place, setup.dry_run);
        let mut work = Work {
            arrived: Vec::new(),
            report_store: ReportStore::new(Instant::now()),
            policies,
            has_heard: false,
            is_shared: false,
            logged: BTreeSet::new(),
            received: 0,
            told: HashMap::new(),
            written: None,
            took: Duration::ZERO,
            looked: None,
            status: None,
            problems: Vec::new(),
            news: NEWS,
            faults: BTreeMap::new(),
            causes: Causes::default(),
        };
        while !session.is_stopping() {
            let now = Instant::now();
            let state = self.client.state();
            // Messages that arrived with that state are taken below.
            work.has_heard |= state.looked.is_some();
            if work.is_shared != state.is_shared {
                work.is_shared = state.is_shared;
                let text = format!(
                    "another agent of the fleet has the name {} and its key, as a cloned machine has: give \
                     each its own fleet.name and key",
                    self.settings.agent
                );
                session.problem("fleet-name", work.is_shared.then_some(text));
                // Other agents see it in the status.
                work.status = None;
            }
            work.causes
                .note_outcome(SERVER, taken_by_server(state.refused.as_ref()));
            if let Some(last) = state
                .last
                .filter(|last| work.logged.insert(last.fault.kind))
            {
                tracing::warn!("fleet: {}", last.fault);
            }
            let incoming = match work.arrived.len() < ARRIVED_MAX {
                true => self.client.take_messages(TICK),
                // The kernel's arms cannot be read: take no more meanwhile.
                false => {
                    std::thread::sleep(TICK);
                    Vec::new()
                }
            };
            for incoming in incoming {
                // Records in force stay until all reports have been received again.
                work.has_heard &= incoming != Incoming::Anew;
                match incoming {
                    Incoming::Policy(policy) => work.policies.take(policy),
                    other => work.arrived.push(other),
                }
            }
            match work.policies.attend(now) {
                Ok(None) => {}
                Ok(Some(changed)) => {
                    session.problem("fleet-policy", None);
                    self.lock().policies = work.policies.progress();
                    if changed {
                        // The publisher hears of it at once.
                        work.status = None;
                    }
                }
                Err(error) => {
                    session.problem("fleet-policy", Some(format!("{error:#}")));
                    self.lock().policies = work.policies.progress();
                }
            }
            session.problem("fleet-file", work.policies.unread());
            let received = hear(session, &mut work, now);
            work.causes.note_outcome(HEARD, received);
            self.attend(session, &mut work, now);
            session.problem("fleet", work.causes.in_words());
        }
    }

    /// Does what is due. A failure holds up nothing else.
    fn attend(&self, session: &dyn Session, work: &mut Work, now: Instant) {
        let is_due = |at: Option<Instant>, pause| at.is_none_or(|at| now - at >= pause);
        let pause = match work.has_heard && work.report_store.has_changed() {
            true => SETTLE.max(work.took * SETTLE_PAUSE).min(AGE),
            false if work.causes.is_failing(IN_FORCE) => LOOK,
            false => AGE,
        };
        // Messages that wait for the kernel's arms belong to the update.
        let has_noted = work.arrived.is_empty();
        if self.settings.take && has_noted && is_due(work.written, pause) {
            work.written = Some(now);
            let outcome = self.put_in_force(session, work, now);
            work.causes.note_outcome(IN_FORCE, outcome);
            work.took = now.elapsed();
        }
        if is_due(work.looked, LOOK) {
            work.looked = Some(now);
            let outcome = self.look_at_own(session, work, now);
            work.causes.note_outcome(OWN_NETWORKS, outcome);
        }
        // The event loop polls; a problem is reported when it comes and when it ends.
        let kinds = session.noted_kinds();
        let is_news = kinds != work.problems && work.news > 0;
        if is_due(work.status, STATUS) || is_news {
            work.news = match is_due(work.status, STATUS) {
                true => NEWS,
                false => work.news - 1,
            };
            work.problems = kinds;
            work.status = Some(now);
            let policies = work.policies.progress();
            let faults = cells::faults(&self.client.state(), &mut work.faults, now);
            let status = self.status(session, policies, faults);
            let offered = self.client.offer_message(&Outgoing::Status(status));
            let outcome = offered.context("the fleet is not told how this agent is");
            work.causes.note_outcome(OWN_STATUS, outcome);
        }
    }

    /// Writes the records of other agents' reports, once all reports have been received.
    fn put_in_force(&self, session: &dyn Session, work: &mut Work, now: Instant) -> Result<()> {
        if !work.has_heard {
            // Records of an earlier session stay until then, or until they are too old.
            let left = age_fleet(session.kernel())?;
            self.lock().in_force = left;
            return Ok(());
        }
        self.write(session, &mut work.report_store, now)?;
        // Memory of the last messages and of this update.
        system::trim_memory();
        Ok(())
    }

    /// Scans the agent's own networks, and reports them.
    fn look_at_own(&self, session: &dyn Session, work: &mut Work, now: Instant) -> Result<()> {
        let (groups, of_fleet) = session.kernel().own_groups()?;
        if of_fleet < self.lock().in_force.written {
            // A full table evicts also the fleet's records.
            work.written = None;
        }
        if self.shares {
            let told = self.tell(session, work, groups, now);
            let text = told.err().map(|error| {
                format!("the fleet lacks some of what this agent measured: {error:#}")
            });
            session.problem("fleet-share", text);
        }
        Ok(())
    }

    /// Writes the records of other agents' reports in each network namespace: containers talk to
    /// the same networks.
    fn write(
        &self,
        session: &dyn Session,
        report_store: &mut ReportStore,
        now: Instant,
    ) -> Result<()> {
        let setup = session.kernel().setup();
        let lengths = (setup.networks.ipv4_prefix, setup.networks.ipv6_prefix);
        let arms = session.kernel().arms()?;
        report_store.forget_old(now);
        let mut known: HashMap<usize, Vec<(Network, Prior)>> = HashMap::new();
        let mut told = BTreeMap::new();
        let mut elsewhere = 0;
        // Without the system's arm nothing can be compared.
        let defaults = session.kernel().defaults()?.into_iter();
        let defaults: Vec<_> = defaults
            .filter_map(|(netns, system)| Some((netns, system?)))
            .collect();
        for (_, system) in &defaults {
            known
                .entry(*system)
                .or_insert_with(|| report_store.priors(|name| arms.index(name), *system, now));
        }
        for (netns, system) in defaults {
            let priors = &known[&system];
            let records: Vec<(HostKey, &Prior)> = priors
                .iter()
                .filter_map(|(network, prior)| Some((key_of(network, netns, lengths)?, prior)))
                .collect();
            elsewhere += priors.len() - records.len();
            told.insert(netns, records);
        }
        let mut done = set_fleet(session.kernel(), &told)?;
        done.left_out += elsewhere;
        report_store.note_taken();
        let mut seen = self.lock();
        seen.in_force = done;
        seen.agents = report_store.agents();
        seen.networks = report_store.networks();
        seen.other_rule = report_store.other_rule();
        seen.unheard = report_store.unheard();
        Ok(())
    }

    /// Reports this agent's measurements that differ from its last report.
    fn tell(
        &self,
        session: &dyn Session,
        work: &mut Work,
        groups: HostBatch,
        now: Instant,
    ) -> Result<()> {
        let arms = session.kernel().arms()?;
        let named = |number: u64| {
            session
                .kernel()
                .setup()
                .named
                .name(number)
                .map(str::to_owned)
        };
        let mut all: HashMap<Network, Measured> = HashMap::new();
        for (key, group) in groups {
            let Some(measured) = measured(&key, &group, &arms, named) else {
                continue;
            };
            // Several namespaces may know the network: the one with most evidence reports it.
            match all.entry(measured.network.clone()) {
                Entry::Occupied(mut other) if evidence(&measured) > evidence(other.get()) => {
                    other.insert(measured);
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(place) => drop(place.insert(measured)),
            }
        }
        self.lock().told = all.len();
        let mut shards: BTreeMap<Shard, Vec<Measured>> = BTreeMap::new();
        for (network, measured) in all {
            shards.entry(network.shard()).or_default().push(measured);
        }
        let gone: Vec<Shard> = work.told.keys().copied().collect();
        for shard in gone {
            // Networks that were reported before and are forgotten now.
            shards.entry(shard).or_default();
        }
        offer_shards(shards, &mut work.told, now, |shard, networks| {
            let priors = Priors {
                agent: self.settings.agent.clone(),
                shard,
                rule: raw::THALWEG_RULE,
                networks,
            };
            Ok(self.client.offer_message(&Outgoing::Priors(priors))?)
        })
    }

    fn status(
        &self,
        session: &dyn Session,
        policies: Vec<Progress>,
        faults: Vec<String>,
    ) -> Status {
        let setup = session.kernel().setup();
        // Otherwise the comparison is of an earlier configuration.
        let compares = !setup.dry_run && !setup.advise.only && setup.control.share_q16 > 0;
        let problems = session.checked_kinds().into_iter().map(str::to_owned);
        Status {
            agent: self.settings.agent.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            // The client sets the instance.
            instance: None,
            is_shared: false,
            labels: self.settings.labels.clone(),
            policies,
            faults: problems.chain(faults).collect(),
            cells: cells::cells(&session.compared(compares)),
        }
    }
}

/// Puts arrived messages into the report store. They wait while the kernel's arms cannot be read.
fn hear(session: &dyn Session, work: &mut Work, now: Instant) -> Result<()> {
    if work.arrived.is_empty() {
        return Ok(());
    }
    let arms = session.kernel().arms()?;
    let knows = |name: &str| arms.index(name).is_some();
    for incoming in std::mem::take(&mut work.arrived) {
        work.report_store
            .take(incoming, raw::THALWEG_RULE, knows, now);
        work.received += 1;
        if work.received.is_multiple_of(TRIM) {
            system::trim_memory();
        }
    }
    Ok(())
}

/// Fails if the server refuses messages.
fn taken_by_server(refused: Option<&Fault>) -> Result<()> {
    match refused {
        None => Ok(()),
        Some(fault) => Err(anyhow!("the server refuses what this agent tells: {fault}")),
    }
}

/// Reports a panic of the thread: the agent continues without the fleet.
struct Watch<'a>(&'a dyn Session);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = "the fleet's thread panicked; the agent goes on without the fleet until it \
                        is started again, or reloaded";
            self.0.problem("fleet", Some(text.to_owned()));
        }
    }
}

fn evidence(measured: &Measured) -> u64 {
    let arms = measured.arms.iter();
    arms.map(|arm| u64::from(arm.evidence_q16)).sum()
}

/// State of the thread's loop.
struct Work {
    /// Messages that are not in the report store yet.
    arrived: Vec<Incoming>,
    report_store: ReportStore,
    policies: Policies,
    /// Whether all reports from before the session have been received.
    has_heard: bool,
    /// Whether another agent has this agent's name and key.
    is_shared: bool,
    /// Kinds of faults that are in the log: each once a session, as `fleet status` counts them.
    logged: BTreeSet<Kind>,
    /// Number of received messages.
    received: u64,
    /// Last report by shard, with its time.
    told: HashMap<Shard, (Instant, Told)>,
    /// Time of the last update of the fleet's records, and its duration.
    written: Option<Instant>,
    took: Duration,
    looked: Option<Instant>,
    status: Option<Instant>,
    /// Kinds of problems that the last status had.
    problems: Vec<&'static str>,
    /// Statuses that may still be sent before the next regular one.
    news: u32,
    /// Counts of the client's faults at the last status.
    faults: BTreeMap<Kind, Counted>,
    causes: Causes,
}

type Told = HashMap<Network, Vec<Arm>>;

/// Offers the shards that differ from the last report. A shard that cannot be offered keeps back no
/// other, and is offered again the next time.
///
/// # Errors
/// The first error of `offer`.
fn offer_shards(
    shards: BTreeMap<Shard, Vec<Measured>>,
    told: &mut HashMap<Shard, (Instant, Told)>,
    now: Instant,
    mut offer: impl FnMut(Shard, Vec<Measured>) -> Result<()>,
) -> Result<()> {
    let mut outcome = Ok(());
    for (shard, mut networks) in shards {
        // The last networks may have no room in a message.
        networks.sort_by_cached_key(|it| (Reverse(evidence(it)), it.network.clone()));
        let is_told = told.get(&shard).is_some_and(|(at, told)| {
            let is_old = now - *at >= AGAIN && is_alive(&networks, now - *at);
            !is_old && !differ(told, &networks)
        });
        if is_told {
            continue;
        }
        match offer(shard, networks.clone()) {
            Ok(()) => drop(told.insert(shard, (now, by_network(networks)))),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}

fn by_network(networks: Vec<Measured>) -> Told {
    let pairs = networks.into_iter().map(|it| (it.network, it.arms));
    pairs.collect()
}

/// Whether measurements differ from the last report by more than is worth a message.
fn differ(before: &Told, now: &[Measured]) -> bool {
    before.len() != now.len()
        || now
            .iter()
            .any(|measured| match before.get(&measured.network) {
                None => true,
                Some(told) => measured.arms.iter().any(|arm| {
                    let same = told.iter().find(|it| it.name == arm.name);
                    same.is_none_or(|told| is_news(told, arm))
                }),
            })
}

/// Whether one of the networks was measured within this time.
fn is_alive(networks: &[Measured], time: Duration) -> bool {
    networks
        .iter()
        .any(|it| u64::from(it.age_s) < time.as_secs())
}

fn is_news(told: &Arm, arm: &Arm) -> bool {
    let apart = u64::from(told.cost_q16.abs_diff(arm.cost_q16));
    // Evidence decays by itself, everywhere alike.
    let grown = u64::from(arm.evidence_q16) > u64::from(told.evidence_q16) * 3 / 2 + (1 << 15);
    apart > TOLD_Q16 || grown
}
