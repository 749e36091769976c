//! Errors of a stack.

/// Why a command could not be run on a kernel of its own.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A process or the system failed, or a signal came; everything has been removed.
    #[error(transparent)]
    Process(#[from] thalweg_process::Error),
    /// The kernel or a program on it failed.
    #[error(transparent)]
    Guest(thalweg_guest::Error),
    /// The path to a far end failed, or a command cannot be started.
    #[error(transparent)]
    Link(#[from] thalweg_link::Error),
    /// A file that was named could not be read.
    #[error(transparent)]
    Read(#[from] thalweg_units::file::ReadError),
    /// The machine lacks something, or this user may not.
    #[error("{0}")]
    Missing(String),
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
}

impl From<thalweg_guest::Error> for Error {
    fn from(error: thalweg_guest::Error) -> Self {
        use thalweg_guest::Error as Guest;
        match error {
            Guest::Process(error) => Self::Process(error),
            Guest::Preconditions(missing) => Self::Missing(missing.join("; ")),
            Guest::Options(why) => Self::Options(why),
            other => Self::Guest(other),
        }
    }
}

thalweg_process::constructors!(Error);
