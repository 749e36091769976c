//! Statistics of a sample: a handful of measurements.

/// The arithmetic mean; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The median; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// A quantile between 0 and 1, interpolated linearly between the two nearest order statistics
/// (Hyndman and Fan 1996, type 7); `None` without values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let once: Vec<Weighted> = values.iter().map(|value| (*value, 1)).collect();
    weighted_quantile(&once, share)
}

/// The nearest of the sorted values at a share between 0 and 1.
///
/// # Panics
/// There are no values.
pub fn nearest_rank(sorted: &[f64], share: f64) -> f64 {
    sorted[(share * (sorted.len() - 1) as f64).round() as usize]
}

/// A value, and the number of times that it was measured.
pub type Weighted = (f64, u64);

/// Number of measurements. Counts come from files, where each may be the largest number.
fn total_count(values: &[Weighted]) -> u128 {
    values.iter().map(|(_, count)| u128::from(*count)).sum()
}

/// [`quantile`] of weighted values.
pub fn weighted_quantile(values: &[Weighted], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let last = total_count(&sorted).checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let at = |rank: u128| {
        let mut seen = 0;
        let found = sorted.iter().find(|(_, count)| {
            seen += u128::from(*count);
            seen > rank
        });
        found.map(|(value, _)| *value)
    };
    let (below, above) = (
        at(last.min(place.floor() as u128))?,
        at(last.min(place.ceil() as u128))?,
    );
    // Equal, or both infinite: nothing to interpolate.
    if below == above {
        return Some(below);
    }
    Some(below + (above - below) * place.fract())
}

/// [`mean`] of weighted values.
pub fn weighted_mean(values: &[Weighted]) -> Option<f64> {
    let total = total_count(values);
    let sum: f64 = values
        .iter()
        .map(|(value, count)| value * *count as f64)
        .sum();
    (total > 0).then(|| sum / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_beyond_64_bits_are_added() {
        let values = [(1.0, u64::MAX), (3.0, u64::MAX)];
        assert_eq!(weighted_mean(&values), Some(2.0));
        assert_eq!(weighted_quantile(&values, 0.0), Some(1.0));
        assert_eq!(weighted_quantile(&values, 1.0), Some(3.0));
    }

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
    fn a_weight_is_as_good_as_repetition() {
        let weighted = [(10.0, 1), (1.0, 3), (2.0, 0), (4.0, 2)];
        let repeated = [1.0, 1.0, 1.0, 4.0, 4.0, 10.0];
        for share in [0.0, 0.3, 0.5, 0.77, 0.95, 1.0] {
            assert_eq!(
                weighted_quantile(&weighted, share),
                quantile(&repeated, share)
            );
        }
        // Midway between the third, 1, and the fourth, 4.
        assert_eq!(weighted_quantile(&weighted, 0.5), Some(2.5));
        assert_eq!(weighted_mean(&weighted), Some(3.5));
        assert_eq!(weighted_quantile(&[(1.0, 0)], 0.5), None);
        assert_eq!(weighted_mean(&[]), None);
    }

    #[test]
    fn quantiles_interpolate() {
        // The values of R's quantile(c(1, 2, 3, 4, 10), type = 7).
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
