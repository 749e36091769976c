//! The `[agent]` table: what the agents of a run may do.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::Serialize;
use thalweg_units::reader::{Table, whole_number};
use thalweg_units::schema;
use toml::de::DeValue;

use super::congestion_control;
use crate::units::grammar::CONGESTION_CONTROL;

/// Most congestion controls that an agent can choose among.
const MOST: usize = 16;

/// Initial windows, segments.
const WINDOWS: RangeInclusive<u32> = 10..=32;

/// Features of the agent that a scenario can switch on by their names, which are the names of their
/// sections in the agent's configuration, too.
const FEATURES: [&str; 3] = ["timers", "idle", "buffers"];

/// Settings of the agents' learning.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Learning {
    /// The congestion controls that they choose among; none: all that the kernel offers.
    pub arms: Vec<String>,
    /// The initial windows that they choose among, segments; empty: they leave these alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<u32>,
    /// Whether congestion windows have a learned clamp.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub clamp: bool,
    /// Features of [`FEATURES`] that are on.
    #[serde(flatten)]
    pub features: BTreeMap<&'static str, bool>,
}

impl Learning {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the table; none if there is a fault.
    pub(super) fn from_table(mut table: Table<'_>) -> Option<Self> {
        let arm = |value: &DeValue<'_>| congestion_control(value).ok_or(None);
        let expected = format!("a list of {CONGESTION_CONTROL}");
        let form = schema::congestion_control;
        let arms = table.list("arms", MOST, &expected, arm, form);
        if let Some(again) = (1..arms.len()).find(|place| arms[..*place].contains(&arms[*place])) {
            table.wrong("arms", format!("{:?} again", arms[again]), "each once");
        }
        let window = |value: &DeValue<'_>| {
            let segments = whole_number(value).and_then(|it| u32::try_from(it).ok());
            let fits = |it: &u32| WINDOWS.contains(it) && it.is_multiple_of(2);
            segments.filter(fits).ok_or(None)
        };
        let (least, most) = (WINDOWS.start(), WINDOWS.end());
        let expected = format!("a list of even numbers from {least} to {most}, in segments");
        let form = || schema::whole(WINDOWS);
        let windows = table.list("windows", MOST, &expected, window, form);
        let clamp = table.value("clamp").unwrap_or(false);
        let mut features: BTreeMap<&str, bool> = BTreeMap::new();
        for name in FEATURES {
            if table.value(name).unwrap_or(false) {
                features.insert(name, true);
            }
        }
        table.refuse_unknown_keys();
        table.is_sound().then_some(Self {
            arms,
            windows,
            clamp,
            features,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::scenario::Scenario;

    fn read(agent: &str) -> Result<Vec<String>, String> {
        let text = format!("name = \"x\"\n[agent]\n{agent}\n");
        let scenario = Scenario::parse(&text, Path::new("x.toml"));
        let faults = scenario.map_err(|faults| faults.to_string());
        faults.map(|scenario| scenario.agent.arms)
    }

    #[test]
    fn arms_are_names_each_once() {
        assert_eq!(read("arms = [\"cubic\", \"vegas\"]").unwrap().len(), 2);
        assert!(read("").unwrap().is_empty());
        for (text, words) in [
            ("arms = []", "an empty list"),
            ("arms = [\"cubic\", \"cubic\"]", "\"cubic\" again"),
            ("arms = [\"a b\"]", "3:9"),
            ("arm = [\"cubic\"]", "arms"),
            ("windows = [10, 0]", "3:16"),
            ("windows = [10, 10000]", "even numbers from 10 to 32"),
            ("clamp = 1", "expected a boolean"),
            ("buffers = \"on\"", "expected a boolean"),
            ("windows = [11]", "even numbers from 10 to 32"),
        ] {
            let fault = read(text).unwrap_err();
            assert!(fault.contains(words), "{text}: {fault}");
        }
    }
}
