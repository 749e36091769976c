//! The agent: loads the kernel programs, stores their records, answers queries.
//!
//! `docs/guide` has a page a task; ARCHITECTURE.md has the map.

#[macro_use(fail_point)]
extern crate thalweg_control;

pub mod api;
mod arms;
mod causes;
mod comparison;
pub mod config;
mod counters;
pub mod detach;
mod discovery;
mod disk;
pub mod doctor;
mod event_loop;
mod events;
pub mod eviction;
pub mod feature;
pub mod features;
mod health;
mod hints;
pub mod kernel;
pub mod limits;
mod lock;
mod metrics;
pub mod named;
mod others;
mod overridden;
mod present;
#[cfg(test)]
#[path = "../../../tests/privileged.rs"]
mod privileged;
mod refused;
pub mod reload;
mod repairs;
mod reporter;
pub mod requirements;
pub mod run;
mod sampling;
mod scans;
mod service;
pub mod shared;
mod statistics;
pub mod store;
mod trials;
mod trusted;
pub mod view;
mod writer;

pub use api::web;
