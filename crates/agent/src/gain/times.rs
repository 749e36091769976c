//! Times of the comparisons.

pub use thalweg_learner::HOUR_NS;

/// How long something stays taken back, ms.
pub const REVERTED_MS: i64 = 24 * 3_600_000;
/// Comparisons begin anew after this long, ms: the network of last quarter is another one.
pub const LENGTH_MS: i64 = 28 * 24 * 3_600_000;
