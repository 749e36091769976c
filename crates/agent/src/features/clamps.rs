//! Clamps of congestion windows inside datacenters: a connection to a host in the prefixes of
//! `[clamp]` has at most twice the segments that its path carries. The agent computes clamps, since
//! they depend on all connections of a host, whose sockets one iterator passes anyway.
//!
//! In BPF: `learn_clamp.bpf.c`, and `include/learn_clamp.h` for new connections.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Json;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodFilter;
use clap::Args as _;
use serde_json::{Value, json};
use thalweg_bpf_objects::names::learn::maps;
use thalweg_bpf_types::raw;
use thalweg_learner::Mode;
use thalweg_policy::{Prefix, Version};

use crate::api::answer::Answer;
use crate::config::reader::Section;
use crate::feature::{
    Context, Feature, Finding, Hint, LeftoverName, List, MetricsWriter, Polled, Route, Settings,
    Undo,
};
use crate::kernel::{Kernel, Setup};
use crate::metrics::page::Page;
use crate::requirements::{Need, Requirement, Trial};
use crate::scans;
use crate::store::Store;

mod hosts;
mod iterator;
mod show;
mod view;

use iterator::{ClampedSockets, Loaded, Programs};

/// Interval of polls.
const INTERVAL: Duration = Duration::from_millis(200);
/// Largest number of prefixes.
const PREFIXES_MAX: usize = raw::THALWEG_CLAMP_PREFIXES as usize;

/// `[clamp]`.
#[derive(Debug, PartialEq, Eq)]
struct Clamp {
    /// `prefixes`: remote prefixes where windows have a clamp; empty: nowhere.
    prefixes: Vec<Prefix>,
}

/// State of the feature; the measured paths outlive a change of the configuration.
#[derive(Default)]
pub struct State {
    hosts: hosts::Clamps,
    statistics: scans::Figures,
    session: Mutex<Session>,
}

/// State of a session.
struct Session {
    /// Prefixes with clamps; empty in other modes than `thalweg`.
    prefixes: Vec<Prefix>,
    /// The configured prefixes.
    configured: Vec<String>,
    /// Whether clamps are set: not in a dry run, nor under advice.
    sets: bool,
    user_namespaces: bool,
    iterator: Loaded,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            prefixes: Vec::new(),
            configured: Vec::new(),
            sets: false,
            user_namespaces: false,
            iterator: Ok(None),
        }
    }
}

impl Session {
    fn is_on(&self) -> bool {
        !self.prefixes.is_empty() && matches!(self.iterator, Ok(Some(_)))
    }

    fn programs(&self) -> Programs {
        let iterator = self.iterator.as_ref().ok().and_then(Option::as_ref);
        Programs {
            link: iterator.map(|it| Arc::clone(&it.link)),
            sets: self.sets,
            user_namespaces: self.user_namespaces,
        }
    }

    /// Loads the iterator where there are prefixes, or clamps of an earlier agent.
    fn load(&mut self, kernel: &Kernel) -> Result<()> {
        let has_types = kernel.setup().kernel_btf;
        let lifts = kernel.has_kept(maps::CLAMPED) && has_types;
        self.iterator = Ok(None);
        if self.prefixes.is_empty() && !lifts {
            return Ok(());
        }
        self.iterator = match has_types {
            true => iterator::load_iterator(kernel, &self.prefixes)?,
            false => Err("the kernel has no types (BTF)".to_owned()),
        };
        Ok(())
    }
}

impl State {
    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn figures(&self) -> Option<view::ClampFigures> {
        let statistics = self.statistics.shown();
        let is_on = self.session().is_on();
        is_on.then(|| self.hosts.figures(statistics))
    }

    fn find_problem(&self) -> Option<String> {
        match &self.session().iterator {
            Ok(iterator) => {
                let fault = iterator.as_ref()?.check().err()?;
                Some(format!("{fault:#}"))
            }
            Err(why) => Some(format!("congestion windows get no learned clamp: {why}")),
        }
    }

    /// Lifts the clamps of all connections.
    fn lift_clamps(&self, context: &Context<'_>) -> Result<()> {
        self.hosts.forget();
        let programs = self.session().programs();
        let lifted = programs.lift_clamps(context.kernel, context.own_netns);
        lifted.context("lifting the clamps of congestion windows")
    }
}

impl Feature for State {
    fn name(&self) -> &'static str {
        "clamps"
    }

    fn hints(&self) -> &'static [Hint] {
        &[(
            "clamps",
            "Look at `thalweg doctor`: learned clamps need the kernel's BTF and its iterators. Windows have no clamp meanwhile.",
        )]
    }

    fn requirement(&self) -> Option<Requirement> {
        Some(Requirement {
            name: "learned clamps",
            means: "congestion windows to datacenters are bounded by what their paths carry (`[clamp]`)",
            since: Version(5, 15),
            because: "`bpf_setsockopt` in TCP iterators",
            needs: &[
                Need::SockOps,
                Need::CgroupSockopt,
                Need::KernelBtf,
                Need::TcpIterator,
            ],
            required: false,
            trial: Trial::Load(thalweg_bpf_objects::LEARN_CLAMP),
        })
    }

    fn read_settings(&self, root: &mut Section<'_>) -> Arc<dyn Settings> {
        root.section("clamp", |section| {
            Arc::new(Clamp {
                prefixes: section.prefixes(("prefixes", "Remote prefixes with a clamp. Name datacenters only: towards the Internet twice what the path carried a moment ago is too small."), PREFIXES_MAX),
            })
        })
    }

    fn configure(&self, settings: &dyn Settings, setup: &mut Setup) {
        let settings = (settings as &dyn Any).downcast_ref::<Clamp>();
        let configured = settings.map_or(&[][..], |it| &it.prefixes);
        let prefixes = match setup.params.mode {
            Mode::Thalweg => configured.to_vec(),
            Mode::Classic => Vec::new(),
        };
        let sets = !prefixes.is_empty() && !setup.dry_run && !setup.advise.only;
        if sets {
            setup.feature_parameters.push(|it| it.clamps = 1);
        }
        setup.kept_maps.push(maps::CLAMPED);
        *self.session() = Session {
            configured: configured.iter().map(ToString::to_string).collect(),
            prefixes,
            sets,
            user_namespaces: setup.user_namespaces,
            iterator: Ok(None),
        };
    }

    fn load(&self, kernel: &Kernel, _: &mut Store) -> Result<()> {
        self.session().load(kernel)
    }

    fn start(&self, context: &Context<'_>) -> Option<String> {
        let (problem, is_on) = (self.find_problem(), self.session().is_on());
        // Clamps of an agent that was killed.
        let lifted = match is_on {
            true => Ok(()),
            false => self.lift_clamps(context),
        };
        problem.or(lifted.err().map(|error| format!("{error:#}")))
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.session().is_on().then_some(INTERVAL)
    }

    fn poll(&self, context: &Context<'_>) -> Polled {
        let programs = self.session().programs();
        self.hosts.poll(context, &programs)
    }

    fn poll_statistics(&self) -> Option<&scans::Figures> {
        Some(&self.statistics)
    }

    fn reattach(&self, kernel: &Kernel) {
        let mut session = self.session();
        if !matches!(session.iterator, Ok(Some(_))) {
            return;
        }
        // The iterator has the number of the cgroup that it covers among its constants.
        if let Err(error) = session.load(kernel) {
            session.iterator = Err(format!("{error:#}"));
        }
        if let Err(why) = &session.iterator {
            tracing::error!("congestion windows get no learned clamp any more: {why}");
        }
    }

    fn find_problems(&self, _: &Context<'_>) -> Vec<Finding> {
        let found = self.find_problem().map(|text| (self.name(), Some(text)));
        found.into_iter().collect()
    }

    fn stop(&self, context: &Context<'_>) -> Result<()> {
        let lifted = self.lift_clamps(context);
        *self.session() = Session::default();
        lifted
    }

    fn find_leftover(&self, pin: &Path) -> Option<Undo> {
        let sockets = ClampedSockets::find(pin)?;
        Some(Box::new(move || sockets.lift()))
    }

    fn leftover_name(&self) -> Option<LeftoverName> {
        Some(LeftoverName {
            key: "clamped",
            stays: "learned clamps of open connections, which last until these end",
        })
    }

    fn routes(&self) -> &'static [Route] {
        &[(MethodFilter::GET, "/v1/clamps")]
    }

    fn answer(&self, _: &str, _: &Uri, context: &Context<'_>) -> Answer<Response> {
        let session = self.session();
        let hosts = self.hosts.hosts();
        let answer = json!(view::Clamps {
            prefixes: session.configured.clone(),
            sets: session.sets && session.is_on(),
            hosts: hosts
                .iter()
                .map(|(remote, entry)| view::HostClamp::new(remote, entry, &context.containers))
                .collect(),
        });
        Ok(Json(answer).into_response())
    }

    fn status(&self) -> Option<Value> {
        Some(json!(self.figures()))
    }

    fn status_row(&self, status: &Value) -> Option<String> {
        show::status_row(status)
    }

    fn metrics(&self, _: &Context<'_>) -> Result<MetricsWriter> {
        let figures = self.figures();
        Ok(Box::new(move |page| {
            figures.iter().try_for_each(|it| write_metrics(it, page))
        }))
    }

    fn list(&self) -> Option<List> {
        Some(List {
            about: "List the learned clamps of congestion windows, by remote host",
            add_options: show::Options::augment_args,
            show: show::list,
        })
    }
}

fn write_metrics(figures: &view::ClampFigures, page: &mut Page<'_>) -> fmt::Result {
    page.gauge(
        "thalweg_clamp_hosts",
        "Remote hosts whose connections have a learned clamp.",
        figures.hosts,
    )?;
    page.gauge(
        "thalweg_clamp_connections",
        "Open connections with a learned clamp.",
        figures.connections,
    )?;
    page.counter(
        "thalweg_clamps_set",
        "Times that a learned clamp was set.",
        figures.set,
    )?;
    page.counter(
        "thalweg_clamps_refused",
        "Times that the kernel refused a learned clamp.",
        figures.refused,
    )?;
    page.counter(
        "thalweg_clamp_cpu_seconds",
        "Processor time of looks at connections with a learned clamp.",
        figures.looks.cpu_us as f64 / 1e6,
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
mod tests {
    use crate::config::Config;

    #[test]
    fn section_with_prefixes_differs_from_the_default() {
        let file = std::path::Path::new("t.toml");
        let parse = |text: &str| Config::parse(text, file);
        let set = parse("[clamp]\nprefixes = [\"10.0.0.0/8\", \"fd00::/8\"]\n").unwrap();
        assert_ne!(set, Config::default());
        assert_eq!(set, set.clone());
        assert_eq!(
            parse("[clamp]\nprefixes = []\n").unwrap(),
            Config::default()
        );
        let refused = parse("[clamp]\nprefixes = [\"10.0.0.1/8\"]\n").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "t.toml:2:13: clamp.prefixes: found the string \"10.0.0.1/8\", expected no bits beyond \
             the length, \"10.0.0.0/8\""
        );
    }
}
