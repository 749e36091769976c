//! Faults of a part of a model.

use std::fmt::Display;

/// A fault of one part of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: found {found}, expected {expected}")]
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
    pub fn new(field: impl Display, found: impl Display, expected: impl Display) -> Self {
        Self {
            field: field.to_string(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }
}
