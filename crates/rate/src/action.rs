//! The rate after an action.

use thalweg_learner::ONE_Q16;

use crate::rounded_shift;

/// Highest rate in the arithmetic, in any unit: a terabit a second in bits.
pub const MAX_RATE: u64 = (1 << 40) - 1;

/// The largest step, 0.2, for an action in Q15 and a step in Q16: 0.4 in Q16.
const STEP_Q16: u64 = 26214;

/// The rate after an action: times `1 + 0.2u` for `u >= 0`, times `1 / (1 - 0.2u)` for `u < 0`. It
/// is rounded to the nearest integer, then limited to at most `cap`, then to at least `floor`.
///
/// A rate above [`MAX_RATE`] counts as [`MAX_RATE`]. The product stays below 2^58.
pub fn next_rate(rate: u64, action_q15: i16, floor: u64, cap: u64) -> u64 {
    let step_q16 = (u64::from(action_q15.unsigned_abs()) * STEP_Q16 + (1 << 15)) >> 16;
    let one_q16 = u64::from(ONE_Q16);
    let up_q16 = one_q16 + step_q16;
    // One division serves both signs. A branch would be hard to predict.
    let (above, below) = if action_q15 >= 0 {
        (up_q16, one_q16)
    } else {
        (one_q16, up_q16)
    };
    let multiplier_q16 = ((above << 16) + below / 2) / below;
    let next = rounded_shift((rate.min(MAX_RATE) * multiplier_q16) as i64, 16) as u64;
    next.min(cap).max(floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_multiplier_is_that_of_the_formula() {
        for action in [-32767i16, -20000, -1, 0, 1, 12345, 32767] {
            let u = f64::from(action) / 32768.0;
            let factor = if u >= 0.0 {
                1.0 + 0.2 * u
            } else {
                1.0 / (1.0 - 0.2 * u)
            };
            let next = next_rate(1_000_000_000, action, 0, u64::MAX) as f64 / 1e9;
            assert!((next - factor).abs() < 2e-5, "{u}: {next}, not {factor}");
        }
    }

    /// Checks both formulas of docs/reference/model.md for every action; a search finds the
    /// multiplier.
    #[test]
    fn both_directions_round_to_nearest() {
        for action in -32767..=32767i16 {
            let step = (u64::from(action.unsigned_abs()) * 26214 + 32768) / 65536;
            let next = next_rate(1 << 16, action, 0, u64::MAX);
            if action >= 0 {
                assert_eq!(next, 65536 + step);
            } else {
                // |next * (65536 + step) - 2^32| is at most half of 65536 + step.
                let distance = (next * (65536 + step)).abs_diff(1 << 32);
                assert!(2 * distance <= 65536 + step, "{action}: {next}");
            }
        }
    }

    #[test]
    fn nothing_overflows_and_the_floor_wins() {
        assert_eq!(
            next_rate(u64::MAX, 32767, 0, u64::MAX),
            1_319_410_597_887,
            "2^40 - 1 times 78643 / 65536 by hand"
        );
        assert_eq!(next_rate(0, 32767, 5, 3), 5);
        assert_eq!(next_rate(1000, 0, 0, 999), 999);
    }
}
