//! The laboratory: measures congestion controls, and an agent that chooses among
//! them, on this machine's own TCP stack under controlled loss and rate.
//!
//! A [`scenario::Scenario`] describes a path, its traffic and the expected
//! outcome. [`run`] sets up one [`host::Pair`] per [`Mode`] (two network
//! namespaces joined by a veth pair), lets iperf3 or its own
//! [`worker`] make the same connections in each, interleaved, and writes a report.
//! [`compare`](mod@compare) sets two reports against each other. Everything it creates bears the
//! process's id and is removed on every way out.
//!
//! [`link`] is something else: any command behind an emulated path, without root. So is
//! [`stack`]: any command on the TCP of a kernel that is a process, on the machine's network.
//!
//! A laboratory run needs Linux 5.14 or later, CAP_NET_ADMIN and CAP_SYS_ADMIN, iproute2 and
//! iperf3; [`host::missing`] says what a machine lacks.

mod agent;
mod arms;
pub mod backend;
mod cache;
pub mod compare;
mod ends;
mod error;
pub mod expect;
mod flows;
pub mod guest;
pub mod host;
mod http;
pub mod kernels;
pub mod measure;
pub mod mode;
mod modules;
pub mod outcome;
mod policy;
mod progress;
pub mod published;
pub mod qemu;
pub mod report;
mod run;
mod rundir;
pub mod scenario;
mod several;
pub mod stack;
pub mod statistic;
pub mod stats;
pub mod table;
pub mod ticks;
pub mod timers;
mod traffic;
pub mod uml;
pub mod virtual_kernel;
pub mod words;
pub mod worker;

pub use agent::{LearnedArm, LearnedHost};
pub use backend::Backend;
pub use error::Error;
pub use mode::Mode;
pub use outcome::Outcome;
pub use run::{Options, run};
pub use thalweg_units as units;
