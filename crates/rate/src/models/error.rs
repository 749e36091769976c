//! Errors of model files.

use std::path::PathBuf;

use thalweg_units::one_line;

use crate::Fault;

/// Why a model file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] thalweg_units::file::ReadError),
    /// A part of the file is faulty.
    #[error("{}: {}", .file.display(), one_line(&.fault.to_string()))]
    Fault {
        /// The file.
        file: PathBuf,
        /// The fault.
        fault: Fault,
    },
}
