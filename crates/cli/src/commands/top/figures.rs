//! Figures and texts that fit a column.

use thalweg_units::figures::three_digits;

/// Text where there is no figure.
pub const NONE: &str = "-";

/// A number with three digits and a suffix (k: thousands, M, G, T).
pub fn with_suffix(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let found = units.iter().find(|(factor, _)| value >= factor * 0.9995);
    match found {
        Some((factor, suffix)) => three_digits(value / factor) + suffix,
        None => three_digits(value),
    }
}

/// A count: all digits below 100,000.
pub fn count_text(number: u64) -> String {
    match number {
        0..100_000 => number.to_string(),
        _ => with_suffix(number as f64),
    }
}

/// A rate per second, once two answers have told it.
pub fn per_second(rate: Option<f64>) -> String {
    match rate {
        None => NONE.to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(rate) => with_suffix(rate),
    }
}

/// Bytes per second as bits per second.
pub fn bits_text(bytes_per_s: f64) -> String {
    with_suffix(bytes_per_s * 8.0)
}

/// A span of time in its largest unit.
pub fn age_text(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_six_columns() {
        for (value, text) in [
            (0.25, "0.25"),
            (9.99, "9.99"),
            (123.4, "123"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (4e10, "40.0G"),
        ] {
            assert_eq!(with_suffix(value), text);
        }
        assert_eq!([99_999, 100_000].map(count_text), ["99999", "100k"]);
        assert_eq!(
            [None, Some(0.0), Some(0.5)].map(per_second),
            ["-", "0", "0.50"]
        );
        assert_eq!(
            [59, 60, 7200, 90_000].map(age_text),
            ["59s", "1m", "2h", "1d"]
        );
    }
}
