//! Errors of kernels that are processes.

use crate::KernelKind;

/// Why a kernel could not be found, started or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A process or the system failed, or a signal came; everything has been removed.
    #[error(transparent)]
    Process(#[from] thalweg_process::Error),
    /// The machine or the kernel lacks something.
    #[error("this machine cannot run such a kernel:\n{}", .0.iter().map(|line| format!("  - {line}")).collect::<Vec<_>>().join("\n"))]
    Preconditions(Vec<String>),
    /// The kernel ended too early.
    #[error("{kind} ended unexpectedly ({status}), saying {line:?}{}",
            .remedy.iter().map(|it| format!(": {}; {}", it.why, it.fix)).collect::<String>())]
    Ended {
        /// The kind of the kernel.
        kind: KernelKind,
        /// Exit status of the kernel's process ([`std::process::ExitStatus`]), in words.
        status: String,
        /// The decisive line of its console.
        line: String,
        /// The known remedy.
        remedy: Option<Hint>,
    },
    /// The kernel did not boot, or hung.
    #[error("{what}; its console said:\n{console}")]
    Kernel {
        /// The failure.
        what: String,
        /// The end of its console.
        console: String,
    },
    /// The job inside the kernel failed.
    #[error("in {kind}: {why}")]
    Inside {
        /// The kind of the kernel.
        kind: KernelKind,
        /// The first fault; empty if there is no result either.
        why: String,
    },
    /// The options cannot be met.
    #[error("{0}")]
    Options(String),
}

/// Why something fails on this machine, and what would help.
#[derive(Debug)]
pub struct Hint {
    /// The cause.
    pub why: String,
    /// The remedy.
    pub fix: &'static str,
}

impl Error {
    /// Whether SIGINT or SIGTERM ended it, and nothing failed.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Self::Process(thalweg_process::Error::Interrupted))
    }
}

thalweg_process::constructors!(Error);
