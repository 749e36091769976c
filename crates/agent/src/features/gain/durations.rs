//! Times of the comparisons.

pub use thalweg_learner::HOUR_NS;

/// Time that a revert lasts, ms.
pub const REVERTED_MS: i64 = 24 * 3_600_000;
/// Time after which comparisons begin again, ms: the network of last quarter is another one.
pub const LENGTH_MS: i64 = 28 * 24 * 3_600_000;

/// Whole seconds of a duration; 0 if negative.
pub fn seconds(ms: i64) -> u64 {
    u64::try_from(ms / 1000).unwrap_or(0)
}
