//! The laboratory: measures congestion controls, and an agent that chooses among them, on this
//! machine's TCP under controlled loss and rate.
//!
//! A [`scenario::Scenario`] describes a path, its traffic and the expected outcome. [`run`] sets up
//! one [`host::Pair`] per [`Mode`]: two network namespaces joined by a veth pair. iperf3 or the
//! laboratory's [`worker`] makes the same connections in each, interleaved. A report follows;
//! [`compare`](mod@compare) compares two. Everything that a run creates bears the process's id and
//! is removed on every way out.
//!
//! `thalweg-guest` boots kernels, `thalweg-stack` runs the ends of a path on one. The laboratory
//! must not know the agent's crates: an agent under test is a process.
//!
//! A run needs Linux 5.14 or later, CAP_NET_ADMIN and CAP_SYS_ADMIN, iproute2 and iperf3.
//! [`host::missing_requirements`] says what a machine lacks.

mod agent;
mod arms;
pub mod backend;
pub mod compare;
mod error;
pub mod expect;
pub mod figure;
mod flows;
pub mod gain;
pub mod host;
mod http;
mod inside;
pub mod measure;
pub mod mode;
mod multi_host;
mod options;
pub mod outcome;
mod policy;
mod progress;
pub mod query;
pub mod report;
mod run;
mod rundir;
pub mod scenario;
mod stack_endpoints;
pub mod statistic;
pub mod summary;
pub mod table;
pub mod timers;
mod timing;
mod traffic;
mod web;
pub mod worker;

pub use agent::{LearnedArm, LearnedHost};
pub use error::Error;
pub use mode::Mode;
pub use options::{Backend, KernelOptions, Options, Origin};
pub use outcome::Outcome;
pub use run::run_scenarios;
pub use thalweg_guest::ticks;
pub use thalweg_units as units;
