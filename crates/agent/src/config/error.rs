//! Why a configuration cannot be used.

use thalweg_units::Faults;
use thalweg_units::file::ReadError;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The text is malformed, or values are not allowed.
    #[error("{}", .0.first("thalweg config check"))]
    Invalid(Faults),
    /// A file that it names cannot be used.
    #[error("{0}")]
    Named(String),
    /// Nor can its table of networks.
    #[error("networks.table: {}", first(.0))]
    Table(ReadError),
}

/// The first fault of a table, and how to see the others.
fn first(error: &ReadError) -> String {
    match error {
        ReadError::Text(Faults(faults)) => match &faults[..] {
            [fault, _, ..] => {
                let others = faults.len() - 1;
                format!("{fault} ({others} more: `thalweg config check`)")
            }
            _ => error.to_string(),
        },
        _ => error.to_string(),
    }
}

// Not as its source: errors are printed with their sources, and this one prints its first fault
// itself.
impl From<Faults> for ConfigError {
    fn from(faults: Faults) -> Self {
        Self::Invalid(faults)
    }
}
