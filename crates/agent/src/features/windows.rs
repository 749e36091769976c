//! Initial windows: a second choice for a connection, by what its networks know. The arithmetic is in
//! `crates/learner` and `bpf/include/learn_window.h`; records are those of networks, at levels of
//! their own.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Result;
use axum::Json;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodFilter;
use clap::Args as _;
use serde_json::{Value, json};
use thalweg_learner::{HostKey, Level, Mode, window};

use crate::api::answer::{Answer, parse_query};
use crate::config::reader::Section;
use crate::counters::Counters;
use crate::feature::{Context, Feature, List, PageView, Route, Settings};
use crate::kernel::Setup;
use crate::overridden::Tally;
use crate::present::{NetworkQuery, keep_networks};

mod present;
mod settings;
mod show;
mod view;

use present::presented_network;
use settings::InitialWindow;
use show::Options;

/// State of the feature: all of it is in the kernel.
#[derive(Default)]
pub struct State;

impl Feature for State {
    fn name(&self) -> &'static str {
        "windows"
    }

    fn read_settings(&self, root: &mut Section<'_>) -> Arc<dyn Settings> {
        root.section("initial_window", |section| {
            Arc::new(InitialWindow::read(section))
        })
    }

    fn configure(&self, settings: &dyn Settings, setup: &mut Setup) {
        // Advice sets nothing.
        let may_set = setup.params.mode == Mode::Thalweg && !setup.advise.only;
        let settings = (settings as &dyn Any).downcast_ref::<InitialWindow>();
        let enabled = settings.filter(|it| it.enabled && may_set);
        setup.windows = enabled.map_or(0, |it| it.mask);
    }

    fn count_overridden(&self, counters: &Counters) -> Vec<Tally> {
        vec![Tally {
            subject: "initial windows".to_owned(),
            overridden: counters.windows_overridden,
            all: counters.windows_scored + counters.windows_overridden,
            words: |subject, overridden, all| {
                format!(
                    "{overridden} of {all} {subject} were replaced before the first data was \
                     acknowledged, and are not scored"
                )
            },
        }]
    }

    fn routes(&self) -> &'static [Route] {
        &[(MethodFilter::GET, "/v1/windows")]
    }

    fn answer(&self, _: &str, uri: &Uri, context: &Context<'_>) -> Answer<Response> {
        let asked: NetworkQuery = parse_query(uri)?;
        let table = context.kernel.arms()?;
        let presenter = context.presenter(&table);
        let allowed = context.kernel.setup().windows;
        let mut records = match allowed {
            0 => Vec::new(),
            _ => context.kernel.records_of(Level::is_window)?,
        };
        keep_networks(&mut records, asked.limit);
        let segments = (0..window::COUNT).filter(|arm| allowed >> arm & 1 != 0);
        let present = |(key, record): &_| presented_network(&presenter, key, record, allowed);
        let answer = view::Windows {
            segments: segments.map(window::arm_segments).collect(),
            networks: records.iter().map(present).collect(),
        };
        Ok(Json(answer).into_response())
    }

    /// Records towards a host, the narrowest first: prefix, then namespace. The service between them
    /// is known only after connecting.
    fn explain_host(
        &self,
        host: &HostKey,
        address: IpAddr,
        context: &Context<'_>,
    ) -> Result<Option<Value>> {
        let setup = context.kernel.setup();
        if setup.windows == 0 {
            return Ok(None);
        }
        let table = context.kernel.arms()?;
        let presenter = context.presenter(&table);
        let (v4, v6) = (setup.networks.ipv4_prefix, setup.networks.ipv6_prefix);
        let prefix = HostKey {
            level: Level::WindowPrefix,
            ..HostKey::new(host.netns, address, v4, v6)?
        };
        let namespace = HostKey {
            level: Level::WindowNamespace,
            ..HostKey::of_namespace(host.netns)
        };
        let mut found = Vec::new();
        let has_prefix = prefix.prefix_len < host.prefix_len;
        for key in has_prefix.then_some(prefix).into_iter().chain([namespace]) {
            if let Some(record) = context.kernel.host(&key)? {
                found.push(presented_network(&presenter, &key, &record, setup.windows));
            }
        }
        Ok((!found.is_empty()).then(|| json!(found)))
    }

    fn explanation_text(&self, explanation: &Value) -> Option<String> {
        show::explanation_text(explanation)
    }

    fn page_view(&self) -> Option<PageView> {
        Some(PageView {
            title: None,
            is_hidden: false,
            body: include_str!("windows/view.html"),
            script: include_str!("windows/windows.js"),
        })
    }

    fn list(&self) -> Option<List> {
        Some(List {
            about: "List what is known of initial windows, by network",
            add_options: Options::augment_args,
            show: show::list,
        })
    }
}
