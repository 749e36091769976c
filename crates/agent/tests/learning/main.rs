//! What the agent learns from real connections, what it changes, and what it leaves alone.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod advise;
mod agent;
mod agent_buffers;
mod agent_limited;
mod agent_long;
mod agent_loss;
mod buffers;
mod clamps;
mod containers;
mod control;
mod crowd;
mod gain_revert;
mod gain_rules;
mod idle;
mod interference;
mod isolation;
mod local;
mod many_hosts;
mod nat64;
mod networks;
mod sampling;
mod timers;
mod virtual_time;
mod windows;
