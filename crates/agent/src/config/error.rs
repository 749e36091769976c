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
}

// Not as its source: errors are printed with their sources, and this one prints its first fault
// itself.
impl From<Faults> for ConfigError {
    fn from(faults: Faults) -> Self {
        Self::Invalid(faults)
    }
}
