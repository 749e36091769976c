//! Durations, sizes, rates and shares as an operator writes them.

use std::time::Duration;

/// Units of durations, largest first, in µs.
const DURATIONS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Units of sizes, largest first, in bytes.
const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Parses `90s`, `1h30m`, `10ms` or `0`: whole numbers with a unit each, larger units first.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut total_us: u64 = 0;
    let mut smallest = u64::MAX;
    while !rest.is_empty() {
        let (number, after) = leading_number(rest)?;
        let letters = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let (_, scale) = *DURATIONS.iter().find(|(name, _)| *name == unit)?;
        if scale >= smallest {
            return None;
        }
        smallest = scale;
        total_us = total_us.checked_add(number.checked_mul(scale)?)?;
        rest = after;
    }
    Some(Duration::from_micros(total_us))
}

/// Writes a duration as [`parse_duration`] reads it; what is below 1 µs is dropped.
pub fn duration_text(duration: Duration) -> String {
    let mut left = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    if left == 0 {
        return "0".to_owned();
    }
    let mut text = String::new();
    for (unit, scale) in DURATIONS {
        if left >= scale {
            text.push_str(&format!("{}{unit}", left / scale));
            left %= scale;
        }
    }
    text
}

/// Parses `128KiB`, `4MiB`, `10MB`, `512B` or `0`, in bytes.
pub fn parse_size(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let (number, unit) = leading_number(text)?;
    let (_, scale) = *SIZES.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(scale)
}

/// Writes a size as [`parse_size`] reads it, in the largest binary unit that is exact.
pub fn size_text(bytes: u64) -> String {
    if bytes == 0 {
        return "0".to_owned();
    }
    let exact = SIZES.iter().filter(|(name, _)| name.len() != 2);
    for (unit, scale) in exact {
        if bytes.is_multiple_of(*scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    format!("{bytes}B")
}

/// Units of rates, largest first, in bits per second: as `tc` has them.
const RATES: [(&str, u64); 4] = [
    ("gbit", 1_000_000_000),
    ("mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

/// Parses `100mbit` or `10gbit`, in bits per second.
pub fn parse_rate(text: &str) -> Option<u64> {
    let (number, unit) = leading_number(text)?;
    let (_, scale) = *RATES.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(scale)
}

/// Writes a rate as [`parse_rate`] reads it, in the largest unit that is exact.
pub fn rate_text(bits_per_s: u64) -> String {
    let unit = RATES
        .iter()
        .find(|(_, scale)| bits_per_s != 0 && bits_per_s.is_multiple_of(*scale));
    let (unit, scale) = unit.copied().unwrap_or(("bit", 1));
    format!("{}{unit}", bits_per_s / scale)
}

/// Decimal places that a share in per cent may have.
const SHARE_PLACES: usize = 6;
/// What 100 % is in units of the last of those places.
const SHARE_WHOLE: u64 = 100_000_000;

/// Parses `0.01%` as so many of 2^32, rounded; `100%` is 2^32.
pub fn parse_share(text: &str) -> Option<u64> {
    let number = text.strip_suffix('%')?;
    let (whole, places) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(places) || places.len() > SHARE_PLACES {
        return None;
    }
    let whole: u64 = whole.parse().ok().filter(|&whole| whole <= 100)?;
    let places: u64 = format!("{places:0<SHARE_PLACES$}").parse().ok()?;
    let share = whole * (SHARE_WHOLE / 100) + places;
    if share == 0 || share > SHARE_WHOLE {
        return None;
    }
    let scaled = u128::from(share) << 32;
    let half = u128::from(SHARE_WHOLE / 2);
    let rounded = (scaled + half) / u128::from(SHARE_WHOLE);
    u64::try_from(rounded).ok()
}

/// Writes so many of 2^32 as [`parse_share`] reads it.
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

/// The decimal number at the start of a text, and what follows it.
fn leading_number(text: &str) -> Option<(u64, &str)> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, us) in [
            ("0", 0),
            ("10ms", 10_000),
            ("250us", 250),
            ("90s", 90_000_000),
            ("30m", 1_800_000_000),
            ("1h30m", 5_400_000_000),
            ("7d", 604_800_000_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_micros(us)),
                "{text}"
            );
        }
        for text in [
            "", "1", "s", "1x", "-1s", "1.5s", "1m1h", "1s1s", " 1s", "1s ", "00x", "1S",
        ] {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
        assert_eq!(parse_duration("99999999999999999999s"), None);
        assert_eq!(parse_duration("99999999999999999d"), None);
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("512B", 512),
            ("128KiB", 131_072),
            ("4MiB", 4_194_304),
            ("1kB", 1000),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "1",
            "KiB",
            "1kib",
            "-1B",
            "1.5MiB",
            "1 MiB",
            "99999999999999GiB",
        ] {
            assert_eq!(parse_size(text), None, "{text:?}");
        }
    }

    #[test]
    fn rates() {
        assert_eq!(parse_rate("100mbit"), Some(100_000_000));
        assert_eq!(parse_rate("8bit"), Some(8));
        for text in [
            "",
            "1",
            "1Mbit",
            "-1bit",
            "1.5gbit",
            "1 mbit",
            "99999999999gbit",
        ] {
            assert_eq!(parse_rate(text), None, "{text:?}");
        }
        for bits in [0, 8, 1_000, 2_500_000_000, 1_000_001] {
            assert_eq!(parse_rate(&rate_text(bits)), Some(bits));
        }
        assert_eq!(rate_text(2_500_000_000), "2500mbit");
    }

    #[test]
    fn shares() {
        assert_eq!(parse_share("100%"), Some(1 << 32));
        assert_eq!(parse_share("50%"), Some(1 << 31));
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
            let duration = Duration::from_micros(us);
            assert_eq!(parse_duration(&duration_text(duration)), Some(duration));
        }
        for bytes in [0, 1, 1000, 1024, 1 << 20, (1 << 30) + 1, 3 << 30] {
            assert_eq!(parse_size(&size_text(bytes)), Some(bytes));
        }
        assert_eq!(duration_text(Duration::from_secs(604_800)), "7d");
        assert_eq!(size_text(131_072), "128KiB");
    }
}
