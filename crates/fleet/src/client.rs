//! The handle of the client's thread.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::fault::{Fault, Kind};
use crate::names::Name;
use crate::session::{Agent, Command, Reported};
use crate::settings::{Settings, SettingsError, Timing};
use crate::shared::{Incoming, Outgoing, Shared, Slot, State};
use crate::wire::{LeftOut, Status, WireError};

/// Questions that wait for the thread.
const QUESTIONS: usize = 4;

/// Why the client cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The client's settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The thread.
    #[error("cannot start the fleet's thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// The client. Nothing of it waits for a server, apart from [`Fleet::request_statuses`]. It ends when it is
/// dropped, and what was not sent by then is not.
pub struct Fleet {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    thread: Option<JoinHandle<()>>,
    pace: Timing,
    agent: Name,
    instance: u64,
}

/// An agent as `fleet status` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Name of the agent.
    pub agent: Name,
    /// Time since its last status, by the server's clock.
    pub age: Duration,
    /// Status of the agent, or why it cannot be read.
    pub status: Result<Status, Fault>,
    /// Comparisons of it that are left out, since a cell is out of bounds.
    pub left_out: Vec<LeftOut>,
}

impl Member {
    /// An agent as it was found in the bucket.
    pub(crate) fn new((agent, age, reported): Reported) -> Self {
        let (status, left_out) = match reported {
            Ok(received) => (Ok(received.status), received.left_out),
            Err(fault) => (Err(fault), Vec::new()),
        };
        Self {
            agent,
            age,
            status,
            left_out,
        }
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Fleet({})", self.agent)
    }
}

impl Fleet {
    /// Starts the thread. Keys and credentials are read before: the agent may give up its
    /// privileges afterwards.
    ///
    /// # Errors
    /// The settings, or the thread. No server is none: the thread goes on trying.
    pub fn start(settings: &Settings) -> Result<Self, StartError> {
        let checked = settings.read_checked()?;
        let shared = Arc::new(Shared::default());
        let (commands, receiver) = mpsc::channel(QUESTIONS);
        let agent = Agent::new(checked, Arc::clone(&shared), receiver);
        let thread = std::thread::Builder::new()
            .name("fleet".to_owned())
            .spawn(move || agent.run_sessions())?;
        Ok(Self {
            shared,
            commands,
            thread: Some(thread),
            pace: settings.pace,
            agent: settings.agent.clone(),
            instance: RandomState::new().hash_one(&settings.agent),
        })
    }

    /// Offers a message. It replaces an older one of its key that was not sent, is sent when its
    /// key's pause is over, and at once otherwise. A status gets this client's instance.
    ///
    /// # Errors
    /// A field is out of bounds, or the message is of another agent.
    pub fn offer_message(&self, outgoing: &Outgoing) -> Result<(), WireError> {
        let (slot, agent, bytes, pause) = match outgoing {
            Outgoing::Priors(priors) => {
                let slot = Slot::Priors(priors.shard);
                (slot, &priors.agent, priors.encode()?, self.pace.priors)
            }
            Outgoing::Status(status) => {
                let own = Status {
                    instance: Some(self.instance),
                    is_shared: self.state().is_shared,
                    ..status.clone()
                };
                let bytes = own.encode()?;
                (Slot::Status, &status.agent, bytes, self.pace.status)
            }
        };
        if *agent != self.agent {
            let text = format!("agent: found {agent}, expected {}", self.agent);
            return Err(WireError::Form(text));
        }
        self.shared.put_message(slot, bytes, pause);
        Ok(())
    }

    /// Takes what has arrived; waits for the first at most so long. Until this is called, no more
    /// is asked of the server than some thirty messages.
    pub fn take_messages(&self, timeout: Duration) -> Vec<Incoming> {
        self.shared.take_messages(timeout)
    }

    /// How the client is.
    pub fn state(&self) -> State {
        self.shared.snapshot()
    }

    /// The statuses of all agents, in order of their names. Waits at most so long.
    ///
    /// # Errors
    /// The fleet is away, or does not answer.
    pub fn request_statuses(&self, timeout: Duration) -> Result<Vec<Member>, Fault> {
        let slow = || Fault::new(Kind::Slow, "the fleet does not answer in time");
        let (answer, answered) = sync_channel(1);
        self.commands
            .try_send(Command::Statuses(answer))
            .map_err(|_| slow())?;
        let rows = answered.recv_timeout(timeout).map_err(|_| slow())??;
        Ok(rows.into_iter().map(Member::new).collect())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.shared.end_session();
        if let Some(thread) = self.thread.take() {
            // If it panicked, that was printed.
            drop(thread.join());
        }
    }
}
