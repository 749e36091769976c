//! Interface of a feature of the agent. Event loop, health, API, metrics, configuration, reload and
//! the command line know this trait and the list in `features.rs`; they name no feature.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodFilter;
use clap::{ArgMatches, Command};
use serde::Serialize;
use serde_json::Value;
use thalweg_bpf_types::raw;
use thalweg_control::attempts::Attempts;
use thalweg_control::policy::history::History;
use thalweg_control::system::NetworkNamespace;
use thalweg_learner::{HostKey, Mode};

use crate::api::answer::{Answer, Failure};
use crate::comparison::Compared;
use crate::config::reader::Section;
use crate::counters::Counters;
use crate::kernel::{ArmTable, Kernel, Setup};
use crate::metrics::page::Page;
use crate::overridden::Tally;
use crate::present::Presenter;
use crate::requirements::Requirement;
use crate::sampling::Sampler;
use crate::scans;
use crate::store::{HostRow, Moment, Restored, Snapshot, Store, StoreError};
use crate::view::{AdvisedSetting, FeatureEffect, NetworkLimits};

/// A feature's section of the configuration.
pub trait Settings: Any + fmt::Debug + Send + Sync {
    /// Whether another section is of the same feature and has the same values.
    fn is_same(&self, other: &dyn Settings) -> bool;
}

impl<T: Any + fmt::Debug + PartialEq + Send + Sync> Settings for T {
    fn is_same(&self, other: &dyn Settings) -> bool {
        (other as &dyn Any).downcast_ref::<T>() == Some(self)
    }
}

/// Sections of all features, by the feature's name.
#[derive(Clone, Debug)]
pub struct Sections(pub BTreeMap<&'static str, Arc<dyn Settings>>);

impl PartialEq for Sections {
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.0.values().zip(other.0.values());
        self.0.keys().eq(other.0.keys()) && pairs.all(|(one, two)| one.is_same(&**two))
    }
}

/// Context of a feature: the parts of the agent that it uses.
pub struct Context<'a> {
    /// The kernel side.
    pub kernel: &'a Kernel,
    /// Cookie of the agent's own network namespace.
    pub own_netns: u64,
    /// Names of containers, by the cookie of their network namespace.
    pub containers: Arc<HashMap<u64, String>>,
    /// Policies that were applied.
    pub policies: &'a History,
    /// Store for queries.
    pub store: &'a Mutex<Store>,
    /// Sampling of stored events.
    pub sampling: &'a Mutex<Sampler>,
    /// Host records as a whole.
    pub records: &'a dyn Records,
    /// State directory.
    pub state: &'a Path,
    /// Reporter of problems that have another kind than the feature's name.
    pub reporter: &'a dyn Reporter,
    /// Whether the session ends: nothing is put back any more.
    pub is_stopping: bool,
    /// All features.
    pub features: &'a [Box<dyn Feature>],
}

impl Context<'_> {
    /// Uses the store. A write here waits for at most one transaction of the writer thread.
    ///
    /// # Errors
    /// Those of the action.
    pub fn store<T>(&self, action: impl FnOnce(&mut Store) -> Result<T, StoreError>) -> Result<T> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(action(&mut store)?)
    }

    /// Uses the sampling of stored events.
    pub fn sampling<T>(&self, action: impl FnOnce(&mut Sampler) -> T) -> T {
        action(&mut self.sampling.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.kernel.params().mode
    }

    /// The time on the store's clock, ms.
    pub fn now_ms(&self) -> i64 {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.now_ms(Moment::now())
    }

    /// A presenter of records under this arm table.
    pub fn presenter<'a>(&'a self, arms: &'a ArmTable) -> Presenter<'a> {
        Presenter::new(self.kernel, arms, Arc::clone(&self.containers))
    }

    /// Limits of the connections of each network, the busiest first.
    pub fn network_limits(&self, presenter: &Presenter<'_>) -> Vec<NetworkLimits> {
        let features = self.features.iter();
        features
            .flat_map(|it| it.network_limits(presenter))
            .collect()
    }
}

/// Reporter of problems, which `status` shows.
pub trait Reporter {
    /// Sets or (with `None`) clears a problem of a kind.
    fn problem(&self, kind: &'static str, text: Option<String>);
    /// Sets a problem that nobody must repair.
    fn warning(&self, kind: &'static str, text: String);
    /// Notes attempts to repair what is a problem of a kind.
    fn note_repairs(&self, kind: &'static str, attempts: Attempts);
}

/// Host records as a whole, which the agent counts, saves and restores.
pub trait Records {
    /// Head of a document of all records.
    fn document_header(&self) -> Snapshot;
    /// Counts the records, for `status`.
    ///
    /// # Errors
    /// The map cannot be read.
    fn count_records(&self) -> Result<()>;
    /// Puts records of a document into the kernel. Those of the namespace of the agent that wrote it
    /// go to this agent's namespace.
    ///
    /// # Errors
    /// A record cannot be read, or the kernel refuses it.
    fn import(
        &self,
        header: &Snapshot,
        records: &mut dyn Iterator<Item = Result<HostRow>>,
    ) -> Result<Restored>;
}

/// A session of the agent, for the thread of a feature.
pub trait Session: Reporter + Sync {
    /// The kernel side.
    fn kernel(&self) -> &Kernel;
    /// Whether the session ends.
    fn is_stopping(&self) -> bool;
    /// Kinds of the problems that parts of the agent have reported.
    fn noted_kinds(&self) -> Vec<&'static str>;
    /// Kinds of all problems, by a check now.
    fn checked_kinds(&self) -> Vec<&'static str>;
    /// Comparisons of the policy's rules, and of the learner if `learner` is set.
    fn compared(&self, learner: bool) -> Vec<Compared>;
}

/// Work of a feature's thread.
pub type Thread<'a> = Box<dyn FnOnce(&dyn Session) + Send + 'a>;

/// Place of a feature's section in the configuration, and of its metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// With those of the learner.
    Learner,
    /// After those of the agent.
    Agent,
}

/// View of the page, `/page/NAME.js`.
#[derive(Clone, Copy, Debug)]
pub struct PageView {
    /// Title of the view's link; `None`: the view is a part of another.
    pub title: Option<&'static str>,
    /// Whether the link is hidden while `GET /v1/NAME` is null.
    pub is_hidden: bool,
    /// HTML of the view, in elements with `data-view`, its name in the URL, and `data-script` where that
    /// of the script differs.
    pub body: &'static str,
    /// Script, loaded once the view is opened: `show` fills it, `explained` returns an element for the
    /// feature's value in an explanation of a host.
    pub script: &'static str,
}

/// List of a feature, which `thalweg NAME` shows.
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// Sentence of `--help` on the sub-command.
    pub about: &'static str,
    /// Adds the options of the sub-command.
    pub add_options: fn(Command) -> Command,
    /// Table of the answer to `GET /v1/NAME`, for a terminal. Only rows that the options want stay in
    /// the answer. Fails if the answer has another form.
    pub show: fn(&mut Value, &ArgMatches) -> Result<String>,
}

/// Outcome of a poll.
#[derive(Debug, Default)]
pub struct Polled {
    /// Processor time of other threads.
    pub elsewhere: Duration,
    /// Reason that the feature does not work, or only in part; `None`: it works.
    pub problem: Option<String>,
}

/// Writes metrics that were read before.
pub type MetricsWriter = Box<dyn Fn(&mut Page<'_>) -> fmt::Result + Send + Sync>;

/// Method and path of a route below `/v1`.
pub type Route = (MethodFilter, &'static str);

/// A request of a route.
pub struct Request<'a> {
    /// Method of the request.
    pub method: &'a Method,
    /// Path of the route.
    pub route: &'static str,
    /// Path and query of the request.
    pub uri: &'a Uri,
    /// Parameter in the path; empty: the route has none.
    pub parameter: &'a str,
    /// Body, where the route takes one.
    pub body: Option<&'a File>,
}

/// Bounds of a body, which is received into an unnamed file; one at a time.
#[derive(Clone, Debug)]
pub struct BodyBounds {
    /// Largest number of bytes.
    pub bytes: u64,
    /// Refusal of a larger body.
    pub too_large: String,
    /// Refusal while another body is received or used.
    pub busy: &'static str,
}

/// A reply to a request.
pub enum Reply {
    /// A reply that is made at once.
    Whole(Response),
    /// A reply that is made page by page.
    Pages(Listing),
}

impl Reply {
    /// A reply in JSON.
    pub fn json(value: impl Serialize) -> Self {
        Self::Whole(Json(value).into_response())
    }
}

/// A list in JSON, made a page at a time as the client reads: neither a long list nor a slow client
/// takes memory.
pub struct Listing {
    /// Text before the items.
    pub head: String,
    /// Text between items.
    pub separator: &'static str,
    /// Text after the items.
    pub tail: &'static str,
    /// Maker of the pages.
    pub pages: PageMaker,
}

/// Makes the next page of a list: items in JSON, and whether another page follows.
pub type PageMaker = Box<dyn FnMut(&Context<'_>) -> Result<(Vec<String>, bool)> + Send>;

/// Kind of a problem, and a sentence for an operator who sees it.
pub type Hint = (&'static str, &'static str);

/// Kind of a problem, and its text; `None`: there is no such problem.
pub type Finding = (&'static str, Option<String>);

/// Names of a feature's leftover, for the command line and the API.
#[derive(Clone, Copy, Debug)]
pub struct LeftoverName {
    /// Key in the answer to `POST /v1/detach`.
    pub key: &'static str,
    /// Text for the thing that stays.
    pub stays: &'static str,
}

/// Action that undoes a feature's leftover in the kernel, once the programs are gone.
pub type Undo = Box<dyn FnOnce() -> Result<()>>;

/// A feature of the agent: one object for the life of the process, over all sessions.
pub trait Feature: Send + Sync {
    /// Kind of the feature's problem, key in `GET /v1/status`, path below `/v1`, sub-command.
    fn name(&self) -> &'static str;
    /// Hints for an operator who sees the feature's problems.
    fn hints(&self) -> &'static [Hint] {
        &[]
    }
    /// Needs of the kernel; `None`: those of the learner.
    fn requirement(&self) -> Option<Requirement> {
        None
    }

    /// Reads the feature's section of the configuration.
    fn read_settings(&self, _: &mut Section<'_>) -> Arc<dyn Settings> {
        Arc::new(())
    }
    /// Takes the settings of the next session, and adds to the set-up of the kernel side.
    fn configure(&self, _: &dyn Settings, _: &mut Setup) {}
    /// Reads the feature's part of the store, and loads programs beside the learner's; nothing is
    /// attached yet. A refusal of the kernel is the feature's problem.
    ///
    /// # Errors
    /// Faults that may pass, such as a lack of memory.
    fn load(&self, _: &Kernel, _: &mut Store) -> Result<()> {
        Ok(())
    }
    /// Starts once the learner is attached. Returns the problem, if there is one.
    fn start(&self, _: &Context<'_>) -> Option<String> {
        None
    }
    /// Interval of polls; `None`: there are none.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }
    /// Works for a moment, called by the event loop.
    fn poll(&self, _: &Context<'_>) -> Polled {
        Polled::default()
    }
    /// Number and cost of polls, whose interval grows with their cost; `None`: it does not.
    fn poll_statistics(&self) -> Option<&scans::Figures> {
        None
    }
    /// Follows the learner to the cgroup to which it was attached again.
    fn reattach(&self, _: &Kernel) {}
    /// Checks the feature now. Problems of other kinds stay as they were reported.
    fn find_problems(&self, _: &Context<'_>) -> Vec<Finding> {
        Vec::new()
    }
    /// Undoes at the end of a session what only a running agent may keep.
    ///
    /// # Errors
    /// The kernel refuses it.
    fn stop(&self, _: &Context<'_>) -> Result<()> {
        Ok(())
    }
    /// Finds the leftover of an agent below its directory of pins; `None`: there is none.
    fn find_leftover(&self, _: &Path) -> Option<Undo> {
        None
    }
    /// Names of the feature's leftover; `None`: it never leaves anything.
    fn leftover_name(&self) -> Option<LeftoverName> {
        None
    }

    /// Takes the events of a pass of the event loop; `arms` is the present table.
    fn take_events(&self, _: &[raw::thalweg_event], _: &ArmTable, _: &Context<'_>) {}
    /// Reads the feature's own event rings, in each pass of the event loop.
    fn read_rings(&self, _: &Context<'_>) {}
    /// Saves what changed since the last call, on the writer thread.
    ///
    /// # Errors
    /// The store refuses it; then the next call saves it.
    fn save(&self, _: &mut Store) -> Result<(), StoreError> {
        Ok(())
    }
    /// Connections with the feature's settings, and those whose settings something replaced.
    fn count_overridden(&self, _: &Counters) -> Vec<Tally> {
        Vec::new()
    }
    /// Comparisons for the fleet: the learner's, where it is asked for, then those of rules.
    fn comparisons(&self, _learner: bool, _: &Context<'_>) -> Vec<Compared> {
        Vec::new()
    }
    /// Effect of the feature's setting against its control group, for `GET /v1/gain`; `None`: the
    /// feature has no control group, or sets nothing.
    fn feature_effect(&self) -> Option<FeatureEffect> {
        None
    }
    /// Settings that the feature would make, for `GET /v1/advise`: it is enabled, but the agent gives
    /// advice only or runs dry.
    fn advised_settings(&self, _: &Context<'_>) -> Vec<AdvisedSetting> {
        Vec::new()
    }
    /// Routes of the API.
    fn routes(&self) -> &'static [Route] {
        &[]
    }
    /// The answer to a request of such a route.
    ///
    /// # Errors
    /// The request is refused, or the answer is not known.
    fn answer(&self, route: &str, _: &Uri, _: &Context<'_>) -> Answer<Response> {
        Err(Failure(StatusCode::NOT_FOUND, route.to_owned()))
    }
    /// The reply to a request of such a route, where it depends on more than the route and the query.
    ///
    /// # Errors
    /// The request is refused, or the answer is not known.
    fn reply(&self, request: &Request<'_>, context: &Context<'_>) -> Answer<Reply> {
        let answer = self.answer(request.route, request.uri, context)?;
        Ok(Reply::Whole(answer))
    }
    /// Bounds of the body of a route's requests; `None`: bodies are ignored.
    fn body_bounds(&self, _route: &str, _: &Kernel) -> Option<BodyBounds> {
        None
    }
    /// Whether requests walk over all host records, and so wait for others that do.
    fn walks_hosts(&self) -> bool {
        false
    }
    /// Value of the feature's key in `GET /v1/hosts/{address}`, for the key of the host's record and an
    /// address; `None`: it has no key.
    ///
    /// # Errors
    /// Maps that cannot be read.
    fn explain_host(&self, _: &HostKey, _: IpAddr, _: &Context<'_>) -> Result<Option<Value>> {
        Ok(None)
    }
    /// Sentence on the first connection to a host without a record, for such a value; `None`: too
    /// little is known to decide.
    fn first_choice(&self, _: &Value) -> Option<String> {
        None
    }
    /// Text of `thalweg explain` for such a value; `None`: no text.
    fn explanation_text(&self, _: &Value) -> Option<String> {
        None
    }
    /// Notes the network namespaces in scope, whenever they were read.
    fn note_namespaces(&self, _: &[NetworkNamespace]) {}
    /// Limits of the connections of each network, the busiest first.
    fn network_limits(&self, _: &Presenter<'_>) -> Vec<NetworkLimits> {
        Vec::new()
    }

    /// Value of the feature's key in `GET /v1/status`, null where the feature is off; `None`: it has
    /// no key.
    fn status(&self) -> Option<Value> {
        None
    }
    /// Row of `thalweg status` for such a value; `None`: no row.
    fn status_row(&self, _: &Value) -> Option<String> {
        None
    }
    /// Reads the metrics; none where the feature is off.
    ///
    /// # Errors
    /// Maps or a store that cannot be read: the feature's metrics are left out.
    fn metrics(&self, _: &Context<'_>) -> Result<MetricsWriter> {
        Ok(Box::new(|_| Ok(())))
    }
    /// The feature's list; `None`: it has none.
    fn list(&self) -> Option<List> {
        None
    }

    /// Place of the feature's section and metrics.
    fn place(&self) -> Place {
        Place::Learner
    }
    /// Names of the feature's files in the state directory.
    fn state_files(&self) -> &'static [&'static str] {
        &[]
    }
    /// Begins a session with these settings, before the store is opened; `state` is the state
    /// directory.
    ///
    /// # Errors
    /// Settings that cannot work.
    fn begin(&self, _: &dyn Settings, _: &Path) -> Result<()> {
        Ok(())
    }
    /// Work of a thread of its own, until the session ends; `None`: there is none.
    fn thread(&self) -> Option<Thread<'_>> {
        None
    }
    /// View of the page; `None`: there is none.
    fn page_view(&self) -> Option<PageView> {
        None
    }
}
