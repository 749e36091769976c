//! A tanh with the same result on every machine.

/// 1.5 * 2^52: numbers of this size are whole, so adding it rounds without a library call.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// From 1/8 to 1/1.
const RECIPROCALS: [f64; 8] = [
    1.0 / 8.0,
    1.0 / 7.0,
    1.0 / 6.0,
    1.0 / 5.0,
    1.0 / 4.0,
    1.0 / 3.0,
    1.0 / 2.0,
    1.0,
];

/// `tanh(x)`, correct to 2^-22. It uses only additions, multiplications and one division, because
/// the system's mathematics library may give other results in another version.
pub fn tanh(x: f32) -> f32 {
    // Beyond 10, tanh rounds to one.
    let doubled = 2.0 * f64::from(x).clamp(-10.0, 10.0);
    // e^doubled = 2^whole * e^rest, |rest| at most half of ln 2.
    let whole = (doubled * std::f64::consts::LOG2_E + ROUNDER) - ROUNDER;
    let rest = doubled - whole * std::f64::consts::LN_2;
    // Taylor series; the first omitted term is below 3e-10.
    let mut power = 1.0;
    for reciprocal in RECIPROCALS {
        power = 1.0 + power * (rest * reciprocal);
    }
    let exponential = power * f64::from_bits(((1023 + whole as i64) as u64) << 52);
    ((exponential - 1.0) / (exponential + 1.0)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tanh() {
        let mut x = -12.0f32;
        while x < 12.0 {
            let error = f64::from(tanh(x)) - f64::from(x).tanh();
            assert!(error.abs() < 2e-7, "{x}: off by {error}");
            x += 0.000_93;
        }
        assert_eq!(tanh(0.0), 0.0);
        assert_eq!(tanh(f32::MAX), 1.0);
        assert_eq!(tanh(f32::MIN), -1.0);
    }
}
