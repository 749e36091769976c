//! The learner's arithmetic behind one interface, three times: the Rust reference, the C header
//! compiled for this machine, and the same header run by the kernel. `learner/` compares them.

pub mod cc;
mod core;
mod kernel;
mod native;
pub mod network;

pub use crate::core::Core;
pub use kernel::{Kernel, LoadError};
pub use native::{Covered, Native};

/// The request to every implementation, generated from `src/request.h`.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all
)]
pub mod raw {
    use thalweg_bpf_types::raw::{thalweg_host, thalweg_params, thalweg_sample, thalweg_worth};
    include!(concat!(env!("OUT_DIR"), "/request.rs"));
}

/// One request and its answer; fields by function as in `src/request.h`.
pub type Request = raw::vector_request;

// SAFETY: generated from request.h: integers only, no padding (size asserted there).
unsafe impl thalweg_bpf_types::Pod for Request {}

/// An implementation of the learner's arithmetic.
pub trait Implementation {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// Answers in place: `outputs`, and `host` if the function changes it.
    fn answer(&mut self, request: &mut Request) -> Result<(), String>;
}
