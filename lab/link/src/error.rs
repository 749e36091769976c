//! Errors of a link.

use std::ffi::OsString;
use std::io;

use crate::trace::TraceError;

/// Why a link could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A process or the system failed, or a signal came.
    #[error(transparent)]
    Process(#[from] thalweg_process::Error),
    /// A file that was named could not be read.
    #[error(transparent)]
    Read(#[from] thalweg_units::file::ReadError),
    /// A trace is not one.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// This machine or user may not have a link.
    #[error("{0}")]
    Missing(String),
    /// A command cannot be started on a link.
    #[error("cannot start {}: {why}", .program.to_string_lossy())]
    Start {
        /// The program.
        program: OsString,
        /// The system's answer.
        why: io::Error,
    },
    /// The command at the far end is not ready.
    #[error("the command at the far end: {0}")]
    Far(String),
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
}

thalweg_process::constructors!(Error);
