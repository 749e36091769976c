//! How much a wider group's knowledge is worth in a narrower one: as many measurements as the
//! spread of the narrower ones says.

use crate::host::{Host, MAX_ARMS};

/// Worth of a group's knowledge in a new host's record: 8 measurements (Q16).
pub const WORTH_OF_GROUP_Q16: [u32; MAX_ARMS] = [8 << 16; MAX_ARMS];
/// Worth of a wider group's knowledge before anything is known of the spread: 32 measurements
/// (Q16).
pub const WORTH_Q16: [u32; MAX_ARMS] = [32 << 16; MAX_ARMS];
/// Number of groups that the initial worth counts as.
const DOUBT: f64 = 4.0;
/// Bounds of the worth.
const WORTH_MIN: f64 = 1.0;
const WORTH_MAX: f64 = 512.0;
/// Evidence of an arm from which a group counts, measurements.
const WEIGHT_MIN: f64 = 2.0;
/// A squared distance counts as at most this many times its expectation, three standard deviations:
/// one odd group says nothing of the others.
const SQUARES_MAX: f64 = 9.0;
/// A Gaussian's standard deviation over its mean absolute one.
const DEVIATION: f64 = 1.2533;

/// The worth (Q16 measurements) of what `wider` knows of each arm, for groups like `narrower`.
///
/// The spread of the groups' own relative costs around the wider group's is that of their true
/// costs, τ², and that of chance, σ² / evidence. The best weight of the wider group's mean is
/// σ² / τ² measurements (empirical Bayes; τ² by weighted moments).
pub fn worth_q16<'a>(
    narrower: impl Iterator<Item = &'a Host> + Clone,
    wider: &Host,
    system_arm: usize,
) -> [u32; MAX_ARMS] {
    let mut worth = [0; MAX_ARMS];
    for (arm, worth) in worth.iter_mut().enumerate() {
        let pairs = narrower.clone().map(|group| (group, wider));
        *worth = worth_of(
            pairs,
            arm,
            noise_variance(wider, arm, system_arm),
            system_arm,
        );
    }
    worth
}

/// The worth (Q16 measurements) of what the fleet told of each arm, in the records of the same networks:
/// `pairs` of an own record and that of the fleet. `typical` has the deviation of the measurements.
///
/// As [`worth_q16`]: where own measurements show that the fleet was wrong, what it tells is worth little.
pub fn fleet_worth_q16<'a>(
    pairs: impl Iterator<Item = (&'a Host, &'a Host)> + Clone,
    typical: &Host,
    system_arm: usize,
) -> [u32; MAX_ARMS] {
    let mut worth = [0; MAX_ARMS];
    for (arm, worth) in worth.iter_mut().enumerate() {
        // The fleet's own part, without what it took over.
        let known = |(_, fleet): &(&Host, &Host)| fleet.arms[arm].own_weight_q16 > 0;
        let pairs = pairs.clone().filter(known);
        *worth = worth_of(
            pairs,
            arm,
            noise_variance(typical, arm, system_arm),
            system_arm,
        );
    }
    worth
}

fn from_q16(value: u32) -> f64 {
    f64::from(value) / 65536.0
}

/// Variance of a measurement, bits².
fn noise_variance(record: &Host, arm: usize, system_arm: usize) -> f64 {
    let [own, system] = [arm, system_arm].map(|arm| record.arms[arm].deviation_q16);
    let sigma = DEVIATION * from_q16(own.max(system));
    (sigma * sigma).max(0.01)
}

/// The worth for pairs of a record and what a wider one, or the fleet, knows of it.
fn worth_of<'a>(
    records: impl Iterator<Item = (&'a Host, &'a Host)> + Clone,
    arm: usize,
    noise: f64,
    system_arm: usize,
) -> u32 {
    // Pairs of a squared distance and what chance adds to it.
    let pairs = records.filter_map(|(group, wider)| {
        let (own, system) = (&group.arms[arm], &group.arms[system_arm]);
        let (weight, of_system) = (
            from_q16(own.own_weight_q16),
            from_q16(system.own_weight_q16),
        );
        if weight < WEIGHT_MIN || of_system < WEIGHT_MIN {
            return None;
        }
        // What the fleet took over from wider records is no claim of its own.
        let told = |arm: usize| match wider.level.is_fleet() {
            true => f64::from(wider.arms[arm].own_q16),
            false => wider.arms[arm].value as f64,
        };
        let known = (told(arm) - told(system_arm)) / 65536.0;
        let apart = (f64::from(own.own_q16) - f64::from(system.own_q16)) / 65536.0 - known;
        Some((apart * apart, noise * (1.0 / weight + 1.0 / of_system)))
    });
    let prior = noise / from_q16(WORTH_Q16[arm]);
    let mut spread = prior;
    for _ in 0..4 {
        let doubt = DOUBT / (2.0 * prior * prior);
        let (mut sum, mut weights) = (doubt * prior, doubt);
        for (square, chance) in pairs.clone() {
            let weight = 1.0 / (2.0 * (spread + chance) * (spread + chance));
            sum += weight * (square.min(SQUARES_MAX * (spread + chance)) - chance);
            weights += weight;
        }
        spread = (sum / weights).max(noise / WORTH_MAX);
    }
    ((noise / spread).clamp(WORTH_MIN, WORTH_MAX) * 65536.0) as u32
}
