//! The agent in a fleet: reports its own measurements of networks, uses those of other agents, and
//! obeys the fleet's policies.
//!
//! In BPF: levels of the fleet in `include/learn_group.h`; `kernel/fleet.rs` has their layout.

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Json;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodFilter;

use crate::api::answer::{Answer, Failure};
use crate::config::reader::Section;
use crate::feature::{
    Context, Feature, Hint, MetricsWriter, PageView, Place, Route, Settings, Thread,
};
use crate::kernel::Setup;
use crate::metrics::CONTENT_TYPE;

mod all;
mod apply;
mod cells;
mod compact;
mod desired;
mod form;
mod membership;
mod metrics;
mod records;
mod report_store;
mod settings;
pub mod view;

pub use all::Statuses;
use membership::Membership;
use settings::FleetMember;

/// Age up to which read statuses are used again; agents send one every ten minutes.
const FRESH: Duration = Duration::from_secs(5);
/// Age up to which automatic requests use read statuses again: a read costs as much as there are
/// agents.
const SCRAPED: Duration = Duration::from_secs(60);

/// State of the feature: the agent's place in a fleet, if it is in one.
#[derive(Default)]
pub struct State(Mutex<Option<Arc<Membership>>>);

impl State {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Membership>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn membership(&self) -> Option<Arc<Membership>> {
        self.lock().clone()
    }

    /// Statuses of all agents, read at most `most` ago; `None`: this agent is in no fleet.
    fn statuses(&self, most: Duration) -> Answer<Option<Arc<Statuses>>> {
        let read = self.membership().map(|it| it.statuses(most));
        let refused =
            |fault: thalweg_fleet::Fault| Failure(StatusCode::SERVICE_UNAVAILABLE, fault.text);
        read.transpose().map_err(refused)
    }
}

/// The feature's section; `None`: the agent is in no fleet.
fn member(settings: &dyn Settings) -> Option<&FleetMember> {
    (settings as &dyn Any)
        .downcast_ref::<Option<FleetMember>>()?
        .as_ref()
}

impl Feature for State {
    fn name(&self) -> &'static str {
        "fleet"
    }

    fn hints(&self) -> &'static [Hint] {
        &[
            (
                "fleet",
                "Look at `thalweg fleet status`. The agent goes on with what it knows.",
            ),
            (
                "fleet-file",
                "Nothing must be done if the fleet has a policy: it is taken again, and the file is written anew. Else remove the file.",
            ),
            (
                "fleet-name",
                "Give each machine its own `fleet.name` and key: `thalweg fleet key`. Until then the reports of both replace each other.",
            ),
            (
                "fleet-policy",
                "Look at the disk of the state directory: policies of the fleet are tried again every ten seconds.",
            ),
            (
                "fleet-share",
                "Nothing must be done if it ends within minutes: it is tried again every minute. Else restart the agent. The fleet lacks what this agent measured of some networks.",
            ),
        ]
    }

    fn read_settings(&self, root: &mut Section<'_>) -> Arc<dyn Settings> {
        root.section("fleet", |section| Arc::new(FleetMember::read(section)))
    }

    fn configure(&self, settings: &dyn Settings, setup: &mut Setup) {
        setup.fleet = member(settings).is_some_and(|it| it.take);
    }

    fn stop(&self, _context: &Context<'_>) -> Result<()> {
        *self.lock() = None;
        Ok(())
    }

    fn metrics(&self, _: &Context<'_>) -> Result<MetricsWriter> {
        let place = self.membership().map(|it| it.place());
        Ok(Box::new(move |page| {
            place
                .iter()
                .try_for_each(|it| metrics::write_place(it, page))
        }))
    }

    fn place(&self) -> Place {
        Place::Agent
    }

    fn state_files(&self) -> &'static [&'static str] {
        &["agent.nk", apply::FILE_NAME]
    }

    fn begin(&self, settings: &dyn Settings, state: &Path) -> Result<()> {
        // Two clients of one name would disturb each other.
        let mut membership = self.lock();
        *membership = None;
        let started = member(settings).map(|it| Membership::start(it, state));
        *membership = started.transpose()?.map(Arc::new);
        Ok(())
    }

    fn thread(&self) -> Option<Thread<'_>> {
        let membership = self.membership()?;
        Some(Box::new(move |session| membership.run(session)))
    }

    fn routes(&self) -> &'static [Route] {
        &[
            (MethodFilter::GET, "/v1/fleet"),
            (MethodFilter::GET, "/v1/fleet/agents"),
            (MethodFilter::GET, "/v1/fleet/gain"),
            (MethodFilter::GET, "/v1/fleet/metrics"),
        ]
    }

    fn answer(&self, route: &str, _: &Uri, _: &Context<'_>) -> Answer<Response> {
        Ok(match route {
            "/v1/fleet/agents" => Json(self.statuses(FRESH)?.map(|it| it.agents())).into_response(),
            "/v1/fleet/gain" => Json(self.statuses(FRESH)?.map(|it| it.gain())).into_response(),
            "/v1/fleet/metrics" => {
                let Some(statuses) = self.statuses(SCRAPED)? else {
                    let text = "this agent is in no fleet".to_owned();
                    return Err(Failure(StatusCode::NOT_FOUND, text));
                };
                let text = metrics::of_fleet(statuses.agents(), statuses.gain())?;
                ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
            }
            _ => Json(self.membership().map(|it| it.place())).into_response(),
        })
    }

    fn page_view(&self) -> Option<PageView> {
        Some(PageView {
            title: Some("Fleet"),
            is_hidden: true,
            body: include_str!("fleet/view.html"),
            script: include_str!("fleet/fleet.js"),
        })
    }
}
