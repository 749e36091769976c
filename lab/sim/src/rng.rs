//! Random numbers of a run.

pub(crate) use thalweg_units::random::{Random, mix};

/// The stream of a seed with this number.
pub(crate) fn random_stream(seed: u64, number: u64) -> Random {
    Random::new(mix(seed ^ mix(number.wrapping_add(0x5851_F42D_4C95_7F2D))))
}
