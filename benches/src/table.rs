//! One line a figure: measured, spread, target, verdict.

/// Median and quartiles of repeated measurements.
pub struct Spread {
    /// The middle.
    pub median: f64,
    /// A quarter of the measurements are below.
    pub low: f64,
    /// A quarter are above.
    pub high: f64,
    /// How many there were.
    pub count: usize,
}

/// Median and quartiles (nearest rank); panics on an empty list, which no benchmark makes.
pub fn spread(values: &[f64]) -> Spread {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    Spread {
        median: at(0.5),
        low: at(0.25),
        high: at(0.75),
        count: sorted.len(),
    }
}

/// Which side of the target is good.
pub enum Target {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
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
