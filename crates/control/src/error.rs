//! The errors of this crate.

use std::error::Error as StdError;
use std::fmt::{self, Display, Formatter};
use std::io;

use thalweg_units::file::ReadError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error, by what its reader can do about it. `{error:#}` is the whole chain.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This process lacks capabilities, without which it may not load programs.
    #[error("missing privilege: {0}; run as root, or grant the capabilities")]
    MissingPrivilege(String),
    /// The kernel has no congestion controls in BPF.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The kernel or the machine lacks a feature, a mount or a file.
    #[error("{0}")]
    Unsupported(String),
    /// The kernel refuses a program; with the verifier's last words.
    #[error("{0}")]
    Refused(String),
    /// Maps need more memory than there is.
    #[error("{0}")]
    Shortage(String),
    /// Somebody uses it, or has the name.
    #[error("{0}")]
    Busy(String),
    /// Nothing of that name is loaded, or no policy is in force.
    #[error("{0}")]
    NotFound(String),
    /// A pin or an answer of the kernel is damaged, incomplete, or of somebody else.
    #[error("{0}")]
    Damaged(String),
    /// A name, a file or an object cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// An error of the system; the context has the path.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An error number of the kernel.
    #[error(transparent)]
    Errno(#[from] nix::Error),
    /// A file that cannot be read.
    #[error(transparent)]
    File(#[from] ReadError),
    /// An error of libbpf.
    #[error(transparent)]
    Bpf(#[from] libbpf_rs::Error),
    /// Another error.
    #[error(transparent)]
    Other(Box<dyn StdError + Send + Sync>),
    /// Action during which another error came.
    #[error(fmt = write_chain)]
    Context {
        /// Description of the action.
        context: String,
        /// The other error.
        source: Box<Error>,
    },
}

/// This kernel cannot run congestion controls in BPF.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; everything else of Thalweg works without it")]
pub struct Unavailable(pub(crate) String);

impl Unavailable {
    /// The missing part, without further advice.
    pub fn reason(&self) -> &str {
        &self.0
    }
}

fn write_chain(context: &str, source: &Error, f: &mut Formatter<'_>) -> fmt::Result {
    f.write_str(context)?;
    if f.alternate() {
        let mut next: Option<&dyn StdError> = Some(source);
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
    }
    Ok(())
}

impl Error {
    /// The error without what was done.
    pub fn root(&self) -> &Self {
        match self {
            Self::Context { source, .. } => source.root(),
            error => error,
        }
    }

    /// Whether a file is missing.
    pub fn is_absent(&self) -> bool {
        matches!(self.root(), Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// An error of another kind.
    pub(crate) fn other(error: impl StdError + Send + Sync + 'static) -> Self {
        Self::Other(Box::new(error))
    }

    /// Says what was done.
    pub(crate) fn context(self, context: impl Display) -> Self {
        Self::Context {
            context: context.to_string(),
            source: Box::new(self),
        }
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// The outcome of a call of libbpf, where a negative number is an error's.
pub(crate) fn check_outcome(outcome: i32) -> io::Result<i32> {
    match outcome {
        0.. => Ok(outcome),
        _ => Err(io::Error::from_raw_os_error(-outcome)),
    }
}

/// Says what was done when an error came, or nothing was there.
pub(crate) trait Context<T>: Sized {
    /// Says it with the value of a function.
    fn with_context<C: Display>(self, context: impl FnOnce() -> C) -> Result<T>;

    /// Says it.
    fn context(self, context: impl Display) -> Result<T> {
        self.with_context(|| context)
    }
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn with_context<C: Display>(self, context: impl FnOnce() -> C) -> Result<T> {
        self.map_err(|error| error.into().context(context()))
    }
}

/// Nothing where the kernel or a pin must have something.
impl<T> Context<T> for Option<T> {
    fn with_context<C: Display>(self, context: impl FnOnce() -> C) -> Result<T> {
        self.ok_or_else(|| Error::Damaged(context().to_string()))
    }
}

/// Returns an error of a kind.
macro_rules! bail {
    ($kind:ident, $($text:tt)+) => {
        return Err($crate::error::Error::$kind(format!($($text)+)))
    };
}
pub(crate) use bail;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_with_contexts_prints_its_chain_and_has_its_root() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        let system = libbpf_rs::Error::from_raw_os_error(libc::EPERM);
        let other = Error::other(Error::Busy("taken".to_owned()).context("inside"));
        for (root, text) in [
            (Error::from(missing), "entity not found"),
            (Error::from(system), "Operation not permitted (os error 1)"),
            (other, "inside: taken"),
        ] {
            let is_absent = matches!(root, Error::Io(_));
            let error = root.context("opening x").context("starting");
            assert_eq!(error.to_string(), "starting");
            assert_eq!(format!("{error:#}"), format!("starting: opening x: {text}"));
            assert_eq!(error.is_absent(), is_absent);
        }
    }
}
