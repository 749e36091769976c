//! Reasons that a configuration cannot be used.

use thalweg_units::Faults;
use thalweg_units::file::ReadError;

/// Reason that a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The text is malformed, or values are not allowed.
    #[error("{}", .0.first_fault("thalweg config check"))]
    Invalid(Faults),
    /// A file that the configuration names cannot be used.
    #[error("{why}")]
    Named {
        /// The key, and the cause.
        why: String,
        /// Whether the cause may pass by itself.
        may_pass: bool,
    },
    /// The configuration's table of networks cannot be used.
    #[error("networks.table: {}", first(.0))]
    Table(ReadError),
}

impl ConfigError {
    /// Whether the error may pass by itself, as that of a disk, or a table that is not mounted yet.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Read(error) => error.may_pass(),
            Self::Table(error) => error.may_pass() || error.is_absent(),
            Self::Named { may_pass, .. } => *may_pass,
            Self::Invalid(_) => false,
        }
    }
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

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn errors_of_the_system_may_pass_and_wrong_files_do_not() {
        let read = |kind: ErrorKind| ReadError::System {
            file: "f".into(),
            why: kind.into(),
        };
        for (kind, configuration, table) in [
            (ErrorKind::StorageFull, true, true),
            (ErrorKind::NotFound, false, true),
            (ErrorKind::PermissionDenied, false, false),
        ] {
            assert_eq!(
                ConfigError::Read(read(kind)).may_pass(),
                configuration,
                "{kind}"
            );
            assert_eq!(ConfigError::Table(read(kind)).may_pass(), table, "{kind}");
        }
    }
}
