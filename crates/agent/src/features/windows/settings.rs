//! The section `[initial_window]`.

use thalweg_learner::window;
use thalweg_units::reader::whole_number;
use thalweg_units::schema;
use toml::de::DeValue;

use crate::config::reader::{Key, Section, Wrong};

/// `[initial_window]`: connections get an initial window by the records of their networks.
#[derive(Debug, PartialEq, Eq)]
pub struct InitialWindow {
    /// `enabled`: windows are learned and set.
    pub enabled: bool,
    /// `segments`: mask of the windows to choose from ([`window::window_arm`]), the kernel's own
    /// among them.
    pub mask: u16,
}

impl InitialWindow {
    /// Reads the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let words = "Whether it is learned and set, also without `[networks]`.";
        let enabled = section.boolean(("enabled", words), false);
        let words = "The windows to choose from, the kernel's 10 among them.";
        let mask = read_mask(section, ("segments", words));
        Self { enabled, mask }
    }
}

/// Reads windows in segments, as a mask of arms.
fn read_mask(section: &mut Section<'_>, key: Key) -> u16 {
    let (least, most) = (window::LEAST, window::MOST);
    let each = format!("an even number from {least} to {most}");
    let expected =
        format!("a list of even numbers from {least} to {most}, the initial windows in segments");
    let form = schema::list(schema::whole(least..=most), 1..=window::COUNT, true);
    let show = |mask: &u16| {
        let set = (0..window::COUNT).filter(|arm| mask >> arm & 1 != 0);
        let set = set.map(|arm| window::arm_segments(arm).to_string());
        format!("[{}]", set.collect::<Vec<_>>().join(", "))
    };
    let default = window::DEFAULT_MASK;
    let read = section.read(key, &expected, form, default, show, |value| {
        let items = match value.get_ref() {
            DeValue::Array(items) if !items.is_empty() => items,
            _ => return Err(vec![Wrong::new(value, &*expected)]),
        };
        let (mut mask, mut wrong) = (0u16, Vec::new());
        for item in items {
            let segments = whole_number(item.get_ref()).and_then(|it| u32::try_from(it).ok());
            match segments.and_then(window::window_arm) {
                Some(arm) if mask >> arm & 1 != 0 => {
                    wrong.push(Wrong::new(item, "each window once"));
                }
                Some(arm) => mask |= 1 << arm,
                None => wrong.push(Wrong::new(item, &*each)),
            }
        }
        match wrong.is_empty() {
            true => Ok(mask | 1 << window::OWN),
            false => Err(wrong),
        }
    });
    read.value
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::InitialWindow;
    use crate::config::Config;

    fn parse(text: &str) -> Result<Config, String> {
        let text = format!("[initial_window]\n{text}");
        Config::parse(&text, Path::new("t.toml")).map_err(|faults| faults.to_string())
    }

    #[test]
    fn windows_are_a_mask_with_the_kernels_own() {
        for (segments, mask) in [
            ("[10, 16, 24, 32]", 0b1000_1000_1001),
            ("[10]", 1),
            ("[20]", 0b10_0001),
            ("[32, 12]", 0b1000_0000_0011),
        ] {
            let found = parse(&format!("segments = {segments}\nenabled = true")).unwrap();
            let enabled = true;
            let expected = InitialWindow { enabled, mask };
            assert!(found.features.0["windows"].is_same(&expected), "{found:?}");
        }
        assert_eq!(parse("segments = [16, 24, 32]").unwrap(), Config::default());
    }

    #[test]
    fn other_windows_are_refused_with_their_places() {
        let even = "an even number from 10 to 32";
        let list = "a list of even numbers from 10 to 32, the initial windows in segments";
        for (value, place, found, expected) in [
            ("[16, 0]", 17, "the number 0", even),
            ("[10000]", 13, "the number 10000", even),
            ("[11]", 13, "the number 11", even),
            ("[16.0]", 13, "the number 16.0", even),
            ("[16, 16]", 17, "the number 16", "each window once"),
            ("[]", 12, "a list of 0", list),
            ("16", 12, "the number 16", list),
        ] {
            assert_eq!(
                parse(&format!("segments = {value}")).unwrap_err(),
                format!(
                    "t.toml:2:{place}: initial_window.segments: found {found}, expected {expected}"
                )
            );
        }
    }
}
