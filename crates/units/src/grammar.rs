//! The grammar of quantities: a number with its unit, by the same rules everywhere.
//!
//! Case does not matter, and spaces may precede a unit. A number has digits and at most one point,
//! no sign and no exponent. `0` needs no unit as a time or a size.

use std::time::Duration;

/// Units of times, for messages.
pub const TIMES: &str = "ns, us, ms, s, m, h, d";
/// Units of sizes, for messages.
pub const SIZES: &str = "B, kB, MB, GB, KiB, MiB, GiB";
/// Units of rates, for messages.
pub const RATES: &str = "bit, kbit, mbit, gbit";

type Units = [(&'static str, u64)];

/// Units of times, largest first, in ps.
const TIME: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000_000),
    ("h", 3_600_000_000_000_000),
    ("m", 60_000_000_000_000),
    ("s", 1_000_000_000_000),
    ("ms", 1_000_000_000),
    ("us", 1_000_000),
    ("ns", 1_000),
];

/// Units of sizes, largest first, in bytes.
const SIZE: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Units of rates, largest first, in bits per second, as in `tc`.
const RATE: [(&str, u64); 4] = [
    ("gbit", 1_000_000_000),
    ("mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

/// Largest number of decimal places.
const PLACES: usize = 12;

/// A time, such as `90s`, `1h30m`, `0.5 ms` or `0`, in ps. Larger units come first. Only a single
/// number may have decimal places.
pub fn time_ps(text: &str) -> Option<u128> {
    if text == "0" {
        return Some(0);
    }
    let mut rest = text;
    let mut total: u128 = 0;
    let mut smallest = u64::MAX;
    loop {
        let (number, scale, after) = parse_term(rest, &TIME)?;
        let alone = total == 0 && smallest == u64::MAX && after.is_empty();
        if scale >= smallest || (number.places > 0 && !alone) {
            return None;
        }
        smallest = scale;
        total = total.checked_add(number.exact_product(scale)?)?;
        if after.is_empty() {
            return Some(total);
        }
        rest = after;
    }
}

/// A time in the form of [`time_ps`], if it is a whole number of µs.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let ps = time_ps(text)?;
    let us = u64::try_from(ps / 1_000_000).ok()?;
    let whole = ps.is_multiple_of(1_000_000);
    whole.then(|| Duration::from_micros(us))
}

/// A size, such as `128KiB`, `1.5 MB` or `0`, in bytes, rounded.
pub fn parse_bytes(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    parse_rounded(text, &SIZE)
}

/// A rate, such as `100mbit` or `2.5 Gbit`, in bits per second, rounded.
pub fn bits_per_s(text: &str) -> Option<u64> {
    parse_rounded(text, &RATE)
}

/// A regular expression of [`time_ps`]; it says nothing of the order of units.
pub fn time_pattern() -> String {
    format!("^(0|({})+)$", term_pattern(&TIME))
}

/// A regular expression of [`parse_bytes`].
pub fn size_pattern() -> String {
    format!("^(0|{})$", term_pattern(&SIZE))
}

/// A regular expression of [`bits_per_s`].
pub fn rate_pattern() -> String {
    format!("^{}$", term_pattern(&RATE))
}

/// A regular expression of shares and other percentages.
pub fn percent_pattern() -> String {
    format!("^{NUMBER} *%$")
}

/// A regular expression of numbers; those of JSON Schema have no inline flags.
const NUMBER: &str = "[0-9]+(\\.[0-9]+)?";

fn term_pattern(units: &Units) -> String {
    let any_case = |letter: char| {
        format!(
            "[{}{}]",
            letter.to_ascii_uppercase(),
            letter.to_ascii_lowercase()
        )
    };
    let unit = |(name, _): &(&str, u64)| name.chars().map(any_case).collect::<String>();
    let units: Vec<String> = units.iter().map(unit).collect();
    format!("{NUMBER} *({})", units.join("|"))
}

/// A number with a unit that has no smaller one, such as `1.5bdp`.
pub fn parse_multiple(text: &str, unit: &str) -> Option<f64> {
    let (number, after) = Number::leading_number(text)?;
    let found = after.trim_start_matches(' ');
    let value = number.digits as f64 / 10f64.powi(number.places as i32);
    found.eq_ignore_ascii_case(unit).then_some(value)
}

/// Writes a time in the form of [`parse_duration`]; the part below 1 µs is dropped.
pub fn duration_text(duration: Duration) -> String {
    let mut left = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    if left == 0 {
        return "0".to_owned();
    }
    let mut text = String::new();
    for (unit, ps) in TIME {
        let us = ps / 1_000_000;
        if us > 0 && left >= us {
            text.push_str(&format!("{}{unit}", left / us));
            left %= us;
        }
    }
    text
}

/// Writes a size in the form of [`parse_bytes`], in the largest binary unit that is exact.
pub fn size_text(bytes: u64) -> String {
    if bytes == 0 {
        return "0".to_owned();
    }
    let exact = SIZE.iter().filter(|(name, _)| name.len() != 2);
    for (unit, scale) in exact {
        if bytes.is_multiple_of(*scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    format!("{bytes}B")
}

/// Writes a rate in the form of [`bits_per_s`], in the largest unit that is exact.
pub fn rate_text(bits_per_s: u64) -> String {
    let unit = RATE
        .iter()
        .find(|(_, scale)| bits_per_s != 0 && bits_per_s.is_multiple_of(*scale));
    let (unit, scale) = unit.copied().unwrap_or(("bit", 1));
    format!("{}{unit}", bits_per_s / scale)
}

/// Largest number of decimal places of a share in per cent.
const SHARE_PLACES: usize = 6;
/// 100 % in units of the last decimal place.
const SHARE_WHOLE: u64 = 100_000_000;

/// A share above zero, such as `0.01%`, times 2^32, rounded; `100%` is 2^32.
pub fn parse_share(text: &str) -> Option<u64> {
    let (number, after) = Number::leading_number(text)?;
    if after.trim_start_matches(' ') != "%" || number.places as usize > SHARE_PLACES {
        return None;
    }
    let share = number.exact_product(SHARE_WHOLE / 100)?;
    if share == 0 || share > SHARE_WHOLE.into() {
        return None;
    }
    let scaled = share << 32;
    let half = u128::from(SHARE_WHOLE / 2);
    let rounded = (scaled + half) / u128::from(SHARE_WHOLE);
    u64::try_from(rounded).ok()
}

/// Writes a share times 2^32 in the form of [`parse_share`].
pub fn share_text(of_2_32: u64) -> String {
    let units = (u128::from(of_2_32) * u128::from(SHARE_WHOLE) + (1 << 31)) >> 32;
    let whole = units / u128::from(SHARE_WHOLE / 100);
    let places = format!("{:06}", units % u128::from(SHARE_WHOLE / 100));
    let places = places.trim_end_matches('0');
    if places.is_empty() {
        format!("{whole}%")
    } else {
        format!("{whole}.{places}%")
    }
}

/// Longest name of a congestion control (`TCP_CA_NAME_MAX` less the closing NUL, linux/tcp.h).
const CONGESTION_CONTROL_MAX: usize = 15;

/// Whether the kernel could know a congestion control by this name; [`CONGESTION_CONTROL`] has the
/// rule.
pub fn is_congestion_control(name: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    (1..=CONGESTION_CONTROL_MAX).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with('-')
}

/// The rule of [`is_congestion_control`], for messages.
pub const CONGESTION_CONTROL: &str =
    "the name of a congestion control (1 to 15 of a-z, 0-9, _ and -)";

/// A regular expression of [`is_congestion_control`].
pub fn congestion_control_pattern() -> String {
    format!("^[a-z0-9_][a-z0-9_-]{{0,{}}}$", CONGESTION_CONTROL_MAX - 1)
}

/// A decimal number: an integer, and its decimal places.
#[derive(Clone, Copy)]
struct Number {
    digits: u128,
    places: u32,
}

impl Number {
    /// The number at the start of a text, and the rest.
    fn leading_number(text: &str) -> Option<(Self, &str)> {
        let digits = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_digit());
            end.unwrap_or(text.len())
        };
        let (whole, after) = text.split_at(digits(text));
        let (places, after) = match after.strip_prefix('.') {
            Some(fraction) => fraction.split_at(digits(fraction)),
            None => ("0", after),
        };
        if whole.is_empty() || places.is_empty() || places.len() > PLACES {
            return None;
        }
        let whole: u64 = whole.parse().ok()?;
        let places = places.trim_end_matches('0');
        let length = places.len() as u32;
        let fraction: u128 = if places.is_empty() {
            0
        } else {
            places.parse().ok()?
        };
        let number = Self {
            digits: u128::from(whole) * 10u128.pow(length) + fraction,
            places: length,
        };
        Some((number, after))
    }

    /// The number times a scale, if that is a whole number.
    fn exact_product(self, scale: u64) -> Option<u128> {
        let product = self.digits.checked_mul(scale.into())?;
        let divisor = 10u128.pow(self.places);
        product.is_multiple_of(divisor).then(|| product / divisor)
    }

    /// The number times a scale, rounded.
    fn rounded_product(self, scale: u64) -> Option<u64> {
        let product = self.digits.checked_mul(scale.into())?;
        let divisor = 10u128.pow(self.places);
        u64::try_from((product + divisor / 2) / divisor).ok()
    }
}

/// A number with a unit, the unit's factor, and the rest.
fn parse_term<'t>(text: &'t str, units: &Units) -> Option<(Number, u64, &'t str)> {
    let (number, after) = Number::leading_number(text)?;
    let after = after.trim_start_matches(' ');
    let end = after.find(|c: char| !c.is_ascii_alphabetic());
    let (unit, after) = after.split_at(end.unwrap_or(after.len()));
    let known = units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    Some((number, known.1, after))
}

fn parse_rounded(text: &str, units: &Units) -> Option<u64> {
    match parse_term(text, units)? {
        (number, scale, "") => number.rounded_product(scale),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, us) in [
            ("0", 0),
            ("0ms", 0),
            ("10ms", 10_000),
            ("250us", 250),
            ("90s", 90_000_000),
            ("30m", 1_800_000_000),
            ("1h30m", 5_400_000_000),
            ("7d", 604_800_000_000),
            ("1.5s", 1_500_000),
            ("0.3 ms", 300),
            ("1S", 1_000_000),
            ("2000ns", 2),
        ] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_micros(us)),
                "{text}"
            );
        }
        for text in [
            "",
            "1",
            "s",
            "1x",
            "-1s",
            "1m1h",
            "1s1s",
            " 1s",
            "1s ",
            "00x",
            "1.5h30m",
            "1h1.5m",
            "1.s",
            ".5s",
            "1e3ms",
            "1.0.0s",
            "1h ",
            "1h x",
            "0.5us",
            "1ns",
            "99999999999999999999s",
            "99999999999999999d",
            "0.0000000000001s",
            "0h0h",
        ] {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
        assert_eq!(time_ps("0.5ns"), Some(500));
        assert_eq!(time_ps("0.0001ns"), None);
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("0", 0),
            ("512B", 512),
            ("128KiB", 131_072),
            ("128kib", 131_072),
            ("4MiB", 4_194_304),
            ("1kB", 1000),
            ("1.5 MB", 1_500_000),
            ("2gb", 2_000_000_000),
            ("0.3kib", 307),
        ] {
            assert_eq!(parse_bytes(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "1",
            "KiB",
            "-1B",
            "1 kilobyte",
            "1mbit",
            "99999999999999GiB",
            "1B1B",
        ] {
            assert_eq!(parse_bytes(text), None, "{text:?}");
        }
    }

    #[test]
    fn rates() {
        for (text, expected) in [
            ("100mbit", 100_000_000),
            ("8bit", 8),
            ("1Mbit", 1_000_000),
            ("2.5 Gbit", 2_500_000_000),
        ] {
            assert_eq!(bits_per_s(text), Some(expected), "{text}");
        }
        for text in ["", "1", "0", "200Mbps", "-1bit", "99999999999gbit", "1MB"] {
            assert_eq!(bits_per_s(text), None, "{text:?}");
        }
        for bits in [0, 8, 1_000, 2_500_000_000, 1_000_001] {
            assert_eq!(bits_per_s(&rate_text(bits)), Some(bits));
        }
        assert_eq!(rate_text(2_500_000_000), "2500mbit");
    }

    #[test]
    fn multiples() {
        assert_eq!(parse_multiple("1.5bdp", "bdp"), Some(1.5));
        assert_eq!(parse_multiple("2 BDP", "bdp"), Some(2.0));
        for text in ["", "bdp", "1", "1bdpx", "-1bdp"] {
            assert_eq!(parse_multiple(text, "bdp"), None, "{text:?}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!(parse_share("100%"), Some(1 << 32));
        assert_eq!(parse_share("50 %"), Some(1 << 31));
        assert_eq!(parse_share("0.01%"), Some(429_497)); // 2^32 / 10^4 = 429496.7
        assert_eq!(parse_share("0.000001%"), Some(43));
        for text in [
            "",
            "%",
            "1",
            "0%",
            "0.0%",
            "101%",
            "100.1%",
            "-1%",
            ".5%",
            "1.%",
            "1.5.0%",
            "0.0000001%",
            "1e2%",
        ] {
            assert_eq!(parse_share(text), None, "{text:?}");
        }
        for text in ["100%", "0.01%", "12.5%", "99.99%"] {
            assert_eq!(share_text(parse_share(text).unwrap()), text);
        }
    }

    #[test]
    fn texts_round_trip() {
        for us in [0, 1, 999, 1_000, 61_000_001, 90_061_000_000] {
            let time = Duration::from_micros(us);
            assert_eq!(parse_duration(&duration_text(time)), Some(time));
        }
        for size in [0, 1, 1000, 1024, 1 << 20, (1 << 30) + 1, 3 << 30] {
            assert_eq!(parse_bytes(&size_text(size)), Some(size));
        }
        assert_eq!(duration_text(Duration::from_secs(604_800)), "7d");
        assert_eq!(size_text(131_072), "128KiB");
    }

    #[test]
    fn congestion_controls() {
        for name in ["bbr", "thalweg_rl", "x", "a23456789012345"] {
            assert!(is_congestion_control(name), "{name}");
        }
        for name in [
            "",
            "a234567890123456",
            "b r",
            "../x",
            "Cubic",
            ".",
            "..",
            "é",
            "a/b",
            "-x",
        ] {
            assert!(!is_congestion_control(name), "{name}");
        }
    }
}
