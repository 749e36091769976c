//! The sub-commands, one a file.

pub mod arms;
pub mod cc;
pub mod completions;
pub mod config;
pub mod detach;
pub mod doctor;
pub mod events;
pub mod explain;
pub mod export;
pub mod hosts;
pub mod import;
pub mod lab;
pub mod limit;
pub mod link;
pub mod manual;
pub mod metrics;
pub mod model;
pub mod policy;
pub mod reload;
pub mod reset;
pub mod run;
mod scenarios;
pub mod schema;
pub mod sim;
pub mod sockops;
pub mod stack;
pub mod status;
