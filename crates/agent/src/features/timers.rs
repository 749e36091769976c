//! Timers by remote network: the least retransmission timeout of connections that recover from losses,
//! and the first timeout of a SYN. A share of connections keeps the kernel's timers; harm takes a
//! network's back.
//!
//! In BPF: `timers.bpf.c`.

use std::any::Any;
use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Json;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodFilter;
use clap::Args as _;
use serde_json::{Value, json};
use thalweg_bpf_types::raw;
use thalweg_control::system::{self, NetworkNamespace};
use thalweg_learner::{HostKey, Mode};
use thalweg_policy::Version;
use thalweg_units::prefix::Prefix;

use crate::api::answer::Answer;
use crate::config::reader::Section;
use crate::feature::{
    Context, Feature, Finding, Hint, List, MetricsWriter, Polled, Route, Settings,
};
use crate::kernel::{Kernel, Setup};
use crate::reporter::{self, Load};
use crate::requirements::{Need, Requirement, Trial};
use crate::store::{Moment, Store, StoreError};
use crate::trials;
use crate::trials::account::Account;
use crate::view::{AdvisedSetting, FeatureEffect};

mod ladder;
mod network;
mod programs;
mod show;
mod view;

use ladder::{DELAYED_ACK_US, Ladder, SynRetries};
use network::{Network, Setting, Timers, When};
use programs::Programs;
use view::NetworkTimers;

/// Interval at which timers in the kernel are renewed, and their life without that.
const RENEW: Duration = Duration::from_secs(30);
const LIFE_NS: u64 = 120_000_000_000;
/// Share of connections with their network's timers, Q16, and number of them after which it grows.
const FIRST_SHARE_Q16: u32 = raw::THALWEG_ONE_Q16 / 16 * 15;
const SHARE_Q16: u32 = raw::THALWEG_ONE_Q16 / 32 * 31;
const FIRST_CONNECTIONS: u32 = 200;

/// Largest number of prefixes of peers.
const PEERS_MAX: usize = raw::THALWEG_TIMERS_PEERS as usize;
/// Most known networks.
const NETWORKS_MAX: usize = raw::THALWEG_TIMERS_NETWORKS as usize;

/// `[timers]`.
#[derive(Debug, PartialEq, Eq)]
struct Configured {
    /// `enabled`.
    enabled: bool,
    /// `least`: least floor.
    least: Duration,
    /// `existing`: connections that were open before have timers, too.
    existing: bool,
    /// `peers`: prefixes whose hosts bound the delay of their ACKs.
    peers: Vec<Prefix>,
    /// `delayed_ack`: that bound.
    delayed_ack: Duration,
}

/// State of the feature; what is known of networks outlives a change of the configuration.
#[derive(Default)]
pub struct State {
    networks: Mutex<HashMap<HostKey, Network>>,
    session: Mutex<Session>,
    /// Account of floors, for the gain.
    account: Mutex<Account>,
}

/// State of a session.
#[derive(Default)]
struct Session {
    /// Whether timers are learned: in mode `thalweg` alone.
    is_on: bool,
    /// Whether they are set: not in a dry run, nor under advice.
    sets: bool,
    /// Whether connections that were open before have them, too.
    existing: bool,
    ladder: Ladder,
    /// Prefixes whose hosts delay ACKs no longer than `bound_us`.
    peers: Vec<Prefix>,
    bound_us: u32,
    salt: u32,
    programs: Load<Programs>,
    /// Retransmissions of SYNs by network namespace cookie.
    retries: HashMap<u64, SynRetries>,
    fault: Option<String>,
    /// Reason that connections that were open before keep the kernel's timers.
    unreached: Option<String>,
}

impl Session {
    fn programs(&self) -> Option<&Programs> {
        self.programs.loaded()
    }

    /// Values that timers of a network may have.
    fn ladder_of(&self, key: &HostKey) -> Ladder {
        let network = key.prefix();
        let is_bound = self.peers.iter().any(|it| it.covers(network));
        Ladder {
            delayed_ack_us: match is_bound {
                true => self.bound_us,
                false => DELAYED_ACK_US,
            },
            ..self.ladder
        }
    }

    /// Bounds the delay of ACKs to peers for so long.
    fn bound_acks(&self, life_ns: u64) -> Result<()> {
        let until_ns = match life_ns {
            0 => 0,
            life_ns => system::monotonic_ns() + life_ns,
        };
        match self.programs() {
            Some(programs) if self.sets => {
                programs::bound_acks(programs, &self.peers, self.bound_us, until_ns)
            }
            _ => Ok(()),
        }
    }

    /// Puts the timers of a network into the kernel.
    fn write(&self, key: &HostKey, network: &Network) -> Result<()> {
        let (Some(programs), Some(retries)) = (self.programs(), self.retries.get(&key.netns))
        else {
            return Ok(());
        };
        if !self.sets {
            return Ok(());
        }
        let Timers {
            floor_us,
            when,
            syn_us,
        } = network.timers(&self.ladder_of(key));
        let (connections, ..) = network.counts();
        let flags = match when {
            When::AfterTimeout => raw::THALWEG_TIMERS_AFTER_TIMEOUT,
            When::Always => 0,
            When::FromStart => raw::THALWEG_TIMERS_FROM_START,
        };
        let timers = raw::thalweg_timers {
            until_ns: system::monotonic_ns() + LIFE_NS,
            floor_us,
            syn_us,
            // Also where the timeout is the kernel's again: a connection may be on its way.
            syn_count: retries.count_for(if syn_us == 0 {
                self.ladder.shortest_syn_us()
            } else {
                syn_us
            }),
            usual_syn_count: retries.retries,
            share_q16: share_q16(connections),
            salt: self.salt,
            flags,
            credit: (raw::THALWEG_SYN_LOSSES * raw::THALWEG_SYN_CREDIT) as i32,
        };
        programs::set(programs, key, &timers)
    }
}

/// Share of a network's connections with its timers, after so many connections.
fn share_q16(connections: u32) -> u32 {
    match connections < FIRST_CONNECTIONS {
        true => FIRST_SHARE_Q16,
        false => SHARE_Q16,
    }
}

/// Reads the retransmissions of SYNs in the thread's network namespace.
fn read_retries() -> Option<(u64, SynRetries)> {
    let number = |name: &str| -> Option<u32> {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let retries = SynRetries {
        retries: number("tcp_syn_retries")?,
        linear: number("tcp_syn_linear_timeouts").unwrap_or(0),
    };
    Some((system::netns_cookie().ok()?, retries))
}

/// Forgets the eighth of the networks whose last connection ended longest ago.
fn make_room(networks: &mut HashMap<HostKey, Network>, programs: &Programs) -> Result<()> {
    for key in trials::oldest(networks, |it| it.seen_ns) {
        programs.remove(&key)?;
        networks.remove(&key);
    }
    Ok(())
}

impl State {
    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn networks(&self) -> MutexGuard<'_, HashMap<HostKey, Network>> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_program(&self, kernel: &Kernel) {
        let mut session = self.session();
        let was_loaded = session.programs().is_some();
        let reaches = session.existing && session.sets;
        let load = || programs::load(kernel, reaches);
        session.programs.ensure_loaded(load);
        if let Some(programs) = session.programs()
            && reaches
            && (!was_loaded || session.unreached.is_some())
        {
            let reached = programs::reach_open_connections(programs);
            session.unreached = reached.err().map(|error| format!("{error:#}"));
        }
    }

    fn find_problem(&self) -> Option<String> {
        let session = self.session();
        match session.programs.program.as_ref()? {
            Err(why) => Some(format!("connections keep the kernel's timers: {why}")),
            Ok(programs) => match programs.check() {
                Err(error) => Some(format!("{error:#}")),
                Ok(()) => session.fault.clone().or_else(|| session.unreached.clone()),
            },
        }
    }

    /// Notes connections that are over, and puts what follows into the kernel.
    fn note_reports(&self, context: &Context<'_>) -> Result<()> {
        let session = self.session();
        let Some(programs) = session.programs() else {
            return Ok(());
        };
        let reports = programs.take_reports()?;
        if reports.is_empty() {
            return Ok(());
        }
        let setup = context.kernel.setup();
        let now_ns = system::monotonic_ns();
        let mut networks = self.networks();
        for report in &reports {
            let remote = Ipv6Addr::from(report.remote).to_canonical();
            let Some(key) = trials::network_key(setup, report.netns, remote) else {
                continue;
            };
            if networks.len() >= NETWORKS_MAX && !networks.contains_key(&key) {
                make_room(&mut networks, programs)?;
            }
            let network = networks.entry(key).or_default();
            let ladder = session.ladder_of(&key);
            let before = network.timers(&ladder);
            // Nothing is known of connections that ended under another floor.
            if session.sets && before.floor_us != 0 && report.floor_us == before.floor_us {
                let share =
                    f64::from(share_q16(network.counts().0)) / f64::from(raw::THALWEG_ONE_Q16);
                let transfer = network::transfer_of_report(report, key, share);
                transfer.iter().for_each(|it| self.account().add(it));
            }
            network.note(report, &ladder, now_ns);
            let after = network.timers(&ladder);
            let grows = network.counts().0 == FIRST_CONNECTIONS;
            if (before != after || grows) && (before.are_set() || after.are_set()) {
                session.write(&key, network)?;
            }
            // What was measured before was ruled by which connection lost a retransmission.
            if session.sets && before.floor_us != after.floor_us {
                context.kernel.forget_network(&key)?;
            }
        }
        Ok(())
    }

    /// Renews the timers in the kernel.
    fn renew(&self) -> Result<()> {
        let session = self.session();
        session.bound_acks(LIFE_NS)?;
        for (key, network) in self.networks().iter() {
            if network.timers(&session.ladder_of(key)).are_set() {
                session.write(key, network)?;
            }
        }
        Ok(())
    }

    fn view(&self, context: &Context<'_>) -> view::Timers {
        let session = self.session();
        let networks = self.networks();
        let mut networks: Vec<_> = networks
            .iter()
            .map(|(key, network)| {
                let containers = &context.containers;
                view::NetworkTimers::new(key, network, &session.ladder_of(key), containers)
            })
            .collect();
        networks.sort_by(|one, other| one.name.cmp(&other.name));
        view::Timers {
            enabled: session.is_on,
            sets: session.is_on && session.sets,
            networks,
        }
    }
}

impl Feature for State {
    fn name(&self) -> &'static str {
        "timers"
    }

    fn hints(&self) -> &'static [Hint] {
        &[(
            "timers",
            "Look at `thalweg doctor`. Connections have the kernel's timers meanwhile.",
        )]
    }

    fn requirement(&self) -> Option<Requirement> {
        Some(Requirement {
            name: "timers",
            means: "timeouts of connections that recover, and of SYNs, by what a network's round trips and losses are (`[timers]`)",
            since: Version(5, 15),
            because: "`bpf_get_netns_cookie` in sockops programs",
            needs: &[Need::SockOps, Need::CgroupSockopt, Need::KernelBtf],
            required: false,
            trial: Trial::Load(thalweg_bpf_objects::TIMERS),
        })
    }

    fn read_settings(&self, root: &mut Section<'_>) -> Arc<dyn Settings> {
        root.section("timers", |section| {
            let words = "Whether timeouts of connections that recover from losses, and of SYNs, are learned and set.";
            let enabled = section.boolean(("enabled", words), false);
            let words = "Least timeout of connections that recover, beside their round trip; two ticks of the kernel at least.";
            let range = Duration::from_millis(2)..=Duration::from_millis(200);
            let least = section.duration(("least", words), range, None, Duration::from_millis(8));
            let words = "Whether connections that were open before the agent have them, too (Linux 6.12).";
            let existing = section.boolean(("existing", words), false);
            let words = "Remote prefixes whose hosts have the same `timers.peers` and `timers.delayed_ack`: floors begin above that.";
            let peers = section.prefixes(("peers", words), PEERS_MAX);
            let words = "Longest delay of ACKs between them; two ticks of the kernel at least.";
            let range = Duration::from_millis(2)..=Duration::from_millis(200);
            let delayed_ack =
                section.duration(("delayed_ack", words), range, None, Duration::from_millis(8));
            Arc::new(Configured {
                enabled,
                least,
                existing,
                peers,
                delayed_ack,
            })
        })
    }

    fn configure(&self, settings: &dyn Settings, setup: &mut Setup) {
        let Some(settings) = (settings as &dyn Any).downcast_ref::<Configured>() else {
            return;
        };
        let ladder = Ladder {
            tick_us: system::jiffy_us(),
            least_us: settings.least.as_micros() as u32,
            delayed_ack_us: DELAYED_ACK_US,
        };
        *self.session() = Session {
            is_on: settings.enabled && setup.params.mode == Mode::Thalweg,
            sets: !setup.dry_run && !setup.advise.only,
            existing: settings.existing,
            ladder,
            peers: settings.peers.clone(),
            bound_us: ladder.bound_us(settings.delayed_ack.as_micros() as u32),
            salt: setup.control.salt as u32,
            ..Session::default()
        };
        *self.account() = Account::default();
    }

    fn load(&self, _: &Kernel, store: &mut Store) -> Result<()> {
        let mut networks = self.networks();
        // A change of the configuration: what is known is newer.
        if !self.session().is_on || !networks.is_empty() {
            return Ok(());
        }
        for (setting, name) in Setting::ALL {
            for kept in store.waits(name, Moment::now())? {
                let network = networks.entry(kept.key).or_default();
                network.restore(setting, &kept);
            }
        }
        Ok(())
    }

    fn save(&self, store: &mut Store) -> Result<(), StoreError> {
        if !self.session().is_on {
            return Ok(());
        }
        let networks = self.networks();
        for (setting, name) in Setting::ALL {
            let waits = networks
                .iter()
                .map(|(key, it)| it.waits(*key)[setting as usize]);
            let waits: Vec<_> = waits.flatten().collect();
            store.save_waits(name, &waits, Moment::now())?;
        }
        Ok(())
    }

    fn start(&self, context: &Context<'_>) -> Option<String> {
        if !self.session().is_on {
            let removed = reporter::remove_earlier(context.kernel, &programs::SOURCE);
            return removed.err().map(|error| format!("{error:#}"));
        }
        self.load_program(context.kernel);
        let bounded = self.session().bound_acks(LIFE_NS);
        let problem = bounded.err().map(|error| format!("{error:#}"));
        problem.or_else(|| self.find_problem())
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.session().is_on.then_some(RENEW)
    }

    fn poll(&self, context: &Context<'_>) -> Polled {
        self.load_program(context.kernel);
        let fault = self.renew().err().map(|error| format!("{error:#}"));
        self.session().fault = fault;
        Polled {
            elsewhere: Duration::ZERO,
            problem: self.find_problem(),
        }
    }

    fn read_rings(&self, context: &Context<'_>) {
        let outcome = self.note_reports(context);
        if let Err(error) = outcome {
            self.session().fault = Some(format!("{error:#}"));
        }
    }

    fn note_namespaces(&self, _: &[NetworkNamespace]) {
        if self.session().is_on {
            let found = system::in_namespaces(|_| true, read_retries);
            self.session().retries = found.into_iter().collect();
        }
    }

    fn reattach(&self, kernel: &Kernel) {
        let mut session = self.session();
        if let Some(programs) = session.programs()
            && let Err(error) = programs.reattach(kernel)
        {
            session.fault = Some(format!("{error:#}"));
        }
    }

    fn find_problems(&self, _: &Context<'_>) -> Vec<Finding> {
        let found = self.find_problem().map(|text| (self.name(), Some(text)));
        found.into_iter().collect()
    }

    fn stop(&self, _: &Context<'_>) -> Result<()> {
        let session = std::mem::take(&mut *self.session());
        let unbounded = session.bound_acks(0);
        session.programs().map_or(Ok(()), programs::expire)?;
        unbounded
    }

    fn explain_host(
        &self,
        host: &HostKey,
        address: IpAddr,
        context: &Context<'_>,
    ) -> Result<Option<Value>> {
        let key = trials::network_key(context.kernel.setup(), host.netns, address);
        let session = self.session();
        let networks = self.networks();
        let known = key.and_then(|key| Some((key, networks.get(&key)?)));
        Ok(known.map(|(key, network)| {
            let containers = &context.containers;
            json!(view::NetworkTimers::new(
                &key,
                network,
                &session.ladder_of(&key),
                containers
            ))
        }))
    }

    fn explanation_text(&self, explanation: &Value) -> Option<String> {
        show::explanation_text(explanation)
    }

    fn feature_effect(&self) -> Option<FeatureEffect> {
        let session = self.session();
        let sets = session.is_on && session.sets;
        sets.then(|| self.account().effect(self.name()))
    }

    fn advised_settings(&self, context: &Context<'_>) -> Vec<AdvisedSetting> {
        let view = self.view(context);
        let networks = view.networks.into_iter();
        match view.enabled && !view.sets {
            true => networks
                .filter_map(NetworkTimers::advised_settings)
                .collect(),
            false => Vec::new(),
        }
    }

    fn routes(&self) -> &'static [Route] {
        &[(MethodFilter::GET, "/v1/timers")]
    }

    fn answer(&self, _: &str, _: &Uri, context: &Context<'_>) -> Answer<Response> {
        Ok(Json(self.view(context)).into_response())
    }

    fn status(&self) -> Option<Value> {
        let session = self.session();
        if !session.is_on {
            return Some(Value::Null);
        }
        let networks = self.networks();
        let set = networks
            .iter()
            .filter(|(key, it)| session.sets && it.timers(&session.ladder_of(key)).are_set());
        let lost = session.programs().and_then(|it| it.lost_reports().ok());
        Some(json!(view::TimersFigures {
            networks: networks.len(),
            set: set.count(),
            lost_reports: lost.unwrap_or(0),
        }))
    }

    fn status_row(&self, status: &Value) -> Option<String> {
        show::status_row(status)
    }

    fn metrics(&self, _: &Context<'_>) -> Result<MetricsWriter> {
        Ok(crate::metrics::write_gauges(&view::GAUGES, self.status()))
    }

    fn list(&self) -> Option<List> {
        Some(List {
            about: "List the timers of remote networks, and what they do",
            add_options: show::Options::augment_args,
            show: show::list,
        })
    }
}
