//! What can go wrong in a laboratory run.

use std::io;
use std::path::PathBuf;

use crate::guest::Kind;

/// Why a laboratory run could not be done. A missed expectation is not an
/// error: see [`crate::Outcome::passed`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A scenario file is not a valid scenario.
    #[error(transparent)]
    Scenario(#[from] crate::scenario::ScenarioError),
    /// A mode's name is not known.
    #[error(transparent)]
    Mode(#[from] crate::mode::ModeError),
    /// The machine lacks something that every run needs.
    #[error("this machine cannot run the laboratory:\n{}", .0.iter().map(|line| format!("  - {line}")).collect::<Vec<_>>().join("\n"))]
    Preconditions(Vec<String>),
    /// A file that was named could not be read.
    #[error(transparent)]
    Read(#[from] thalweg_units::file::ReadError),
    /// A process or the system failed, or a signal came; everything has been removed.
    #[error(transparent)]
    Process(#[from] thalweg_process::Error),
    /// The link between two hosts, or before a stack.
    #[error(transparent)]
    Link(#[from] thalweg_link::Error),
    /// A command of iproute2 failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// The loss program could not be loaded or attached.
    #[error("the loss program cannot be {what}: {why}")]
    Loss {
        /// The step that failed.
        what: &'static str,
        /// libbpf's answer.
        why: libbpf_rs::Error,
    },
    /// The round-trip time programs could not be loaded, attached or read.
    #[error("the round-trip time programs cannot be {what}: {why}")]
    Rtt {
        /// The step that failed.
        what: &'static str,
        /// libbpf's answer.
        why: libbpf_rs::Error,
    },
    /// A congestion control cannot be made the default of a namespace.
    #[error("congestion control {name:?} cannot be used: {why}")]
    CongestionControl {
        /// Its name.
        name: String,
        /// The reason and what to do.
        why: String,
    },
    /// The worker that makes flows failed as a whole.
    #[error("the worker that makes flows: {0}")]
    Worker(String),
    /// A server of traffic did not start.
    #[error("the traffic server of mode {mode} did not start: {why}")]
    Server {
        /// The mode that it serves.
        mode: String,
        /// Its own words, or that it was silent.
        why: String,
    },
    /// The agent did not start, or its local interface did not answer.
    #[error("the agent of mode {mode}: {why}")]
    Agent {
        /// The mode that it runs in.
        mode: String,
        /// What went wrong, with the agent's own words where there are any.
        why: String,
    },
    /// A policy could not be put in force, or asked what it did.
    #[error("the policy {name}: {why}")]
    Policy {
        /// Its name in the scenario.
        name: String,
        /// What went wrong, in the command's own words where there are any.
        why: String,
    },
    /// This machine or user may not have it.
    #[error("{0}")]
    Missing(String),
    /// A kernel of its own ended before it was told to.
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
    /// A kernel of its own did not boot, or hung.
    #[error("{what}; its console said:\n{console}")]
    Kernel {
        /// What happened.
        what: String,
        /// The end of what it wrote on its console.
        console: String,
    },
    /// The run in a kernel of its own failed there.
    #[error("in {kind}: {why}")]
    Guest {
        /// What runs it.
        kind: Kind,
        /// The first fault; empty where there is no result either.
        why: String,
    },
    /// Two runs cannot be compared.
    #[error("{0}")]
    Compare(String),
    /// The options contradict each other.
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
        use thalweg_process::Error::Interrupted;
        matches!(
            self,
            Self::Process(Interrupted) | Self::Link(thalweg_link::Error::Process(Interrupted))
        )
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
