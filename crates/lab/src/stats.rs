//! Order statistics over a handful of measurements.

/// The arithmetic mean; `None` of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The median; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// A quantile between 0 and 1, interpolated linearly between the two nearest
/// order statistics (Hyndman and Fan 1996, type 7); `None` of nothing.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    let weight = place - below as f64;
    // Equal, or infinite on both sides: no difference to weigh.
    if sorted[below] == sorted[above] {
        return Some(sorted[below]);
    }
    Some(sorted[below] + (sorted[above] - sorted[below]) * weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_statistics() {
        assert_eq!(
            (mean(&[]), median(&[]), quantile(&[], 0.25)),
            (None, None, None)
        );
    }

    #[test]
    fn one_value_is_every_statistic() {
        assert_eq!(
            (mean(&[3.0]), median(&[3.0]), quantile(&[3.0], 0.9)),
            (Some(3.0), Some(3.0), Some(3.0))
        );
    }

    #[test]
    fn infinite_values_stay_infinite() {
        let values = [1.0, f64::INFINITY, f64::INFINITY, f64::INFINITY];
        assert_eq!(median(&values), Some(f64::INFINITY));
        assert_eq!(quantile(&values, 0.25), Some(f64::INFINITY));
        assert_eq!(quantile(&values, 0.0), Some(1.0));
    }

    #[test]
    fn quantiles_interpolate() {
        // The worked values of R's quantile(c(1, 2, 3, 4, 10), type = 7).
        let values = [10.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(median(&values), Some(3.0));
        assert_eq!(quantile(&values, 0.25), Some(2.0));
        assert_eq!(quantile(&values, 0.75), Some(4.0));
        assert!((quantile(&values, 0.9).unwrap() - 7.6).abs() < 1e-12);
        assert_eq!(median(&values[..4]), Some(2.5));
        assert_eq!(
            (quantile(&values, 0.0), quantile(&values, 1.0)),
            (Some(1.0), Some(10.0))
        );
        assert_eq!(mean(&values), Some(4.0));
    }
}
