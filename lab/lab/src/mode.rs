//! Modes: each decides the congestion control of a run's connections in its own way.

use std::fmt;
use std::str::FromStr;

use crate::units::grammar::is_congestion_control;

/// A mode to measure. Each gets its own pair of namespaces and its own cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// The scenario's default congestion control and no agent.
    Baseline,
    /// One congestion control for every connection and no agent.
    Fixed(String),
    /// Every congestion control that the kernel offers. [`expand_modes`] replaces it by one mode for
    /// each.
    EveryFixed,
    /// A congestion control that the kernel offers, drawn anew for each connection, and no agent.
    Random,
    /// The agent with bpftune's rule.
    Classic,
    /// The agent in its default mode.
    Thalweg,
    /// The agent in its default mode, with half of the host-hours in its control group, and the
    /// report of `thalweg gain` on them at the end.
    Gain,
    /// The agent as in [`Mode::Gain`] with the default as its only arm: what a learner that does
    /// nothing would score.
    Null,
    /// The scenario's default congestion control under one of its policies, without an agent.
    Policy(String),
}

/// An unknown mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found {0:?}", expected = Self::EXPECTED)]
pub struct ModeError(pub String);

impl ModeError {
    pub(crate) const EXPECTED: &str =
        "one of baseline, fixed, fixed:ARM, random, classic, thalweg, gain, null, policy:NAME";
}

impl Mode {
    /// A regular expression of single modes, for the form of scenarios.
    pub(crate) const PATTERN: &str =
        "^(baseline|random|classic|thalweg|gain|null|(fixed|policy):.+)$";

    /// Whether an agent learns in this mode. The others are references.
    pub fn learns(&self) -> bool {
        matches!(
            self,
            Self::Classic | Self::Thalweg | Self::Gain | Self::Null
        )
    }

    /// Whether its agent has a control group, and tells what it gained at the end.
    pub(crate) fn has_control_group(&self) -> bool {
        matches!(self, Self::Gain | Self::Null)
    }

    /// Whether a program of Thalweg is in the kernel in this mode.
    pub(crate) fn uses_bpf(&self) -> bool {
        self.learns() || matches!(self, Self::Policy(_))
    }

    /// The name as part of a file name: "fixed:bbr" becomes "fixed-bbr".
    pub fn file_label(&self) -> String {
        self.to_string().replace(':', "-")
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Baseline => f.write_str("baseline"),
            Self::Fixed(arm) => write!(f, "fixed:{arm}"),
            Self::EveryFixed => f.write_str("fixed"),
            Self::Random => f.write_str("random"),
            Self::Classic => f.write_str("classic"),
            Self::Thalweg => f.write_str("thalweg"),
            Self::Gain => f.write_str("gain"),
            Self::Null => f.write_str("null"),
            Self::Policy(name) => write!(f, "policy:{name}"),
        }
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        match text {
            "baseline" => Ok(Self::Baseline),
            "fixed" => Ok(Self::EveryFixed),
            "random" => Ok(Self::Random),
            "classic" => Ok(Self::Classic),
            "thalweg" => Ok(Self::Thalweg),
            "gain" => Ok(Self::Gain),
            "null" => Ok(Self::Null),
            _ => match text.split_once(':') {
                Some(("fixed", arm)) if is_congestion_control(arm) => {
                    Ok(Self::Fixed(arm.to_owned()))
                }
                Some(("policy", name)) if is_policy_name(name) => Ok(Self::Policy(name.to_owned())),
                _ => Err(ModeError(text.to_owned())),
            },
        }
    }
}

impl serde::Serialize for Mode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Mode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether a scenario may give a policy this name. File names contain it.
pub(crate) fn is_policy_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// The modes to run, each once and in order. [`Mode::EveryFixed`] becomes one mode per available
/// congestion control.
pub fn expand_modes(modes: &[Mode], available: &[String]) -> Vec<Mode> {
    let mut expanded: Vec<Mode> = Vec::new();
    let mut add = |mode: Mode| {
        if !expanded.contains(&mode) {
            expanded.push(mode);
        }
    };
    for mode in modes {
        match mode {
            Mode::EveryFixed => {
                for arm in available {
                    add(Mode::Fixed(arm.clone()));
                }
            }
            other => add(other.clone()),
        }
    }
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in [
            "baseline",
            "fixed",
            "fixed:bbr",
            "random",
            "classic",
            "thalweg",
            "gain",
            "null",
            "policy:clamp-2",
        ] {
            assert_eq!(name.parse::<Mode>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn unknown_names_are_errors() {
        for name in [
            "",
            "Fixed",
            "fixed:",
            "fixed:a b",
            "fixed:sixteen_or_more_",
            "bbr",
            "policy",
            "policy:",
            "policy:a/b",
            "policy:../x",
        ] {
            let error = name.parse::<Mode>().unwrap_err();
            assert!(error.to_string().contains("fixed:ARM"), "{name}");
        }
    }

    #[test]
    fn every_fixed_expands_once() {
        let available = ["reno".to_owned(), "bbr".to_owned()];
        let modes = [
            Mode::Baseline,
            Mode::Fixed("bbr".into()),
            Mode::EveryFixed,
            Mode::Baseline,
        ];
        assert_eq!(
            expand_modes(&modes, &available),
            [
                Mode::Baseline,
                Mode::Fixed("bbr".into()),
                Mode::Fixed("reno".into())
            ]
        );
    }
}
