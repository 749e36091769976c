//! What all files that users write have in common: how they are read and written, faults at a
//! place in them, and the quantities of scenario files, as text with units.
#![forbid(unsafe_code)]

mod fault;
pub mod file;
pub mod grammar;
pub mod memory;
mod quantity;
mod span;

pub use fault::{FileError, one_line, position};
pub use quantity::{Delay, Probability, Rate, Seconds, Size};
pub use span::Span;
