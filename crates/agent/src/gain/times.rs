//! Times of the comparisons.

/// An hour of the draws.
pub const HOUR_NS: u64 = 3_600_000_000_000;
/// How long something stays taken back, ms.
pub const REVERTED_MS: i64 = 24 * 3_600_000;
/// Comparisons begin anew after this long, ms: the network of last quarter is another one.
pub const LENGTH_MS: i64 = 28 * 24 * 3_600_000;
