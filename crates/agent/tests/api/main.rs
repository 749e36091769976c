//! What the agent says of itself: API, metrics, health; and who may ask.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod alerts;
mod api_attacks;
mod health;
mod health_follow;
mod prometheus_server;
mod tcp;
