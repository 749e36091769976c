//! Child processes that do not outlive their guards, and signals that every wait looks at.
//!
//! For programs that set something up, run others in it and take it down again, also after Ctrl-C.
//! It knows nothing of kernels or congestion controls.

mod child;
mod error;
pub mod http;
pub mod interrupt;
pub mod owned;
pub mod signals;
pub mod tool;

pub use child::{Process, tie};
pub use error::Error;
