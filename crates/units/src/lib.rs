//! What the scenario files of the laboratory and of the simulator have in common: the
//! quantities, as text with units, and faults at a place in a file.
#![forbid(unsafe_code)]

mod fault;
mod quantity;
mod span;

pub use fault::{FileError, position};
pub use quantity::{Delay, Probability, Rate, Seconds, Size, scaled};
pub use span::Span;
