//! Figures for a reader: three significant digits and a unit.

/// Columns in which tables of a tuner's remote hosts have been published. They have a row per host
/// and congestion control, times in µs, rates in bytes per µs.
pub const PUBLISHED_HOSTS: [&str; 7] = [
    "IPAddress",
    "CongAlg",
    "Metric",
    "Count",
    "Greedy",
    "MinRtt",
    "MaxRtDlvr",
];

/// Units with their factors, the largest first.
type Units = [(f64, &'static str)];

/// Bits per second.
pub fn rate_text(bps: f64) -> String {
    scaled_text(
        bps,
        &[(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")],
        "bit/s",
    )
}

/// Bytes.
pub fn bytes_text(bytes: u64) -> String {
    scaled_text(bytes as f64, &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB")], "B")
}

/// Microseconds.
pub fn time_text(us: f64) -> String {
    let units = [(1e6, "s"), (1e3, "ms"), (1.0, "µs")];
    let found = units.iter().find(|(factor, _)| reaches_unit(us, *factor));
    let (factor, unit) = found.unwrap_or(&units[2]);
    format!("{} {unit}", three_digits(us / factor))
}

/// Three significant digits; two decimal places for numbers below 0.01.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Numbers below the smallest unit are whole.
fn scaled_text(value: f64, units: &Units, least: &str) -> String {
    match units
        .iter()
        .find(|(factor, _)| reaches_unit(value, *factor))
    {
        Some((factor, unit)) => format!("{} {unit}", three_digits(value / factor)),
        None => format!("{value:.0} {least}"),
    }
}

/// 999.6 would be shown as "1000"; in the next unit it is "1.00".
fn reaches_unit(value: f64, factor: f64) -> bool {
    value.abs() >= factor * 0.9995
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_keep_three_figures() {
        for (bps, text) in [
            (0.0, "0 bit/s"),
            (999.0, "999 bit/s"),
            (1_234.0, "1.23 kbit/s"),
            (90_120_000.0, "90.1 Mbit/s"),
            (999_700_000.0, "1.00 Gbit/s"),
            (4_812_000_000.0, "4.81 Gbit/s"),
            (16_500_000_000.0, "16.5 Gbit/s"),
            (120e9, "120 Gbit/s"),
        ] {
            assert_eq!(rate_text(bps), text);
        }
    }

    #[test]
    fn sizes_and_times() {
        assert_eq!(bytes_text(999), "999 B");
        assert_eq!(bytes_text(1_500_000), "1.50 MB");
        assert_eq!(bytes_text(999_700), "1.00 MB");
        assert_eq!(time_text(0.25), "0.25 µs");
        assert_eq!(time_text(-12_345.0), "-12.3 ms");
        assert_eq!(time_text(999_700.0), "1.00 s");
    }
}
