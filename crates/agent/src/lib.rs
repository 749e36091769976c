//! The agent: loads the kernel programs, keeps what they learn, answers questions.
//!
//! `docs/guide` has a page a task; ARCHITECTURE.md has the map.

#[macro_use]
mod faults;

mod api;
mod batch;
pub mod cc;
pub mod config;
mod diag;
pub mod doctor;
mod events;
pub mod features;
mod keeper;
pub mod kernel;
pub mod limit;
mod lock;
mod object;
mod pins;
pub mod policy;
mod present;
pub mod privileges;
pub mod run;
mod shared;
mod silence;
pub mod sockops;
pub mod store;
pub mod system;
pub mod view;
mod writer;
