//! Seeded random numbers: one stream for the world, one for the policy.

/// The splitmix64 generator (Steele, Lea and Flood, 2014): small, and every seed is good.
pub struct Random(u64);

impl Random {
    /// A stream of its own for each seed and purpose.
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut stream = Self(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        stream.0 = stream.u64();
        stream
    }

    /// 64 uniform bits.
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// 32 uniform bits: all that a policy in the kernel gets.
    pub fn u32(&mut self) -> u32 {
        (self.u64() >> 32) as u32
    }

    /// Uniform in (0, 1]. For the world only.
    pub fn unit(&mut self) -> f64 {
        ((self.u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box and Muller). For the world only.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}
