//! Common parts of the laboratory's and the simulator's reports: statistics and verdicts, a
//! self-contained page, its tables and its pictures.
#![forbid(unsafe_code)]

mod chart;
mod page;
pub mod sample;
mod statistics;
mod svg;
mod table;
mod verdict;

pub use chart::{Chart, Line};
pub use page::{FOOT, escape, head, html_table};
pub use svg::{COLOURS, LEFT, RIGHT, Scale, Shape, TOP, WIDTH, grid, open};
pub use table::Table;
pub use verdict::Verdict;
