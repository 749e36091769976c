//! Tables with a line per figure: measurement, spread, target, verdict.

use thalweg_report::sample::nearest_rank;

/// Median and quartiles of repeated measurements.
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lower quartile.
    pub low: f64,
    /// The upper quartile.
    pub high: f64,
    /// Number of measurements.
    pub count: usize,
}

/// Median and quartiles (nearest rank); panics on an empty list, which no benchmark has.
pub fn spread(values: &[f64]) -> Spread {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share| nearest_rank(&sorted, share);
    Spread {
        median: at(0.5),
        low: at(0.25),
        high: at(0.75),
        count: sorted.len(),
    }
}

/// The good side of a target.
pub enum Target {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

/// Prints a line; returns whether the median meets the target.
pub fn line(name: &str, unit: &str, spread: &Spread, target: &Target) -> bool {
    let (met, sign, value) = match target {
        Target::AtMost(value) => (spread.median <= *value, "≤", value),
        Target::AtLeast(value) => (spread.median >= *value, "≥", value),
    };
    println!(
        "{name:<68} {:>9.3} {unit:<8} [{:.3} … {:.3}] n={:<3} target {sign} {value} {}",
        spread.median,
        spread.low,
        spread.high,
        spread.count,
        if met { "met" } else { "MISSED" }
    );
    met
}
