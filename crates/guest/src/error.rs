//! What can go wrong with a kernel that is a process.

use std::io;
use std::path::PathBuf;

use crate::Kind;

/// Why a kernel could not be had, started, or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A process or the system failed, or a signal came; everything has been removed.
    #[error(transparent)]
    Process(#[from] thalweg_process::Error),
    /// The machine lacks something, or the kernel does.
    #[error("this machine cannot run such a kernel:\n{}", .0.iter().map(|line| format!("  - {line}")).collect::<Vec<_>>().join("\n"))]
    Preconditions(Vec<String>),
    /// The kernel ended before it was told to.
    #[error("{kind} ended unexpectedly ({status}), saying {line:?}{}",
            .remedy.iter().map(|it| format!(": {}; {}", it.why, it.fix)).collect::<String>())]
    Ended {
        /// What ran it.
        kind: Kind,
        /// How, as [`std::process::ExitStatus`] says it.
        status: String,
        /// The line of its console that tells most.
        line: String,
        /// What is behind that, where it is known.
        remedy: Option<Remedy>,
    },
    /// The kernel did not boot, or hung.
    #[error("{what}; its console said:\n{console}")]
    Kernel {
        /// What happened.
        what: String,
        /// The end of what it wrote on its console.
        console: String,
    },
    /// What it was started for failed there.
    #[error("in {kind}: {why}")]
    Inside {
        /// What runs it.
        kind: Kind,
        /// The first fault; empty where there is no result either.
        why: String,
    },
    /// What was asked for cannot be.
    #[error("{0}")]
    Options(String),
}

/// Why something does not work on this machine, and what would help.
#[derive(Debug)]
pub struct Remedy {
    /// What the machine has or lacks.
    pub why: String,
    /// What to do.
    pub fix: &'static str,
}

impl Error {
    /// Whether SIGINT or SIGTERM came, and nothing failed.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Self::Process(thalweg_process::Error::Interrupted))
    }

    pub(crate) fn io(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let failed = thalweg_process::Error::io(what, path);
        move |why| failed(why).into()
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let failed = thalweg_process::Error::system(what);
        move |why| failed(why).into()
    }
}
