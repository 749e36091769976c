//! Seeded random numbers: one stream for the world, one for the policy.

use thalweg_units::random;

/// A generator for a policy or a world.
pub struct Random(random::Random);

impl Random {
    /// Each seed and purpose has its own stream.
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut first = random::Random::new(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(random::Random::new(first.u64()))
    }

    /// 64 uniform bits.
    pub fn u64(&mut self) -> u64 {
        self.0.u64()
    }

    /// 32 uniform bits: the only randomness of a policy in the kernel.
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
