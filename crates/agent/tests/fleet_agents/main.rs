//! Agents that share what they learn, through a real server.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod fleet;
mod fleet_agent;
mod fleet_inputs;
mod fleet_kept;
mod fleet_number;
mod fleet_policy;
mod fleet_server;
