//! Objects pinned in the kernel that need no agent: policies, congestion controls in BPF, limits of
//! cgroups, other people's `sockops` objects.
//!
//! Each is set up by a call and works on without a process. [`pins`] and [`links`] are what all of
//! them stand on. The learner is known here only by its pins ([`learner`]), because policies run
//! before it; of the agent, its store and its interface this crate knows nothing.

#[doc(hidden)]
#[macro_use]
pub mod faults;

pub mod batch;
pub mod cc;
pub mod diag;
pub mod learner;
pub mod limit;
pub mod links;
pub mod object;
pub mod pins;
pub mod policy;
pub mod privileges;
pub mod sockops;
pub mod system;
