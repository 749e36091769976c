//! Event loop: one thread that passes the ring's events to the store's writer, and updates the
//! tables of arms and of namespace defaults.

mod log;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use libbpf_rs::RingBufferBuilder;
use thalweg_bpf_types::{from_bytes, raw};
use thalweg_control::system;
use thalweg_units::address::{Nat64, WELL_KNOWN};

use crate::arms::wanted_arms;
use crate::causes::Causes;
use crate::discovery::{Discovery, has_ipv6_route};
use crate::events::{self, Decoder};
use crate::eviction::Room;
use crate::kernel::Candidates;
use crate::lock::PinLock;
use crate::others;
use crate::overridden::{Overridden, Seen};
use crate::refused::RefusedArms;
use crate::scans::{Looks, Stopwatch};
use crate::service::Watchdog;
use crate::shared::Shared;
use crate::writer::Writer;

/// Longest wait for events. The programs wake the event loop only when many events are pending, so
/// that establishing a connection never pays for a wake-up.
const TICK: Duration = Duration::from_millis(200);
/// Interval of checks for new congestion controls of the kernel.
const DISCOVER: Duration = Duration::from_secs(10);
/// Time after which an arm that the kernel refused is allowed again.
const FORGIVE: Duration = Duration::from_secs(600);
/// Interval of checks of all namespaces, unless an unknown one appears.
const NAMESPACES: Duration = Duration::from_secs(60);
/// Interval of polls for unknown namespaces, and the longer one after a search in vain.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_IN_VAIN: Duration = Duration::from_secs(10);
/// Interval of polls of programs and pins.
const ATTEND: Duration = Duration::from_secs(1);
/// Interval of polls of congestion controls and the store's file.
const ATTEND_OTHERS: Duration = Duration::from_secs(2);
/// Interval of evaluations of the spread of networks.
const SPREAD: Duration = Duration::from_secs(60);
/// Largest number of remembered namespaces outside the agent's scope.
const UNREACHABLE_MAX: usize = 10_000;
/// Causes of the problem `long-connections`: the connections' slots, and a visit to connections.
const SLOTS: &str = "slots";
const VISIT: &str = "visit";

/// State of the event loop.
pub struct EventLoop {
    shared: Arc<Shared>,
    writer: Writer,
    decoder: Decoder,
    /// Default arm of each namespace in scope; `None`: the default is not an arm.
    defaults: HashMap<u64, Option<usize>>,
    /// The namespaces in scope.
    namespaces: Vec<system::NetworkNamespace>,
    /// Namespaces that were searched in vain: they are not searched again.
    unreachable: HashSet<u64>,
    /// Time of the next search for an out-of-scope namespace that had a connection.
    look: Instant,
    discovered: Instant,
    forgave: Instant,
    /// Time of the last evaluation of the spread; `None`: not in this session.
    spread_seen: Option<Instant>,
    namespaces_read: Option<Instant>,
    looks: Looks,
    /// Poll schedule of each feature.
    feature_polls: Vec<Looks>,
    /// Reasons that long connections are scored only at their end.
    long_faults: Causes,
    refused: RefusedArms,
    dropped: u64,
    room: Room,
    /// Discovery of NAT64's prefixes, where the operator names none.
    discovery: Option<Discovery>,
    /// Whether a silent resolver was reported.
    is_nat64_told: bool,
    log: log::Limit,
    /// Time of the last poll of overridden connections.
    overridden_seen: Instant,
    overridden: Overridden,
    watchdog: Watchdog,
    /// Lock of the directory of pins.
    pins: Arc<PinLock>,
    /// Time of the last poll of programs and pins.
    attended: Option<Instant>,
    /// Time of the last poll of congestion controls and the store's file.
    attended_others: Option<Instant>,
}

impl EventLoop {
    /// Prepares the event loop, and starts the writer thread.
    pub fn new(shared: Arc<Shared>, pins: Arc<PinLock>) -> Result<Self> {
        let now = Instant::now();
        let writer_channel = shared.take_writer_channel();
        let writer_channel = writer_channel.ok_or_else(|| anyhow!("there is a keeper already"))?;
        Ok(Self {
            writer: Writer::start(Arc::clone(&shared), writer_channel)?,
            decoder: Decoder::new(shared.mode()),
            defaults: HashMap::new(),
            namespaces: Vec::new(),
            unreachable: HashSet::new(),
            look: now,
            discovered: now,
            forgave: now,
            spread_seen: None,
            namespaces_read: None,
            looks: Looks::every(shared.kernel.look_interval()),
            feature_polls: {
                let features = shared.statistics.features.iter();
                features
                    .map(|it| Looks::from_now(it.poll_interval()))
                    .collect()
            },
            long_faults: Causes::default(),
            refused: RefusedArms::default(),
            dropped: 0,
            room: Room::default(),
            discovery: (shared.kernel.setup().nat64.is_none()).then(Discovery::new),
            is_nat64_told: false,
            log: log::Limit::new(shared.config.events),
            overridden_seen: now,
            overridden: Overridden::new(now, ran_instead(&shared)?),
            watchdog: Watchdog::new(),
            pins,
            attended: None,
            attended_others: None,
            shared,
        })
    }

    /// Runs until the session ends, then handles the remaining events and saves.
    pub fn run(mut self) -> Result<()> {
        let outcome = self.attend();
        outcome.and(self.writer.end())
    }

    fn attend(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let pending = Rc::new(RefCell::new(Vec::<raw::thalweg_event>::new()));
        let sink = Rc::clone(&pending);
        let mut builder = RingBufferBuilder::new();
        builder.add(shared.kernel.ring(), move |bytes| {
            if let Some(event) = from_bytes(bytes) {
                sink.borrow_mut().push(event);
            }
            0
        })?;
        let ring = builder.build().context("opening the event ring")?;
        let take_all = |event_loop: &mut Self| {
            ring.consume().context("reading events")?;
            let events = std::mem::take(&mut *pending.borrow_mut());
            event_loop.take(&events);
            Ok(())
        };
        self.read_namespaces();
        loop {
            // Poll returns on a wake-up by the programs or after a tick. Events without a wake-up
            // are taken, too.
            match ring.poll(TICK) {
                Ok(()) => {}
                Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("waiting for events"),
            }
            take_all(self)?;
            self.read_rings();
            shared.note_pass();
            self.watchdog.tick();
            if shared.is_stopping() && shared.is_done() {
                break;
            }
            self.upkeep();
            if self.looks.are_due() {
                self.look_at_long(take_all)?;
            }
            self.poll_features();
        }
        take_all(self)?;
        self.read_rings();
        Ok(())
    }

    /// Polls the features that are due.
    fn poll_features(&mut self) {
        let shared = Arc::clone(&self.shared);
        for (feature, polls) in shared
            .statistics
            .features
            .iter()
            .zip(&mut self.feature_polls)
        {
            if !polls.are_due() {
                continue;
            }
            let began = Instant::now();
            let mut watch = Stopwatch::default();
            let context = shared.feature_context();
            let polled = watch.timed(|| feature.poll(&context));
            let time = watch.total() + polled.elsewhere;
            polls.note(began, time, feature.poll_statistics());
            context.reporter.problem(feature.name(), polled.problem);
        }
    }

    /// Scores long connections before their end. The programs' events are taken meanwhile.
    fn look_at_long(&mut self, take_all: impl Fn(&mut Self) -> Result<()>) -> Result<()> {
        let began = Instant::now();
        let shared = Arc::clone(&self.shared);
        let mut watch = Stopwatch::default();
        match watch.timed(|| shared.kernel.candidates()) {
            Err(error) => self.long_faults.note_outcome(SLOTS, Err(error)),
            Ok(candidates) => {
                self.long_faults.note_outcome(SLOTS, Ok(()));
                // Without a visit it is unknown whether one would work. After a failure the own
                // namespace is visited also without candidates: those of the failure may be gone.
                if !candidates.are_none() || self.long_faults.is_failing(VISIT) {
                    let visited = self.visit_long(candidates, &mut watch, &take_all);
                    self.long_faults.note_outcome(VISIT, visited);
                }
            }
        }
        self.looks
            .note(began, watch.total(), Some(&shared.statistics.looks));
        shared.problem("long-connections", self.long_faults.in_words());
        take_all(self)
    }

    fn visit_long(
        &mut self,
        candidates: Candidates,
        watch: &mut Stopwatch,
        take_all: &impl Fn(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let visits = watch.timed(|| shared.kernel.visits(candidates, shared.own_netns))?;
        for mut visit in visits {
            while watch.timed(|| visit.go_on())? {
                if shared.is_stopping() {
                    return Ok(());
                }
                take_all(self)?;
                self.watchdog.tick();
            }
        }
        Ok(())
    }

    /// Reads the rings of features.
    fn read_rings(&self) {
        let context = self.shared.feature_context();
        let features = self.shared.statistics.features.iter();
        features.for_each(|it| it.read_rings(&context));
    }

    /// Stores, publishes and logs events.
    fn take(&mut self, raw_events: &[raw::thalweg_event]) {
        if raw_events.is_empty() {
            return;
        }
        let arms = match self.shared.kernel.arms() {
            Ok(arms) => arms,
            Err(error) => return self.shared.problem("arms", Some(format!("{error:#}"))),
        };
        self.shared.problem("arms", None);
        // The others only count for the comparison with the control group.
        let told: Vec<_> = raw_events.iter().filter(|it| events::is_told(it)).collect();
        self.shared.statistics.count(&told, &arms);
        self.refused.note_decisions(&told, &arms);
        let context = self.shared.feature_context();
        for feature in &self.shared.statistics.features {
            feature.take_events(raw_events, &arms, &context);
        }
        let stand_for: Vec<f64> = self.shared.sampling(|sampling| {
            sampling.advance(system::monotonic_ns());
            told.iter().map(|event| sampling.take(event)).collect()
        });
        // Events are decoded only if somebody reads them.
        let is_watched = self.shared.live.receiver_count() > 0;
        let mut kept = Vec::new();
        for (event, stands_for) in told.iter().zip(stand_for) {
            let is_logged = self.log.wants(event, &arms);
            if !is_logged && !is_watched && stands_for == 0.0 {
                continue;
            }
            let event = self.decoder.decode(event, &arms, stands_for);
            if is_logged {
                log::line(&event);
            }
            if is_watched {
                // Without a receiver this fails, which is no error: the last one may just have
                // gone.
                let _ = self.shared.live.send(Arc::new(event.clone()));
            }
            if stands_for > 0.0 {
                kept.push(event);
            }
        }
        let left_out = (told.len() - kept.len()) as u64;
        let statistics = &self.shared.statistics;
        statistics.left_out.fetch_add(left_out, Ordering::Relaxed);
        if kept.is_empty() {
            return;
        }
        if self.shared.writer_handle.store(kept) {
            self.shared
                .trouble_ends("store-behind", "the store keeps up again");
        } else {
            let text = "events are lost: the disk of the store is too slow for them";
            self.shared.trouble("store-behind", text.to_owned());
        }
    }

    /// Does periodic work.
    fn upkeep(&mut self) {
        self.log.flush();
        if self.attended.is_none_or(|at| at.elapsed() >= ATTEND) {
            self.attended = Some(Instant::now());
            self.shared.attend_programs(&self.pins);
        }
        if self
            .attended_others
            .is_none_or(|at| at.elapsed() >= ATTEND_OTHERS)
        {
            self.attended_others = Some(Instant::now());
            self.shared.attend_others();
        }
        let outcome = self.make_room();
        self.shared
            .problem("room", outcome.err().map(|error| format!("{error:#}")));
        self.discover_nat64();
        if self.discovered.elapsed() >= DISCOVER {
            self.discovered = Instant::now();
            self.decoder.adjust_clock();
            let alive = self.shared.kernel.heartbeat();
            let outcome = alive.and_then(|()| self.discover());
            self.shared
                .problem("discovery", outcome.err().map(|error| format!("{error:#}")));
            self.report_drops();
            self.shared.name_containers(&self.namespaces);
        }
        if self.spread_seen.is_none_or(|at| at.elapsed() >= SPREAD) {
            self.spread_seen = Some(Instant::now());
            let outcome = self.shared.kernel.refresh_worth();
            self.shared
                .problem("networks", outcome.err().map(|error| format!("{error:#}")));
        }
        let since = self.namespaces_read.map(|at| at.elapsed());
        if since.is_none_or(|age| age >= NAMESPACES) {
            self.read_namespaces();
        }
        if self.look <= Instant::now() {
            self.look_for_strangers();
        }
        if self.overridden_seen.elapsed() >= LOOK {
            self.overridden_seen = Instant::now();
            self.look_for_overridden();
        }
    }

    fn look_for_overridden(&mut self) {
        let setup = self.shared.kernel.setup();
        let others = || others::sockops_programs(&setup.cgroup, &setup.pin);
        let strange = match ran_instead(&self.shared) {
            Ok(seen) => self.overridden.look(Instant::now(), seen, others),
            Err(error) => Some(format!("{error:#}")),
        };
        self.shared.problem("overridden", strange);
    }

    /// Keeps room for new hosts in the table.
    fn make_room(&mut self) -> Result<()> {
        let kernel = &self.shared.kernel;
        let counters = kernel.counters()?;
        let (created, missed) = (counters.hosts_created, counters.hosts_missed);
        let now = Instant::now();
        if (self.room).is_due(created, missed, kernel.records_high(), now) {
            self.room.note(kernel.make_room()?, created, missed, now);
        }
        Ok(())
    }

    /// Sets the NAT64 prefixes that the resolver reports.
    fn discover_nat64(&mut self) {
        let discovery = self.discovery.as_mut();
        let Some(answer) = discovery.and_then(|it| it.poll(Instant::now())) else {
            return;
        };
        let kernel = &self.shared.kernel;
        let found = match answer {
            Ok(found) => found,
            Err(error) => {
                // No problem: the unit may keep resolvers of other machines from the agent.
                let is_unknown = kernel.nat64() == Nat64::default() && has_ipv6_route();
                if is_unknown && !std::mem::replace(&mut self.is_nat64_told, true) {
                    tracing::warn!(
                        "the resolver does not say whether there is NAT64 ({error}): until it \
                         answers for ipv4only.arpa, hosts behind another prefix than {WELL_KNOWN} \
                         share records; mend it, or set hosts.nat64"
                    );
                }
                return;
            }
        };
        let mut fault = None;
        if kernel.nat64() != Nat64::new(&found) {
            let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
            tracing::info!("NAT64 by the resolver: {}", texts.join(", "));
            fault = kernel.set_nat64(&found).err();
        }
        // The present prefixes may be wanted again although the others could not be set.
        let fault = fault.map(|error| format!("{error:#}"));
        self.shared.problem("nat64", fault);
    }

    fn discover(&mut self) -> Result<()> {
        let kernel = &self.shared.kernel;
        let forgive = self.forgave.elapsed() >= FORGIVE;
        if forgive {
            self.forgave = Instant::now();
        }
        self.refused.note_table(&kernel.arms()?);
        let (came, went) = kernel.refresh_arms(
            &wanted_arms(&self.shared.config, &self.shared.statistics.arms_at_start)?,
            forgive,
        )?;
        self.shared.problem("refused", self.refused.in_words());
        for name in came {
            tracing::info!(arm = name, "congestion control {name} has become available");
        }
        for name in went {
            tracing::info!(
                arm = name,
                "congestion control {name} is no longer available"
            );
        }
        self.set_default(self.shared.own_netns, &system::default_cc()?)
    }

    fn set_default(&mut self, netns: u64, name: &str) -> Result<()> {
        let index = self.shared.kernel.arms()?.index(name);
        if self.defaults.get(&netns) != Some(&index) {
            self.shared.kernel.set_default(netns, index)?;
            self.defaults.insert(netns, index);
        }
        Ok(())
    }

    /// Searches for unknown namespaces that had a connection: they may belong in the scope.
    fn look_for_strangers(&mut self) {
        let strangers = match self.shared.kernel.take_strangers() {
            Ok(strangers) => strangers,
            Err(error) => {
                let text = format!("{error:#}");
                return self.shared.problem("strangers", Some(text));
            }
        };
        self.shared.problem("strangers", None);
        let mut wanted: HashSet<u64> = strangers.into_iter().collect();
        wanted.retain(|netns| !self.unreachable.contains(netns));
        self.look = Instant::now() + LOOK;
        if wanted.is_empty() {
            return;
        }
        self.read_namespaces();
        wanted.retain(|netns| !self.defaults.contains_key(netns));
        if wanted.is_empty() {
            return;
        }
        // A process that creates namespaces without end must not keep the agent busy.
        self.look = Instant::now() + LOOK_IN_VAIN;
        if self.unreachable.len() > UNREACHABLE_MAX {
            self.unreachable.clear();
        }
        self.unreachable.extend(wanted);
    }

    /// Reads the default congestion control of every namespace in scope.
    fn read_namespaces(&mut self) {
        self.namespaces_read = Some(Instant::now());
        let found = system::entered_namespaces(self.shared.config.hosts.user_namespaces);
        let alive: HashSet<u64> = found.iter().map(|namespace| namespace.cookie).collect();
        self.unreachable.retain(|netns| !alive.contains(netns));
        // Others may have emptied the table, and a full table evicts.
        let mut outcome = match self.shared.kernel.defaults() {
            Ok(there) => {
                self.defaults = there;
                Ok(())
            }
            Err(error) => Err(error),
        };
        for namespace in &found {
            outcome = outcome.and(self.set_default(namespace.cookie, &namespace.default_cc));
        }
        for feature in &self.shared.statistics.features {
            feature.note_namespaces(&found);
        }
        match self.shared.kernel.ended_unseen(&found) {
            Ok(ends) => self.overridden.note_unseen(ends),
            Err(error) => outcome = outcome.and(Err(error)),
        }
        self.namespaces = found;
        self.shared.name_containers(&self.namespaces);
        for netns in self.defaults.keys().copied().collect::<Vec<_>>() {
            if !alive.contains(&netns) {
                self.defaults.remove(&netns);
                outcome = outcome.and(self.shared.kernel.forget_default(netns));
            }
        }
        self.shared.problem(
            "namespaces",
            outcome.err().map(|error| format!("{error:#}")),
        );
    }

    fn report_drops(&mut self) {
        let Ok(counters) = self.shared.kernel.counters() else {
            return;
        };
        let fresh = counters.events_dropped.saturating_sub(self.dropped);
        if fresh > 0 {
            tracing::warn!(
                "{fresh} events were dropped because the ring was full (learning is not \
                 affected; raise [events] ring)"
            );
        }
        self.dropped = counters.events_dropped;
    }
}

/// Counts of connections whose settings were overridden.
///
/// # Errors
/// Maps that cannot be read.
fn ran_instead(shared: &Shared) -> Result<Seen> {
    let (features, counters) = (shared.statistics.features.iter(), shared.kernel.counters()?);
    Ok(Seen {
        names: shared.kernel.overridden()?,
        of_features: features
            .flat_map(|it| it.count_overridden(&counters))
            .collect(),
        counters,
        ..Seen::default()
    })
}
