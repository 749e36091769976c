//! Fixed-point arithmetic with 16 fractional bits (Q16).

/// One in Q16.
pub const ONE_Q16: u32 = 1 << 16;

/// The excess of log2 over the chord between two powers of two: 0.34375 in Q16.
const LOG2_BULGE_Q16: u64 = 22528;

/// `log2(x)` in Q16; 0 for `x = 0`.
///
/// A parabola between neighbouring powers of two: exact at the powers, and monotonic. The error is
/// at most 0.009 bits (0.6 % of the argument).
pub fn log2_q16(x: u64) -> u32 {
    if x == 0 {
        return 0;
    }
    let whole = 63 - x.leading_zeros();
    // The 16 bits below the leading one.
    let fraction = ((x << x.leading_zeros() << 1) >> 48) as u32;
    let chord_excess = (u64::from(fraction) * u64::from(ONE_Q16 - fraction)) >> 16;
    (whole << 16) + fraction + ((chord_excess * LOG2_BULGE_Q16) >> 16) as u32
}

/// Bytes per second of `bytes` in `duration_us`, saturating; a duration of 0 counts as 1 µs.
pub fn rate_bytes_per_second(bytes: u64, duration_us: u64) -> u64 {
    let duration_us = duration_us.max(1);
    match bytes.checked_mul(1_000_000) {
        Some(scaled) => scaled / duration_us,
        None => (bytes / duration_us).saturating_mul(1_000_000),
    }
}

/// Moves `old` towards `new` by `weight / total` of the way, rounding towards `old`.
///
/// `total` is above 0 and at least `weight`. The distance times `weight` fits 64 bits for every
/// value this crate stores (32-bit distances, 17-bit weights).
pub(crate) fn blend_towards(old: u64, new: u64, weight: u64, total: u64) -> u64 {
    let step = old.abs_diff(new) * weight / total;
    if new > old { old + step } else { old - step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log2_is_exact_at_powers_of_two() {
        for n in 0..64 {
            assert_eq!(log2_q16(1 << n), n << 16);
        }
    }

    #[test]
    fn log2_stays_within_its_stated_error() {
        let mut worst: f64 = 0.0;
        for x in 1..200_000u64 {
            let error = f64::from(log2_q16(x)) / 65536.0 - (x as f64).log2();
            worst = worst.max(error.abs());
        }
        assert!(worst < 0.009, "worst error {worst}");
    }

    #[test]
    fn rate_does_not_overflow() {
        assert_eq!(rate_bytes_per_second(125_000_000, 1_000_000), 125_000_000);
        assert_eq!(rate_bytes_per_second(u64::MAX, 0), u64::MAX);
        assert_eq!(rate_bytes_per_second(0, 0), 0);
        assert_eq!(rate_bytes_per_second(u64::MAX, u64::MAX), 1_000_000);
    }
}
