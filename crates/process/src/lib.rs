//! Child processes that do not outlive their guards, and signals that every wait checks.
//!
//! For programs that set something up, run others in it and remove it again, also after Ctrl-C.
//! This crate knows nothing of kernels or congestion controls.

pub mod capabilities;
mod child;
mod error;
pub mod http;
pub mod interrupt;
pub mod owned;
pub mod signals;
pub mod tool;

pub use child::{Process, tie_to_thread};
pub use error::Error;
