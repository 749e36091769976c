//! The learned rate controller in integers: features, networks, trees, the next rate.
//!
//! `docs/reference/model.md` specifies it. `bpf/include/thalweg_network.h` runs in the kernel, and
//! `python/thalweg/fixed.py` is the measure of quantisation. Vectors made by
//! `tests/vectors/network.py` keep all of them bit-identical. Nothing overflows: each module names
//! the bounds it relies on. Fixed-point helpers come from `thalweg-learner`, as in C. This crate
//! calls neither a kernel nor a simulator. [`models`] reads model files and runs them in floating
//! point. [`kernel`] has the other rules of the controller in TCP.
#![forbid(unsafe_code)]

mod action;
mod fault;
mod features;
pub mod kernel;
mod model;
pub mod models;
mod network;
mod tree;

pub use action::{MAX_RATE, next_rate};
pub use fault::Fault;
pub use features::{Feature, FeatureKind, Features, Flow, MAX_INPUTS, MAX_RTT_NS, Measurement};
pub use model::{Decider, Model};
pub use network::{Layer, MAX_BIAS, MAX_LAYERS, MAX_WIDTH, Network, SHIFTS, Scale, TANH_Q15};
pub use tree::{Forest, MAX_DEPTH, MAX_LEAF, MAX_NODES, MAX_TREES, Node};

/// The largest feature and the largest action, just below one in Q15; the smallest is its
/// negative.
pub const ONE_Q15: i16 = i16::MAX;

/// `value / 2^shift` to the nearest integer, ties upwards; `shift` is at least 1.
fn rounded_shift(value: i64, shift: u32) -> i64 {
    (value + (1 << (shift - 1))) >> shift
}
