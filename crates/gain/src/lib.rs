//! What the learner gains, estimated from real traffic. No I/O, no clock, no randomness of its own.
#![forbid(unsafe_code)]

pub mod replay;
