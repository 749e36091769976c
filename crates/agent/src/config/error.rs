//! What is wrong with a configuration, and where.

use std::path::PathBuf;

use thalweg_units::file::ReadError;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The text is malformed, or a value is not allowed.
    #[error("{0}")]
    Invalid(Fault),
}

/// One fault in the text of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Dotted name of the key, where the fault is about one.
    pub key: Option<String>,
    /// What stands there.
    pub found: String,
    /// What may stand there.
    pub expected: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}: ", self.file.display(), self.line, self.column)?;
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        write!(f, "found {}, expected {}", self.found, self.expected)
    }
}
