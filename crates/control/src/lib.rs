//! Objects pinned in the kernel that need no agent: policies, congestion controls in BPF,
//! and `sockops` objects of others.
//!
//! Each is set up by one call and works on without a process. [`pins`] and [`links`] are the base
//! of all. The learner is known here only by its pins ([`learner`]), because policies run before
//! it. This crate knows nothing of the agent, its store and its interface.

#[doc(hidden)]
#[macro_use]
pub mod faults;

pub mod attempts;
pub mod batch;
pub mod cc;
pub mod containers;
pub mod diag;
mod error;
pub mod former_limits;
pub mod inventory;
pub mod iterator;
mod kernel_objects;
pub mod learner;
pub mod leftovers;
pub mod links;
pub mod memory;
pub mod object;
pub mod pins;
pub mod policy;
#[cfg(test)]
#[path = "../../../tests/privileged.rs"]
mod privileged;
pub mod privileges;
pub mod sockops;
pub mod system;

pub use error::{Error, Result};
