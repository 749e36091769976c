//! Jobs for the writer thread, which other threads hand to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use anyhow::{Result, anyhow};

use crate::statistics::AgentStatistics;
use crate::store::Store;
use crate::view::Event;

/// Most pending events, some ten MiB; further ones are lost, and counted.
const EVENTS_MAX: u64 = 16_384;

/// A job of the writer thread.
pub(super) enum Job {
    /// Store events.
    Events(Vec<Event>),
    /// Save the records, and report the outcome.
    Save(mpsc::Sender<Result<()>>),
    /// Finish pending work, save, and end.
    End,
}

/// Writer handle: jobs for the writer thread.
pub struct WriterHandle {
    pub(super) jobs: mpsc::Sender<Job>,
    /// Number of pending events.
    pub(super) waiting: AtomicU64,
    pub(super) statistics: Arc<AgentStatistics>,
}

/// State that the writer thread takes over when it starts.
pub struct WriterChannel {
    pub(super) jobs: mpsc::Receiver<Job>,
    pub(super) store: Store,
}

/// The writer handle of a thread that does not run yet, and its state.
pub fn prepare(store: Store, statistics: Arc<AgentStatistics>) -> (WriterHandle, WriterChannel) {
    let (sender, receiver) = mpsc::channel();
    let writer_handle = WriterHandle {
        jobs: sender,
        waiting: AtomicU64::new(0),
        statistics,
    };
    let writer_channel = WriterChannel {
        jobs: receiver,
        store,
    };
    (writer_handle, writer_channel)
}

impl WriterHandle {
    /// Queues events to be stored; never waits. Returns false if too many are pending; then they
    /// are lost.
    pub fn store(&self, events: Vec<Event>) -> bool {
        let count = events.len() as u64;
        let waiting = self.waiting.fetch_add(count, Ordering::Relaxed) + count;
        if waiting <= EVENTS_MAX.max(count) && self.jobs.send(Job::Events(events)).is_ok() {
            return true;
        }
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        self.statistics.lost.fetch_add(count, Ordering::Relaxed);
        false
    }

    /// Saves all host records, and waits for completion.
    pub fn save(&self) -> Result<()> {
        let (reply, answer) = mpsc::channel();
        let ended = || anyhow!("the thread that writes to the store has ended");
        self.jobs.send(Job::Save(reply)).map_err(|_| ended())?;
        answer.recv().map_err(|_| ended())?
    }
}
