//! Comparisons as rows, and numbers in words.

use thalweg_gain::{Comparison, Row, Unit, Verdict, size_words};

use crate::view::GainRow;

/// Row of a comparison for the API.
pub fn presented_row(row: Row, comparison: &Comparison, verdict: Verdict, age_s: u64) -> GainRow {
    let interval = comparison.interval();
    let has_both = comparison.control > 0 && comparison.treated > 0;
    GainRow {
        measure: row.measure_name().to_owned(),
        size: match row {
            Row::TimeOf(size) => Some(size_words(size).to_owned()),
            _ => None,
        },
        unit: match row.unit() {
            Unit::Bits => "percent",
            Unit::Share => "points",
        }
        .to_owned(),
        control: comparison.control,
        treated: comparison.treated,
        effect: has_both.then(|| row.in_percent(comparison.effect)),
        low: interval.map(|(low, _)| row.in_percent(low)),
        high: interval.map(|(_, high)| row.in_percent(high)),
        verdict: verdict.one_word().to_owned(),
        known_in_s: match verdict {
            Verdict::Unknown(growth) => known_in(growth, age_s),
            _ => None,
        },
    }
}

/// Time until an effect that matters would show, if clusters come as before: their number must grow
/// by a factor.
pub fn known_in(growth: Option<f64>, age_s: u64) -> Option<u64> {
    growth.map(|growth| ((growth - 1.0) * age_s as f64) as u64)
}

/// Size of an effect without its sign, with its unit.
pub fn amount(row: Row, effect: f64) -> String {
    let percent = row.in_percent(effect).abs();
    let unit = match row.unit() {
        Unit::Bits => "%",
        Unit::Share => "percentage points",
    };
    format!("{} {unit}", short(percent))
}

/// Word for the direction of an effect: less or more.
pub fn direction(effect: f64) -> &'static str {
    if effect < 0.0 { "less" } else { "more" }
}

/// Text of a number of clusters.
pub fn host_hours(count: u64) -> String {
    match count {
        1 => "1 host-hour".to_owned(),
        count => format!("{} host-hours", thousands_text(count)),
    }
}

fn short(value: f64) -> String {
    match value {
        _ if value >= 9.95 => format!("{value:.0}"),
        _ if value >= 0.95 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub fn thousands_text(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Text of a time to come, which nobody knows to the second.
pub fn about(seconds: u64) -> String {
    let (length, unit) = match seconds {
        0..7_200 => (60, "minutes"),
        7_200..172_800 => (3_600, "hours"),
        _ => (86_400, "days"),
    };
    format!("{} {unit}", seconds.div_ceil(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let numbers = [0.0, 0.123, 1.25, 9.96, 1234.5].map(short);
        assert_eq!(numbers, ["0.00", "0.12", "1.2", "10", "1234"]);
        let counts = [7, 999, 1_204, 1_000_000].map(thousands_text);
        assert_eq!(counts, ["7", "999", "1,204", "1,000,000"]);
        let times = [60, 7_199, 7_200, 200_000].map(about);
        assert_eq!(times, ["1 minutes", "120 minutes", "2 hours", "3 days"]);
    }
}
