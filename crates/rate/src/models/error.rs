//! Why a file is no model.

use std::path::PathBuf;

use thalweg_units::one_line;

use crate::Fault;

/// Why a model file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] thalweg_units::file::ReadError),
    /// Something in it is not as it must be.
    #[error("{}: {}", .file.display(), one_line(&.fault.to_string()))]
    Fault {
        /// The file.
        file: PathBuf,
        /// The fault.
        fault: Fault,
    },
}
