//! What all files that users write have in common: how they are read and written, faults at a
//! place in them, and the quantities of scenario files, as text with units.
#![forbid(unsafe_code)]

mod fault;
pub mod file;
pub mod grammar;
pub mod memory;
mod near;
mod quantity;
pub mod reader;
mod span;

pub use fault::{Fault, Faults, FileError, Position, excerpt, one_line, position, with_suggestion};
pub use near::nearest;
pub use quantity::{Delay, Probability, Rate, Seconds, Size};
pub use span::Span;
