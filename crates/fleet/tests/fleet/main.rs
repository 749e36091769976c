//! The client against real servers, on loopback.
#![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

mod away;
mod clones;
mod cluster;
mod credentials;
mod disk;
mod exchange;
mod hostile;
mod permissions;
mod refusals;
mod scale;
mod support;
mod unanswered;
mod written;
