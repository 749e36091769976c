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
pub use page::{FOOT, escape_html, html_table, page_head};
pub use svg::{COLOURS, LEFT, RIGHT, Scale, Shape, TOP, WIDTH, draw_grid_line, open_picture};
pub use table::Table;
pub use verdict::Verdict;
