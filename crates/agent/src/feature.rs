//! Interface of a feature of the agent. Event loop, health, API, metrics, configuration, reload and
//! the command line know this trait and the list in `features.rs`; they name no feature.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::config::reader::Section;
use crate::kernel::{Kernel, Setup};
use crate::looks;
use crate::metrics::page::Page;
use crate::requirements::Requirement;

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

/// Sections of all features, in the order of the list.
#[derive(Clone, Debug)]
pub struct Sections(pub Vec<Arc<dyn Settings>>);

impl PartialEq for Sections {
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && pairs.into_iter().all(|(one, two)| one.is_same(&**two))
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
}

/// Outcome of a poll.
#[derive(Debug, Default)]
pub struct Polled {
    /// Processor time of other threads.
    pub elsewhere: Duration,
    /// Reason that the feature does not work, or only in part; `None`: it works.
    pub problem: Option<String>,
}

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
    /// Sentence of `--help` on the sub-command.
    fn about(&self) -> &'static str;
    /// Hint for an operator who sees the problem.
    fn hint(&self) -> &'static str;
    /// Needs of the kernel.
    fn requirement(&self) -> Requirement;

    /// Reads the feature's section of the configuration.
    fn read_settings(&self, root: &mut Section<'_>) -> Arc<dyn Settings>;
    /// Takes the settings of the next session, and adds to the set-up of the kernel side.
    fn configure(&self, settings: &dyn Settings, setup: &mut Setup);
    /// Loads programs beside the learner's; nothing is attached yet. A refusal of the kernel is the
    /// feature's problem.
    ///
    /// # Errors
    /// Faults that may pass, such as a lack of memory.
    fn load(&self, kernel: &Kernel) -> Result<()>;
    /// Starts once the learner is attached. Returns the problem, if there is one.
    fn start(&self, context: &Context<'_>) -> Option<String>;
    /// Interval of polls; `None`: there are none.
    fn poll_interval(&self) -> Option<Duration>;
    /// Works for a moment, called by the event loop.
    fn poll(&self, context: &Context<'_>) -> Polled;
    /// Number and cost of polls.
    fn poll_statistics(&self) -> &looks::Figures;
    /// Follows the learner to the cgroup to which it was attached again.
    fn reattach(&self, kernel: &Kernel);
    /// Checks the feature now; returns the problem, if there is one.
    fn problem(&self) -> Option<String>;
    /// Undoes at the end of a session what only a running agent may keep.
    ///
    /// # Errors
    /// The kernel refuses it.
    fn stop(&self, context: &Context<'_>) -> Result<()>;
    /// Finds the leftover of an agent below its directory of pins; `None`: there is none.
    fn find_leftover(&self, pin: &Path) -> Option<Undo>;
    /// Names of the feature's leftover.
    fn leftover_name(&self) -> LeftoverName;

    /// Value of the feature's key in `GET /v1/status`; null where the feature is off.
    fn status(&self) -> Value;
    /// Row of `thalweg status` for such a value; `None`: no row.
    fn status_row(&self, status: &Value) -> Option<String>;
    /// Writes metrics; none where the feature is off.
    ///
    /// # Errors
    /// The errors of the formatter.
    fn write_metrics(&self, page: &mut Page<'_>) -> fmt::Result;
    /// The answer to `GET /v1/NAME`.
    ///
    /// # Errors
    /// Maps that cannot be read.
    fn list(&self, context: &Context<'_>) -> Result<Value>;
    /// Table of such an answer, for a terminal. At most `limit` of its rows stay in the answer.
    ///
    /// # Errors
    /// The answer has another form.
    fn show(&self, answer: &mut Value, limit: usize) -> Result<String>;
}
