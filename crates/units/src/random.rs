//! Random numbers that are the same on every machine.

/// SplitMix64 (Steele, Lea and Flood 2014): a counter and a mixing function. Streams with different
/// seeds are independent enough for start times, marks, hashes and resampling.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The published stream of a seed.
    #[inline]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 uniform bits.
    #[inline]
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// From 0 to below 1, in steps of 2^-53.
    #[inline]
    pub fn fraction(&mut self) -> f64 {
        (self.u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// From 0 to below `bound`; 0 if `bound` is 0. The high half of a product (Lemire 2019): its
    /// bias is below 2^-64 times the bound.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// FNV-1a, 64 bits: the same in each version, since stores and messages have it.
pub fn hash_bytes(bytes: impl IntoIterator<Item = u8>) -> u64 {
    (bytes.into_iter()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Spreads a number's bits over the whole word.
#[inline]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        // First outputs of SplitMix64 with state 0, as listed with the xoshiro generators.
        let mut random = Random::new(0);
        assert_eq!(random.u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(random.u64(), 0x6E78_9E6A_A1B9_65F4);
        assert_eq!(random.u64(), 0x06C4_5D18_8009_454F);
    }

    #[test]
    fn evenly_spread() {
        let mut random = Random::new(7);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
        }
        // Standard deviation √(100000·0.1·0.9) = 95; the bound is five of them.
        assert!(
            counts.iter().all(|count| count.abs_diff(10_000) < 475),
            "{counts:?}"
        );
        assert_eq!(random.below(0), 0);
    }
}
