//! Windows over idle times: after one longer than its retransmission timeout the kernel restarts a
//! connection from the initial window. Where a network's exchanges suffer from that, connections keep
//! their windows; a share of them is restarted as usual, and harm takes windows back.
//!
//! In BPF: `idle.bpf.c` and `idle_cubic.bpf.c`.

use std::any::Any;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Json;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodFilter;
use clap::Args as _;
use serde_json::{Value, json};
use thalweg_bpf_types::{key_from_raw, raw};
use thalweg_control::system;
use thalweg_learner::{HostKey, Mode};
use thalweg_policy::Version;

use crate::api::answer::Answer;
use crate::config::reader::Section;
use crate::feature::{
    Context, Feature, Finding, Hint, List, MetricsWriter, Polled, Route, Settings,
};
use crate::kernel::{Kernel, Setup};
use crate::reporter::Load;
use crate::requirements::{Need, Requirement, Trial};
use crate::store::{Moment, Store, StoreError};
use crate::trials::account::{Account, Kind, Transfer};
use crate::trials::{self, Wait};
use crate::view::FeatureEffect;

mod network;
mod programs;
mod show;
mod view;

use network::Network;
use programs::Programs;

/// Interval at which networks in the kernel are renewed, and their life without that.
const RENEW: Duration = Duration::from_secs(30);
const LIFE_NS: u64 = 120_000_000_000;
/// Share of connections that keep their windows, Q16.
const SHARE_Q16: u32 = raw::THALWEG_ONE_Q16 / 16 * 15;
/// Most known networks.
const NETWORKS_MAX: usize = raw::THALWEG_IDLE_NETWORKS as usize;

/// `[idle]`.
#[derive(Debug, PartialEq, Eq)]
struct Configured {
    /// `enabled`.
    enabled: bool,
}

/// State of the feature; what is known of networks outlives a change of the configuration.
#[derive(Default)]
pub struct State {
    networks: Mutex<HashMap<HostKey, Network>>,
    session: Mutex<Session>,
    /// Account of kept windows, for the gain.
    account: Mutex<Account>,
}

/// State of a session.
#[derive(Default)]
struct Session {
    /// Whether exchanges are measured: in mode `thalweg` alone, and not under advice or in a dry run,
    /// where no connection may get another congestion control.
    is_on: bool,
    salt: u32,
    programs: Load<Programs>,
    fault: Option<String>,
}

impl Session {
    fn programs(&self) -> Option<&Programs> {
        self.programs.loaded()
    }
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
        let load = || programs::load(kernel);
        self.session().programs.ensure_loaded(load);
    }

    fn find_problem(&self) -> Option<String> {
        let session = self.session();
        match session.programs.program.as_ref()? {
            Err(why) => Some(format!(
                "the kernel restarts windows after idle times: {why}"
            )),
            Ok(programs) => match programs.reporter.check() {
                Err(error) => Some(format!("{error:#}")),
                Ok(()) => session.fault.clone(),
            },
        }
    }

    /// Notes exchanges, and puts what follows into the kernel.
    fn note_reports(&self) -> Result<()> {
        let session = self.session();
        let Some(programs) = session.programs() else {
            return Ok(());
        };
        let reports = programs.reporter.take_reports()?;
        if reports.is_empty() {
            return Ok(());
        }
        let now_ns = system::monotonic_ns();
        let mut networks = self.networks();
        for report in &reports {
            let key = key_from_raw(&report.key);
            if networks.len() >= NETWORKS_MAX && !networks.contains_key(&key) {
                for old in trials::oldest(&networks, |it| it.seen_ns) {
                    programs.reporter.remove(&old)?;
                    networks.remove(&old);
                }
            }
            let network = networks.entry(key).or_default();
            let before = network.keeps;
            if before {
                let transfer = transfer_of_report(report);
                transfer.iter().for_each(|it| self.account().add(it));
            }
            network.note(report, now_ns);
            match (before, network.keeps) {
                (false, true) => write(&session, &key)?,
                (true, false) => programs.reporter.remove(&key)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Renews the networks in the kernel.
    fn renew(&self) -> Result<()> {
        let session = self.session();
        let networks = self.networks();
        let mut kept = networks.iter().filter(|(_, it)| it.keeps);
        kept.try_for_each(|(key, _)| write(&session, key))
    }

    fn view(&self, context: &Context<'_>) -> view::Idle {
        let is_on = self.session().is_on;
        let networks = self.networks();
        let networks = networks.iter();
        let mut networks: Vec<_> = networks
            .map(|(key, it)| view::NetworkIdle::new(key, it, &context.containers))
            .collect();
        networks.sort_by(|one, other| one.name.cmp(&other.name));
        view::Idle {
            enabled: is_on,
            networks,
        }
    }
}

/// Exchanges of a draw, in a network where windows are kept; `None`: no draw decided.
fn transfer_of_report(report: &raw::thalweg_idle_report) -> Option<Transfer> {
    let is_treated = report.group == raw::THALWEG_IDLE_KEPT;
    let share = f64::from(SHARE_Q16) / f64::from(raw::THALWEG_ONE_Q16);
    let is_drawn = is_treated || report.group == raw::THALWEG_IDLE_CONTROL;
    is_drawn.then(|| Transfer {
        network: key_from_raw(&report.key),
        is_treated,
        probability: if is_treated { share } else { 1.0 - share },
        kind: Kind::Exchanges(report.exchanges),
        cluster: Some(report.draw),
        bytes: report.bytes,
        us: report.time_us,
        segs: report.segs,
        retrans: report.retrans,
    })
}

/// Has the connections of a network keep their windows.
fn write(session: &Session, key: &HostKey) -> Result<()> {
    let entry = raw::thalweg_idle_network {
        until_ns: system::monotonic_ns() + LIFE_NS,
        kept_q16: SHARE_Q16,
        salt: session.salt,
    };
    let programs = session.programs();
    programs.map_or(Ok(()), |it| it.reporter.set(key, &entry))
}

impl Feature for State {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn hints(&self) -> &'static [Hint] {
        &[(
            "idle",
            "Look at `thalweg doctor`. The kernel restarts windows after idle times meanwhile.",
        )]
    }

    fn requirement(&self) -> Option<Requirement> {
        Some(Requirement {
            name: "idle",
            means: "congestion windows kept over idle times, where a network takes the burst (`[idle]`)",
            since: Version(6, 4),
            because: "links for congestion controls in BPF",
            needs: &[
                Need::SockOps,
                Need::CgroupSockopt,
                Need::KernelBtf,
                Need::StructOps,
                Need::Jit,
            ],
            required: false,
            trial: Trial::Load(thalweg_bpf_objects::IDLE_CUBIC),
        })
    }

    fn read_settings(&self, root: &mut Section<'_>) -> Arc<dyn Settings> {
        root.section("idle", |section| {
            let words = "Whether connections of cubic keep their congestion window over idle times, where a network takes the burst ([idle](idle.md)).";
            let enabled = section.boolean(("enabled", words), false);
            Arc::new(Configured { enabled })
        })
    }

    fn configure(&self, settings: &dyn Settings, setup: &mut Setup) {
        let settings = (settings as &dyn Any).downcast_ref::<Configured>();
        let may_set = setup.params.mode == Mode::Thalweg && !setup.advise.only && !setup.dry_run;
        *self.session() = Session {
            is_on: settings.is_some_and(|it| it.enabled) && may_set,
            salt: (setup.control.salt >> 32) as u32,
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
        for kept in store.waits(self.name(), Moment::now())? {
            networks.entry(kept.key).or_default().wait = Wait::restore(&kept);
        }
        Ok(())
    }

    fn save(&self, store: &mut Store) -> Result<(), StoreError> {
        if !self.session().is_on {
            return Ok(());
        }
        let networks = self.networks();
        let waits = networks
            .iter()
            .filter_map(|(key, it)| it.wait.kept(*key, None));
        store.save_waits(self.name(), &waits.collect::<Vec<_>>(), Moment::now())
    }

    fn start(&self, context: &Context<'_>) -> Option<String> {
        if !self.session().is_on {
            return None;
        }
        self.load_program(context.kernel);
        let renewed = self.renew();
        let problem = renewed.err().map(|error| format!("{error:#}"));
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

    fn read_rings(&self, _: &Context<'_>) {
        let outcome = self.note_reports();
        if let Err(error) = outcome {
            self.session().fault = Some(format!("{error:#}"));
        }
    }

    fn reattach(&self, kernel: &Kernel) {
        let mut session = self.session();
        if let Some(programs) = session.programs()
            && let Err(error) = programs.reporter.reattach(kernel)
        {
            session.fault = Some(format!("{error:#}"));
        }
    }

    fn find_problems(&self, _: &Context<'_>) -> Vec<Finding> {
        let found = self.find_problem().map(|text| (self.name(), Some(text)));
        found.into_iter().collect()
    }

    /// Windows are restarted again, those of connections that are open, too.
    fn stop(&self, _: &Context<'_>) -> Result<()> {
        let session = std::mem::take(&mut *self.session());
        match session.programs() {
            Some(programs) => programs
                .reporter
                .change_all(|entry: &mut raw::thalweg_idle_network| entry.until_ns = 0),
            None => Ok(()),
        }
    }

    fn explain_host(
        &self,
        host: &HostKey,
        address: IpAddr,
        context: &Context<'_>,
    ) -> Result<Option<Value>> {
        let key = trials::network_key(context.kernel.setup(), host.netns, address);
        let networks = self.networks();
        let known = key.and_then(|key| Some((key, networks.get(&key)?)));
        let view = |(key, it)| view::NetworkIdle::new(&key, it, &context.containers);
        Ok(known.map(|known| json!(view(known))))
    }

    fn explanation_text(&self, explanation: &Value) -> Option<String> {
        show::explanation_text(explanation)
    }

    fn feature_effect(&self) -> Option<FeatureEffect> {
        let is_on = self.session().is_on;
        is_on.then(|| self.account().effect(self.name()))
    }

    fn routes(&self) -> &'static [Route] {
        &[(MethodFilter::GET, "/v1/idle")]
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
        let lost = session.programs().map(|it| it.reporter.lost_reports());
        Some(json!(view::IdleFigures {
            networks: networks.len(),
            kept: networks.values().filter(|it| it.keeps).count(),
            lost_reports: lost.and_then(Result::ok).unwrap_or(0),
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
            about: "List remote networks with exchanges after idle times, and what keeping windows does",
            add_options: show::Options::augment_args,
            show: show::list,
        })
    }
}
