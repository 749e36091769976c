//! Sides of a comparison: who chose the CC of a connection.

use strum::{EnumString, IntoStaticStr};

/// Longest name of a CC, bytes; as in the kernel, without the closing NUL.
const NAME_MAX: usize = 15;

/// The name of an arm, padded with NULs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arm([u8; NAME_MAX]);

impl Arm {
    /// The arm of connections whose CC is not in the table.
    pub const UNKNOWN: Self = Self(*b"unknown\0\0\0\0\0\0\0\0");

    /// An arm of this name; `None` if it is none: empty, too long, or with a NUL.
    pub fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; NAME_MAX];
        if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') {
            return None;
        }
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Self(bytes))
    }

    /// Name of the arm.
    pub fn name(&self) -> &str {
        let length = self.0.iter().position(|byte| *byte == 0);
        // Made of text, cut at its end.
        std::str::from_utf8(&self.0[..length.unwrap_or(NAME_MAX)]).unwrap_or_default()
    }
}

impl std::fmt::Debug for Arm {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Origin of the measurements that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Source {
    /// Measurements of this agent.
    Own,
    /// Measurements that other agents reported.
    Fleet,
}

impl Source {
    /// Name of the source, in files and on the command line.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The source of a name.
    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// Who chose the CC of a cluster's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The system, on purpose: the control group; under advice all clusters without a trial. Also
    /// what a rule left alone.
    Control,
    /// The learner, or the rule.
    Treated,
    /// The draw of a trial, under advice.
    Drawn(Arm),
    /// The application, a route, a policy, or the default of another network namespace: it differs
    /// by itself.
    Itself(Arm),
}

impl Side {
    /// The first one in order.
    pub const FIRST: Self = Self::Control;

    /// Form of the side in files, as `control` or `drawn:bbr`.
    pub fn file_text(&self) -> String {
        match self {
            Self::Control => "control".to_owned(),
            Self::Treated => "treated".to_owned(),
            Self::Drawn(arm) => format!("drawn:{}", arm.name()),
            Self::Itself(arm) => format!("itself:{}", arm.name()),
        }
    }

    /// The side of such a text.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None if text == "control" => Some(Self::Control),
            None if text == "treated" => Some(Self::Treated),
            Some(("drawn", arm)) => Arm::new(arm).map(Self::Drawn),
            Some(("itself", arm)) => Arm::new(arm).map(Self::Itself),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_again() {
        let arm = Arm::new("fifteen-letters").unwrap();
        for side in [
            Side::Control,
            Side::Treated,
            Side::Drawn(arm),
            Side::Itself(Arm::UNKNOWN),
        ] {
            assert_eq!(Side::parse(&side.file_text()), Some(side));
        }
        assert_eq!(Side::Drawn(arm).file_text(), "drawn:fifteen-letters");
        let wrong = ["", "Control", "drawn", "drawn:", "other:bbr", "1"];
        for text in wrong.into_iter().chain(["drawn:sixteen-letters-"]) {
            assert_eq!(Side::parse(text), None, "{text}");
        }
        assert_eq!(Arm::new("a\0b"), None);
    }
}
