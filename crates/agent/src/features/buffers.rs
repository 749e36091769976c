//! Limits of buffers: the third numbers of `net.ipv4.tcp_rmem` and `net.ipv4.tcp_wmem`, by network
//! namespace. A connection carries at most its smaller buffer in a round trip. The agent raises a
//! limit for connections that have grown up to it and move, lowers it without need and before memory
//! ends, and puts the first value back at its end.
//!
//! Socket diagnosis tells each connection's buffers and progress. In BPF: `buffers.bpf.c`, which keeps a
//! share of the connections at the first limits.

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
use thalweg_policy::Version;

use crate::api::answer::Answer;
use crate::config::reader::Section;
use crate::feature::{
    Context, Feature, Hint, LeftoverName, List, MetricsWriter, Place, Polled, Route, Settings, Undo,
};
use crate::kernel::{Kernel, Setup};
use crate::metrics::page::Page;
use crate::requirements::{Need, Requirement, Trial};
use crate::scans;
use crate::view::{AdvisedSetting, FeatureEffect};

mod groups;
mod namespace;
mod plan;
mod record;
mod show;
mod sysctl;
mod tracker;
mod view;

use groups::Groups;
use record::Record;
use tracker::{INTERVAL, Session, Tracker};
use view::NamespaceBuffers;

/// Bounds of `buffers.max`, bytes, and its default.
const MAX_LEAST: u64 = 1 << 20;
const MAX_MOST: u64 = 1 << 30;
const MAX_DEFAULT: u64 = 128 << 20;

/// `[buffers]`.
#[derive(Debug, PartialEq, Eq)]
struct BufferSettings {
    /// `enabled`: limits follow the connections.
    enabled: bool,
    /// `max`: largest limit, bytes.
    max_bytes: u64,
}

/// State of the feature.
#[derive(Default)]
pub struct State {
    tracker: Tracker,
    groups: Mutex<Groups>,
    statistics: scans::Figures,
    session: Mutex<Session>,
}

impl State {
    fn session(&self) -> Session {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn figures(&self) -> Option<view::BufferFigures> {
        let is_enabled = self.session().is_enabled;
        is_enabled.then(|| self.tracker.figures(self.statistics.shown()))
    }

    fn restore(&self, context: &Context<'_>) -> Result<()> {
        let pin = &context.kernel.setup().pin;
        let restored = self.tracker.restore(pin);
        restored.context("putting back limits of buffers")
    }
}

impl Feature for State {
    fn name(&self) -> &'static str {
        "buffers"
    }

    fn hints(&self) -> &'static [Hint] {
        &[(
            "buffers",
            "Limits of buffers stay as they are. Where /proc/sys is read-only, run the agent on the machine, or set `buffers.enabled = false`; a namespace that is left alone is followed again after a restart.",
        )]
    }

    fn requirement(&self) -> Option<Requirement> {
        Some(Requirement {
            name: "buffers",
            means: "what larger buffers bring is measured, by network (`[buffers]`)",
            since: Version(5, 15),
            because: "`bpf_get_netns_cookie` in sockops programs",
            needs: &[Need::SockOps, Need::CgroupSockopt, Need::KernelBtf],
            required: false,
            trial: Trial::Load(thalweg_bpf_objects::BUFFERS),
        })
    }

    fn read_settings(&self, root: &mut Section<'_>) -> Arc<dyn Settings> {
        root.section("buffers", |section| {
            let words = "Raises `tcp_rmem` and `tcp_wmem` of network namespaces where they limit connections, and puts them back ([buffers](../guide/buffers.md)).";
            let enabled = section.boolean(("enabled", words), false);
            let words = "Largest third number of either. A 64th of the memory is the other bound.";
            let max = section.size(("max", words), MAX_LEAST..=MAX_MOST, false, MAX_DEFAULT);
            Arc::new(BufferSettings {
                enabled,
                max_bytes: max.value,
            })
        })
    }

    fn configure(&self, settings: &dyn Settings, setup: &mut Setup) {
        let settings = (settings as &dyn Any).downcast_ref::<BufferSettings>();
        let enabled = settings.filter(|it| it.enabled);
        let session = Session {
            is_enabled: enabled.is_some(),
            sets: enabled.is_some() && !setup.dry_run && !setup.advise.only,
            max_bytes: settings.map_or(MAX_DEFAULT, |it| it.max_bytes),
            user_namespaces: setup.user_namespaces,
        };
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }

    /// Puts back what an agent has left that was killed.
    fn start(&self, context: &Context<'_>) -> Option<String> {
        let restored = self.restore(context);
        restored.err().map(|error| format!("{error:#}"))
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.session().is_enabled.then_some(INTERVAL)
    }

    fn poll(&self, context: &Context<'_>) -> Polled {
        let mut polled = self
            .tracker
            .poll(&self.session(), &self.statistics, context);
        let mut groups = self.groups();
        if self.session().sets && !context.is_stopping {
            let salt = context.kernel.setup().control.salt;
            groups.start(context.kernel, salt as u32);
        }
        groups.follow(self.tracker.raised());
        polled.problem = polled.problem.or_else(|| groups.problem());
        polled
    }

    fn reattach(&self, kernel: &Kernel) {
        self.groups().reattach(kernel);
    }

    fn stop(&self, context: &Context<'_>) -> Result<()> {
        self.groups().stop();
        let restored = self.restore(context);
        if context.kernel.has_let_go() {
            // The record may have kept the directory; other pins still do.
            let _ = std::fs::remove_dir(&context.kernel.setup().pin);
        }
        restored
    }

    fn find_leftover(&self, pin: &Path) -> Option<Undo> {
        let record = Record::open(pin)?;
        let pin = pin.to_owned();
        Some(Box::new(move || {
            let changed = record.entries()?;
            tracker::restore_limits(Some(record), &changed)?;
            // The record may have kept the directory; other pins still do.
            let _ = std::fs::remove_dir(pin);
            Ok(())
        }))
    }

    fn leftover_name(&self) -> Option<LeftoverName> {
        Some(LeftoverName {
            key: "buffers",
            stays: "raised limits of buffers (net.ipv4.tcp_rmem, net.ipv4.tcp_wmem)",
        })
    }

    fn feature_effect(&self) -> Option<FeatureEffect> {
        let sets = self.session().sets;
        sets.then(|| self.groups().effect(self.name()))
    }

    fn advised_settings(&self, context: &Context<'_>) -> Vec<AdvisedSetting> {
        let session = self.session();
        let namespaces = match session.is_enabled && !session.sets {
            true => self.tracker.namespaces(&context.containers),
            false => Vec::new(),
        };
        let namespaces = namespaces.into_iter();
        namespaces
            .flat_map(NamespaceBuffers::advised_settings)
            .collect()
    }

    fn routes(&self) -> &'static [Route] {
        &[(MethodFilter::GET, "/v1/buffers")]
    }

    fn answer(&self, _: &str, _: &Uri, context: &Context<'_>) -> Answer<Response> {
        let session = self.session();
        let answer = json!(view::Buffers {
            enabled: session.is_enabled,
            sets: session.sets,
            max_bytes: session.max_bytes,
            namespaces: self.tracker.namespaces(&context.containers),
            networks: self.groups().networks(&context.containers),
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
            about: "List the limits of buffers, by network namespace",
            add_options: show::Options::augment_args,
            show: show::list,
        })
    }

    fn place(&self) -> Place {
        Place::Agent
    }
}

fn write_metrics(figures: &view::BufferFigures, page: &mut Page<'_>) -> fmt::Result {
    page.gauge(
        "thalweg_buffer_namespaces_raised",
        "Network namespaces with a raised limit of buffers.",
        figures.raised,
    )?;
    page.gauge(
        "thalweg_buffer_namespaces_left",
        "Network namespaces where somebody else has changed a raised limit.",
        figures.left,
    )?;
    page.counter(
        "thalweg_buffer_raises",
        "Times that a limit of buffers was raised.",
        figures.raises,
    )?;
    page.counter(
        "thalweg_buffer_lowerings",
        "Times that a limit of buffers was lowered for lack of need.",
        figures.lowerings,
    )?;
    page.counter(
        "thalweg_buffer_step_backs",
        "Times that a limit of buffers was lowered for lack of memory.",
        figures.step_backs,
    )?;
    page.gauge(
        "thalweg_buffer_memory_bytes",
        "Memory of all TCP sockets.",
        figures.memory_bytes,
    )?;
    page.gauge(
        "thalweg_buffer_memory_mark_bytes",
        "Memory of all TCP sockets from which limits of buffers fall.",
        figures.memory_mark_bytes,
    )?;
    page.counter(
        "thalweg_buffer_cpu_seconds",
        "Processor time of looks at limits and buffers.",
        figures.looks.cpu_us as f64 / 1e6,
    )
}
