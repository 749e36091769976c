//! Errors between this process, its children and the system.

use std::io;
use std::path::PathBuf;

/// Why an action failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or device could not be used.
    #[error("{what} {path}: {why}", path = .path.display())]
    Io {
        /// The action, as "cannot read".
        what: &'static str,
        /// The file or device.
        path: PathBuf,
        /// The error.
        why: io::Error,
    },
    /// A system call without a file name failed.
    #[error("{what}: {why}")]
    System {
        /// The action.
        what: String,
        /// The error.
        why: io::Error,
    },
    /// A command failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// The command's exit status.
        status: String,
        /// The command's standard error.
        stderr: String,
    },
    /// SIGINT or SIGTERM arrived; everything has been removed.
    #[error("interrupted; everything that was set up has been removed")]
    Interrupted,
}

impl Error {
    /// For `map_err`: the action, and the file.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |why| Self::Io { what, path, why }
    }

    /// For `map_err`: the action.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |why| Self::System { what, why }
    }
}

/// Gives an error type that holds an [`Error`] its constructors for `map_err`, `io` and `system`.
#[macro_export]
macro_rules! constructors {
    ($name:ident) => {
        #[allow(dead_code, reason = "a crate may need one of them only")]
        impl $name {
            pub(crate) fn io(
                what: &'static str,
                path: impl Into<std::path::PathBuf>,
            ) -> impl FnOnce(std::io::Error) -> Self {
                let failed = $crate::Error::io(what, path);
                move |why| failed(why).into()
            }

            pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
                let failed = $crate::Error::system(what);
                move |why| failed(why).into()
            }
        }
    };
}
