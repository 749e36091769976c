//! Errors of a laboratory run.

/// Why a laboratory run failed. A missed expectation is not an error: see
/// [`crate::Outcome::has_passed`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A scenario file is not a valid scenario.
    #[error(transparent)]
    Scenario(#[from] thalweg_units::Faults),
    /// A mode's name is unknown.
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
    /// The link between two hosts failed.
    #[error(transparent)]
    Link(#[from] thalweg_link::Error),
    /// A kernel of its own failed.
    #[error(transparent)]
    Guest(thalweg_guest::Error),
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
        /// Name of the congestion control.
        name: String,
        /// The reason and what to do.
        why: String,
    },
    /// The worker failed as a whole.
    #[error("the worker that makes flows: {0}")]
    Worker(String),
    /// A traffic server did not start.
    #[error("the traffic server of mode {mode} did not start: {why}")]
    Server {
        /// Mode of the server.
        mode: String,
        /// Output of the server, or that there was none.
        why: String,
    },
    /// The agent did not start, or its API did not answer.
    #[error("the agent of mode {mode}: {why}")]
    Agent {
        /// Mode of the agent.
        mode: String,
        /// The fault, with the agent's output if there is any.
        why: String,
    },
    /// A policy could not be applied or shown.
    #[error("the policy {name}: {why}")]
    Policy {
        /// Name of the policy in the scenario.
        name: String,
        /// The fault, with the command's output if there is any.
        why: String,
    },
    /// Two runs are not comparable.
    #[error("{0}")]
    Compare(String),
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
}

impl From<thalweg_guest::Error> for Error {
    fn from(error: thalweg_guest::Error) -> Self {
        use thalweg_guest::Error as Guest;
        match error {
            Guest::Process(error) => Self::Process(error),
            Guest::Preconditions(missing) => Self::Preconditions(missing),
            Guest::Options(why) => Self::Options(why),
            other => Self::Guest(other),
        }
    }
}

impl Error {
    /// Whether SIGINT or SIGTERM ended the run, and nothing failed.
    pub fn is_interruption(&self) -> bool {
        use thalweg_process::Error::Interrupted;
        matches!(
            self,
            Self::Process(Interrupted) | Self::Link(thalweg_link::Error::Process(Interrupted))
        )
    }
}

thalweg_process::constructors!(Error);
