//! A deterministic packet-level simulator of a datacenter network.
//!
//! Hosts send the packets of their flows at rates and windows that a controller per flow
//! ([`cc::Controller`]) sets; switches queue, mark and measure them. A scenario and a seed give the
//! same run, to the last event, on any machine and any number of threads.
// Except for one function in `prefetch`.
#![deny(unsafe_code)]

pub mod cc;
pub mod engine;
pub mod expect;
pub mod metrics;
mod prefetch;
mod rng;
pub mod scenario;
mod sim;
pub mod sweep;
mod time;
mod topology;
mod workload;

pub use metrics::{Outcome, Statistic};
pub use scenario::Scenario;
pub use sim::{Decision, External, Pending, Progress, Simulation, longest_round_trip};
pub use time::Time;
