//! The sub-commands, one a file.

pub mod build_kernel;
pub mod compare;
pub mod doctor;
pub mod kernels;
pub mod link;
pub mod list;
pub mod model;
pub mod remove_all;
pub mod run;
mod scenarios;
pub mod schema;
pub mod sim;
pub mod stack;
pub mod timers;
pub mod worker;
