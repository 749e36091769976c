//! Classes of transfers: what a connection is compared with.

/// Number of size classes: powers of ten from 1 kB to 1 GB.
pub const SIZES: usize = 8;
/// Number of classes of the handshake's RTT, the unknown among them.
pub const RTTS: usize = 6;

/// Limits of the size classes in bytes, each the first of the class above.
const SIZE_LIMITS: [u64; SIZES - 1] = [
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
];
/// Limits of the RTT classes in microseconds, likewise.
const RTT_LIMITS: [u32; RTTS - 2] = [2_000, 10_000, 40_000, 150_000];

/// The class of a transfer of `bytes`.
pub fn size_class(bytes: u64) -> usize {
    SIZE_LIMITS.partition_point(|limit| *limit <= bytes)
}

/// The class of a round-trip time at establishment; class 0 is that of 0, which is unknown.
pub fn rtt_class(handshake_us: u32) -> usize {
    match handshake_us {
        0 => 0,
        known => 1 + RTT_LIMITS.partition_point(|limit| *limit <= known),
    }
}

/// A size class in words, e.g. `100 kB to 1 MB`. `size` is below [`SIZES`].
pub fn size_words(size: usize) -> &'static str {
    const WORDS: [&str; SIZES] = [
        "less than 1 kB",
        "1 kB to 10 kB",
        "10 kB to 100 kB",
        "100 kB to 1 MB",
        "1 MB to 10 MB",
        "10 MB to 100 MB",
        "100 MB to 1 GB",
        "1 GB and more",
    ];
    WORDS[size]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_belong_to_the_class_above() {
        let sizes = [0, 999, 1_000, 99_999, 100_000, 999_999_999, u64::MAX].map(size_class);
        assert_eq!(sizes, [0, 0, 1, 2, 3, 6, 7]);
        let rtts = [0, 1, 1_999, 2_000, 40_000, 150_000, u32::MAX].map(rtt_class);
        assert_eq!(rtts, [0, 1, 1, 2, 4, 5, 5]);
    }
}
