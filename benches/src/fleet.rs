//! Agents in a fleet, with real parts: nats-server, the agent, network namespaces.

pub mod cost;
pub mod demo;
pub mod light;
pub mod server;
pub mod soak;
