//! Faults of a part of a model.

use std::fmt;

/// A fault of one part of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Name of the part.
    pub field: String,
    /// The value found.
    pub found: String,
    /// The values accepted.
    pub expected: String,
}

impl Fault {
    /// A fault from values that can be displayed.
    pub fn new(
        field: impl fmt::Display,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Self {
            field: field.to_string(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            found,
            expected,
        } = self;
        write!(f, "{field}: found {found}, expected {expected}")
    }
}

impl std::error::Error for Fault {}
