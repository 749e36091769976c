//! What the commands `thalweg` and `thalweg-lab` have in common: the form of output, errors and exit
//! codes, help in groups, completions and manual pages.
//!
//! This crate knows nothing of agents or laboratories.

pub mod completions;
pub mod failure;
pub mod groups;
pub mod journal;
pub mod kinds;
pub mod manual;
mod options;
pub mod output;

pub use failure::Failure;
pub use options::{Format, whole_number};

use std::sync::OnceLock;

static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Sets the name that precedes messages. The first call counts.
pub fn set_program(name: &'static str) {
    PROGRAM.get_or_init(|| name);
}

/// The name of the program: "thalweg" if none is set.
pub fn program_name() -> &'static str {
    PROGRAM.get().unwrap_or(&"thalweg")
}
