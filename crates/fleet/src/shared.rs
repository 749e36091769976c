//! What the agent's threads and the client's have in common. Nobody holds the lock while waiting.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::fault::{Fault, Kind};
use crate::names::Name;
use crate::wire::{Policy, Priors, Shard, Status};

/// A message of this agent. The newest of each key wins.
#[derive(Clone, Debug, PartialEq)]
pub enum Outgoing {
    /// Measurements of one shard.
    Priors(Priors),
    /// Status of the agent.
    Status(Status),
}

/// A message of other agents or of the operator.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// The bucket of priors is another one than before: what was taken of it no longer holds.
    Anew,
    /// Measurements of another agent.
    Priors {
        /// Time since the server took it.
        age: Duration,
        /// The message; its agent and shard are those of its key.
        priors: Priors,
    },
    /// Another agent took back its shard.
    Gone {
        /// The other agent.
        agent: Name,
        /// The shard.
        shard: Shard,
    },
    /// A policy that this agent obeys: signed by a key of its settings, for one of its labels, newer
    /// than the last one.
    Policy(Policy),
}

/// Messages and bytes of one direction, since the start. Bytes are those of the NATS protocol,
/// without TLS, PINGs and all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages.
    pub messages: u64,
    /// Bytes; of those sent payloads may count twice, as in the client library.
    pub bytes: u64,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The server.
    pub server: String,
    /// Time when the connection was made.
    pub since: Instant,
}

/// A fault, and when it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedFault {
    /// The fault.
    pub fault: Fault,
    /// When.
    pub at: Instant,
}

/// How the client is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The connection, once all buckets were found to be good; `None`: the fleet is away.
    pub connected: Option<Connection>,
    /// Connections made.
    pub connections: u64,
    /// Faults by kind.
    pub faults: BTreeMap<Kind, u64>,
    /// The last fault.
    pub last: Option<ReportedFault>,
    /// Why a server refused a message that it has not taken since.
    pub refused: Option<Fault>,
    /// Messages that a server confirmed.
    pub published: u64,
    /// Messages of other agents and policies that were taken.
    pub taken: u64,
    /// Whether another agent has this name and key: it has published a status, and has not been silent
    /// for long since.
    pub is_shared: bool,
    /// When the last look at the buckets ended; `None` also while new buckets were not read.
    pub looked: Option<Instant>,
    /// Traffic sent.
    pub sent: Traffic,
    /// Traffic received.
    pub received: Traffic,
}

/// Key of a message that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Slot {
    Status,
    Priors(Shard),
}

/// A message that waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedMessage {
    pub bytes: Vec<u8>,
    /// Not before this.
    pub due: Instant,
}

/// A key's latest message at the server.
struct Sent {
    at: Instant,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Inner {
    outbox: BTreeMap<Slot, QueuedMessage>,
    sent: BTreeMap<Slot, Sent>,
    /// Why messages were refused that the server has not taken since.
    refused: BTreeMap<Slot, Fault>,
    inbox: VecDeque<Incoming>,
    state: State,
}

impl Inner {
    /// Forgets that a message of this key was refused.
    fn clear_refusal(&mut self, slot: Slot) {
        self.refused.remove(&slot);
        self.update_refused();
    }

    fn update_refused(&mut self) {
        self.state.refused = self.refused.values().next().cloned();
    }
}

/// State that the handle and the thread share.
#[derive(Default)]
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    /// Something is in the inbox.
    arrived: Condvar,
    /// Something is in the outbox, or the inbox was emptied.
    pub changed: Notify,
    /// The handle is gone.
    pub stop: Notify,
    is_stopping: AtomicBool,
}

/// Messages of the inbox beyond which no more are parsed: one may then take a quarter of a megabyte.
pub(crate) const INBOX: usize = 4;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic cannot leave the state half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the thread that the handle is gone.
    pub fn end_session(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.stop.notify_one();
    }

    /// Whether the handle is gone.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Puts a message in the outbox, in place of an older one. One that the server has already is
    /// left out, unless it tells that the agent is alive.
    pub fn put_message(&self, slot: Slot, bytes: Vec<u8>, pause: Duration) {
        let now = Instant::now();
        let mut inner = self.lock();
        let sent = inner.sent.get(&slot);
        if sent.is_some_and(|sent| slot != Slot::Status && sent.bytes == bytes) {
            inner.outbox.remove(&slot);
            inner.clear_refusal(slot);
            return;
        }
        let due = sent.map_or(now, |sent| sent.at + pause);
        inner.outbox.insert(slot, QueuedMessage { bytes, due });
        drop(inner);
        self.changed.notify_one();
    }

    /// The first message that is due, and otherwise when one will be.
    pub fn next_due(&self, now: Instant) -> Result<(Slot, QueuedMessage), Option<Instant>> {
        let inner = self.lock();
        let first = inner
            .outbox
            .iter()
            .min_by_key(|(slot, letter)| (letter.due, **slot));
        match first {
            Some((slot, letter)) if letter.due <= now => Ok((*slot, letter.clone())),
            Some((_, letter)) => Err(Some(letter.due)),
            None => Err(None),
        }
    }

    /// The server has this message. A newer one of the slot stays in the outbox.
    pub fn note_published(&self, slot: Slot, bytes: Vec<u8>, pause: Duration) {
        let at = Instant::now();
        let mut inner = self.lock();
        match inner.outbox.get_mut(&slot) {
            Some(letter) if letter.bytes == bytes => {
                inner.outbox.remove(&slot);
            }
            Some(letter) => letter.due = at + pause,
            None => {}
        }
        inner.sent.insert(slot, Sent { at, bytes });
        inner.state.published += 1;
        inner.clear_refusal(slot);
    }

    /// A message was refused: it is tried again after a while. The state has the fault until then. One
    /// that is no longer wanted is not tried again, and its refusal is none.
    pub fn note_refused(&self, slot: Slot, fault: Fault, pause: Duration) {
        let mut inner = self.lock();
        let Some(letter) = inner.outbox.get_mut(&slot) else {
            return;
        };
        letter.due = Instant::now() + pause;
        inner.refused.insert(slot, fault);
        inner.update_refused();
    }

    /// The buckets are others than before: what was sent is not there, and is sent again.
    pub fn resend_all(&self) {
        let due = Instant::now();
        let mut inner = self.lock();
        for (slot, Sent { bytes, .. }) in std::mem::take(&mut inner.sent) {
            inner
                .outbox
                .entry(slot)
                .or_insert(QueuedMessage { bytes, due });
        }
    }

    /// Hands something over to the agent.
    pub fn deliver_message(&self, incoming: Incoming) {
        let mut inner = self.lock();
        if matches!(incoming, Incoming::Anew) {
            inner.inbox.retain(|it| matches!(it, Incoming::Policy(_)));
            inner.state.looked = None;
        } else {
            inner.state.taken += 1;
        }
        inner.inbox.push_back(incoming);
        drop(inner);
        self.arrived.notify_all();
    }

    /// Whether the agent has still enough to read.
    pub fn is_behind(&self) -> bool {
        self.lock().inbox.len() >= INBOX
    }

    /// Takes all that arrived; waits at most so long for the first.
    pub fn take_messages(&self, timeout: Duration) -> Vec<Incoming> {
        let inner = self.lock();
        let waited = self
            .arrived
            .wait_timeout_while(inner, timeout, |inner| inner.inbox.is_empty());
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let taken = std::mem::take(&mut inner.inbox).into();
        drop(inner);
        self.changed.notify_one();
        taken
    }

    /// Counts a fault.
    pub fn count_fault(&self, fault: Fault) {
        let mut inner = self.lock();
        *inner.state.faults.entry(fault.kind).or_default() += 1;
        let at = Instant::now();
        inner.state.last = Some(ReportedFault { fault, at });
    }

    /// Changes the state.
    pub fn update_state(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock().state);
    }

    /// A copy of the state.
    pub fn snapshot(&self) -> State {
        self.lock().state.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_stands_until_the_server_takes_a_message_of_that_key() {
        let (shared, pause) = (Shared::default(), Duration::ZERO);
        let [first, second] = [1, 2].map(|number| {
            let shard = Shard::new(number).expect("one of 16");
            Slot::Priors(shard)
        });
        let full = || Fault::new(Kind::Full, "bucket thalweg-priors: maximum bytes exceeded");
        let refused = || shared.snapshot().refused;
        let taken = |slot, bytes: &[u8]| {
            shared.put_message(slot, bytes.to_vec(), pause);
            shared.note_published(slot, bytes.to_vec(), pause);
        };
        taken(first, b"a");
        shared.put_message(first, b"b".to_vec(), pause);
        shared.note_refused(first, full(), pause);
        assert_eq!(refused(), Some(full()));
        // Others are taken, which says nothing of this one.
        taken(second, b"c");
        taken(Slot::Status, b"d");
        assert_eq!(refused(), Some(full()));
        taken(first, b"b");
        assert_eq!(refused(), None);
        // The server has already what is wanted now.
        shared.put_message(first, b"e".to_vec(), pause);
        shared.note_refused(first, full(), pause);
        shared.put_message(first, b"b".to_vec(), pause);
        assert_eq!(refused(), None);
        // That was so before the refusal came.
        shared.note_refused(first, full(), pause);
        assert_eq!(refused(), None);
    }
}
