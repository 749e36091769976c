//! What the reports of the laboratory and of the simulator have in common: one page that needs
//! nothing else, its tables and its pictures.
#![forbid(unsafe_code)]

mod chart;
mod page;
mod svg;
mod table;

pub use chart::{Chart, Line};
pub use page::{FOOT, escape, head, html_table};
pub use svg::{COLOURS, LEFT, RIGHT, Scale, Shape, TOP, WIDTH, open};
pub use table::Table;
