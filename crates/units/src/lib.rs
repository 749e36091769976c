//! Files that users write: reading and writing them, faults with a place, and quantities of
//! scenario files, as text with units.
#![forbid(unsafe_code)]

pub mod address;
pub mod buckets;
mod fault;
pub mod figures;
pub mod file;
pub mod grammar;
pub mod memory;
mod near;
pub mod prefix;
mod printable;
pub mod program;
mod quantity;
pub mod random;
pub mod reader;
pub mod schema;
mod span;

pub use fault::{Fault, Faults, Position, excerpt, line_and_column, one_line};
pub use near::nearest_word;
pub use printable::{is_unseen, printable, printable_json, printable_lines};
pub use quantity::{Delay, Probability, Rate, Seconds, Size};
pub use span::Span;
