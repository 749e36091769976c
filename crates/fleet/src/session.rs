//! The client's thread: one session after another, each with one server.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use thalweg_units::random::Random;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::bucket::{BUCKETS, Bucket, Key};
use crate::fault::{Fault, Kind};
use crate::link::Link;
use crate::names::Name;
use crate::policies::Policies;
use crate::pull::{Puller, ReadPosition, Scan, Value};
use crate::settings::{Checked, Settings};
use crate::shared::{Connection, Incoming, QueuedMessage, Shared, Slot, Traffic};
use crate::wire::{Priors, Received, Status};

/// A session of this length was a good one: the next attempt comes soon.
const GOOD: Duration = Duration::from_secs(10);
/// The first pause between attempts.
const FIRST: Duration = Duration::from_millis(250);
/// Longest pause after a server that was there, and did not answer.
const SLOW_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Words that there is no more, which are not believed if the bucket's leader has more: where somebody
/// writes all the time, nats-server 2.9.10 counts wrong, and says so too early.
const EMPTY_ANSWERS_MAX: u32 = 10;
/// A server that does not answer in time is asked again so often before the session is over.
const ASKED_AGAIN: u32 = 2;
/// Bytes of statuses that are held at once; parsed they are three times as large. A server that invents
/// agents gets no further.
const STATUSES_BYTES: usize = 12 << 20;
/// Bytes that a stored agent takes besides its message.
const STATUS_OVERHEAD: usize = 512;
/// Longest wait without anything to do.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(3600);
/// A refused message is offered again after this.
const REFUSED_RETRY: Duration = Duration::from_secs(60);
/// A bucket from which nothing is read holds up statuses for at most this part of the usual wait: the asker
/// waits no longer than that.
const STATUS_WAIT_DIVISOR: u32 = 5;

/// Words of a server whose last message under a key is not the expected one, before its sequence number.
const WRONG_SEQUENCE: &str = "wrong last sequence";

/// An agent, the age of its status, and the status as it was found in the bucket.
pub(crate) type Reported = (Name, Duration, Result<Received, Fault>);

/// Request of the handle to the thread.
pub(crate) enum Command {
    Statuses(SyncSender<Result<Vec<Reported>, Fault>>),
}

/// The thread.
pub(crate) struct Agent {
    checked: Checked,
    shared: Arc<Shared>,
    talk: Exchange,
    policies: Policies,
    random: Random,
}

/// State that outlives sessions, other than that of policies.
struct Exchange {
    shared: Arc<Shared>,
    settings: Settings,
    commands: mpsc::Receiver<Command>,
    priors: ReadPosition,
    /// The last message in the bucket of priors when a session's first look began.
    end: u64,
    /// Messages that wait until the agent has taken those before: parsed they are several times as large.
    unread: VecDeque<Value>,
    random: Random,
    /// Traffic of earlier connections.
    before: (Traffic, Traffic),
    statuses: ReadPosition,
    /// Sequence number of this agent's last status that was confirmed; `None`: it is not known what is there.
    own: Option<u64>,
    /// When another agent was last seen to have written under this one's key.
    other_wrote: Option<Instant>,
}

impl Agent {
    pub fn new(checked: Checked, shared: Arc<Shared>, commands: mpsc::Receiver<Command>) -> Self {
        let seed = RandomState::new().hash_one(&checked.settings.agent);
        let mut random = Random::new(seed);
        Self {
            talk: Exchange {
                shared: Arc::clone(&shared),
                settings: checked.settings.clone(),
                commands,
                priors: ReadPosition::new(Bucket::Priors),
                end: 0,
                unread: VecDeque::new(),
                random: Random::new(random.u64()),
                before: Default::default(),
                statuses: ReadPosition::new(Bucket::Status),
                own: None,
                other_wrote: None,
            },
            policies: Policies::new(&checked.settings, Arc::clone(&shared), random.u64()),
            random,
            checked,
            shared,
        }
    }

    /// Sessions until the handle is gone. Each has a runtime of its own: what the client library
    /// left behind ends with it.
    pub fn run_sessions(mut self) {
        let pace = self.checked.settings.pace;
        let count = self.checked.servers.len();
        let mut next = self.random.below(count as u64) as usize;
        let mut pause = FIRST;
        loop {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(why) => {
                    let text = format_args!("no runtime: {why}");
                    self.shared.count_fault(Fault::new(Kind::Unreachable, text));
                    // Descriptors or memory may be back later; without a runtime nobody wakes us.
                    std::thread::sleep(pace.unreachable);
                    if self.shared.is_stopping() {
                        return;
                    }
                    continue;
                }
            };
            let begun = Instant::now();
            let shared = Arc::clone(&self.shared);
            let ended = runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = shared.stop.notified() => None,
                    fault = self.run_session(next) => Some(fault),
                }
            });
            shared.update_state(|state| state.connected = None);
            let Some(fault) = ended else {
                runtime.shutdown_background();
                return;
            };
            let most = match fault.kind {
                Kind::Unreachable => pace.unreachable,
                Kind::Slow => SLOW_PAUSE_MAX.min(pace.unreachable),
                _ => pace.refused,
            };
            shared.count_fault(fault);
            if begun.elapsed() >= GOOD {
                pause = FIRST;
            }
            next = (next + 1) % count;
            // Agents that lost the same server do not come back together.
            let wait = pause.min(most).mul_f64(0.5 + 0.5 * self.random.fraction());
            pause = (pause * 2).min(pace.refused.max(pace.unreachable));
            let is_gone = runtime.block_on(self.wait_idle(wait));
            // A resolver that does not answer may hold a thread of it.
            runtime.shutdown_background();
            if is_gone {
                return;
            }
        }
    }

    /// Waits; whether the handle is gone.
    async fn wait_idle(&mut self, wait: Duration) -> bool {
        let away = || Fault::new(Kind::Unreachable, "the fleet is away");
        let until = tokio::time::Instant::now() + wait;
        loop {
            tokio::select! {
                biased;
                () = self.shared.stop.notified() => return true,
                () = sleep_until(until) => return false,
                Some(Command::Statuses(answer)) = self.talk.commands.recv() => {
                    drop(answer.try_send(Err(away())));
                }
            }
        }
    }

    /// One session with one server, until something is wrong. Policies do not wait for the rest of it.
    async fn run_session(&mut self, server: usize) -> Fault {
        let connecting = Link::connect(&self.checked, &self.checked.servers[server]);
        let mut link = match connecting.await {
            Ok(link) => link,
            Err(fault) => return fault,
        };
        self.shared.update_state(|state| state.connections += 1);
        let beside = link.with_timeout(self.checked.settings.pace.timeout);
        let fault = tokio::select! {
            fault = self.policies.follow_policies(&beside) => fault,
            Err(fault) = self.talk.run_exchange(&mut link) => fault,
        };
        self.policies.hand_over();
        self.talk.update_traffic(&link);
        let state = self.shared.snapshot();
        self.talk.before = (state.sent, state.received);
        fault
    }
}

impl Exchange {
    async fn run_exchange(&mut self, link: &mut Link) -> Result<Infallible, Fault> {
        self.check_buckets(link).await?;
        let since = Instant::now();
        let server = link.server.clone();
        self.shared
            .update_state(|state| state.connected = Some(Connection { server, since }));
        let mut puller = Puller::new();
        let mut reading = Scan::up_to(self.end);
        // At once; later ones at any moment of the time between them.
        let mut look = Instant::now();
        let mut again = EMPTY_ANSWERS_MAX;
        let mut is_read = false;
        loop {
            self.update_traffic(link);
            let now = Instant::now();
            self.hand_over();
            if now >= look && !is_read && !self.shared.is_behind() {
                is_read = self.read_priors(link, &mut puller, &mut reading).await?;
                self.hand_over();
            }
            if is_read && self.unread.is_empty() {
                is_read = false;
                // After a session's first look it counts as known what others told.
                if again > 0 && self.lacks_priors(link, &reading).await? {
                    again -= 1;
                    reading = Scan::up_to(self.end);
                    puller = Puller::new();
                    continue;
                }
                again = 0;
                reading = Scan::default();
                let pace = self.settings.pace.look;
                look = now + pace.mul_f64(0.75 + 0.5 * self.random.fraction());
                self.shared.update_state(|state| state.looked = Some(now));
            }
            let due = match self.shared.next_due(now) {
                Ok((slot, letter)) => {
                    self.publish_message(link, slot, letter).await?;
                    continue;
                }
                Err(due) => due,
            };
            let look = (!self.shared.is_behind()).then_some(look);
            let wake = [look, due].into_iter().flatten().min();
            let wake = wake.unwrap_or(now + IDLE_WAIT_MAX);
            tokio::select! {
                fault = link.wait_for_event() => return Err(fault),
                () = sleep_until(wake.into()) => {}
                () = self.shared.changed.notified() => {}
                Some(Command::Statuses(answer)) = self.commands.recv() => {
                    let mut beside = link.with_timeout(self.settings.pace.timeout / STATUS_WAIT_DIVISOR);
                    let statuses = match check_others(&mut beside).await {
                        Ok(()) => read_statuses(link).await,
                        Err(fault) => Err(fault),
                    };
                    let fault = statuses.as_ref().err().cloned();
                    // The asker may have gone.
                    drop(answer.try_send(statuses));
                    fault.map_or(Ok(()), Err)?;
                }
            }
        }
    }

    /// Checks all buckets.
    async fn check_buckets(&mut self, link: &mut Link) -> Result<(), Fault> {
        for bucket in BUCKETS {
            let info = link.open_bucket(bucket).await?;
            match bucket {
                Bucket::Priors => {
                    self.end = info.state.last_sequence;
                    if self.priors.note_bucket(&info) {
                        self.unread.clear();
                        self.shared.deliver_message(Incoming::Anew);
                        self.shared.resend_all();
                    }
                }
                Bucket::Status => {
                    if self.statuses.note_bucket(&info) {
                        self.own = None;
                    }
                }
                Bucket::Policy => {}
            }
        }
        Ok(())
    }

    async fn publish_message(
        &mut self,
        link: &mut Link,
        slot: Slot,
        letter: QueuedMessage,
    ) -> Result<(), Fault> {
        let agent = &self.settings.agent;
        let pace = self.settings.pace;
        let (bucket, key, pause) = match slot {
            Slot::Status => (Bucket::Status, agent.to_string(), pace.status),
            Slot::Priors(shard) => (Bucket::Priors, format!("{agent}.{shard}"), pace.priors),
        };
        let context = link.context.clone();
        let bytes = letter.bytes.clone();
        let mut headers = HeaderMap::new();
        // Nobody else writes under this key, unless a machine was cloned. Where this one is cut off before
        // the confirmation, it is unknown what is there.
        let own = match slot {
            Slot::Status => self.own.take(),
            Slot::Priors(_) => None,
        };
        if let Some(sequence) = own {
            headers.insert(
                NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
                sequence.to_string().as_str(),
            );
        }
        let publishing = async {
            let subject = bucket.key_subject(&key);
            let sent = context.publish_with_headers(subject, headers, bytes.into());
            sent.await?.await
        };
        match link.run_on_bucket(bucket, publishing).await {
            Ok(confirmed) => {
                if slot == Slot::Status {
                    self.own = Some(confirmed.sequence);
                }
                // The other one writes at intervals: it is there although it has not written just now.
                if own.is_some() && is_over(self.other_wrote, Instant::now(), pace.namesake) {
                    self.shared.update_state(|state| state.is_shared = false);
                }
                self.shared.note_published(slot, letter.bytes, pause);
                Ok(())
            }
            Err(fault) if fault.text.contains(WRONG_SEQUENCE) => {
                // Unless the bucket was made anew. It is published all the same, in the next round.
                let is_new = self
                    .statuses
                    .note_bucket(&link.open_bucket(Bucket::Status).await?);
                if !is_new && is_of_another(&fault.text, own) && !is_deleted(link, agent).await? {
                    self.other_wrote = Some(Instant::now());
                    self.shared.update_state(|state| state.is_shared = true);
                }
                Ok(())
            }
            // Others can still be read, and perhaps the next message passes.
            Err(fault)
                if matches!(
                    fault.kind,
                    Kind::Full | Kind::Size | Kind::Permission | Kind::Server
                ) =>
            {
                self.shared.count_fault(fault.clone());
                self.shared
                    .note_refused(slot, fault, REFUSED_RETRY.min(pause));
                Ok(())
            }
            Err(fault) => Err(fault),
        }
    }

    /// Reads some priors of others; whether the look is over.
    async fn read_priors(
        &mut self,
        link: &mut Link,
        puller: &mut Puller,
        look: &mut Scan,
    ) -> Result<bool, Fault> {
        if !self.settings.take {
            return Ok(true);
        }
        let values = next(puller, link, &mut self.priors).await?;
        let is_over = look.is_over(&values, &self.priors);
        if !is_over && !look.has_end() {
            look.end_at(link.open_bucket(Bucket::Priors).await?.state.last_sequence);
        }
        self.unread.extend(values);
        Ok(is_over)
    }

    /// Hands over what was read, while the agent keeps up.
    fn hand_over(&mut self) {
        while !self.shared.is_behind()
            && let Some(value) = self.unread.pop_front()
        {
            match self.parse_prior(&value) {
                Ok(Some(incoming)) => self.shared.deliver_message(incoming),
                Ok(None) => {}
                Err(fault) => self.shared.count_fault(fault),
            }
        }
    }

    fn parse_prior(&self, value: &Value) -> Result<Option<Incoming>, Fault> {
        let subject = value.message.subject.as_str();
        let Key::Priors(agent, shard) = Key::parse(Bucket::Priors, subject)? else {
            unreachable!("the bucket's keys are of this kind");
        };
        value.check_read()?;
        if agent == self.settings.agent {
            return Ok(None);
        }
        if value.is_gone() {
            return Ok(Some(Incoming::Gone { agent, shard }));
        }
        let priors = Priors::parse(&value.message.payload);
        let priors = priors.map_err(|error| Fault::refused_message(subject, &error))?;
        if priors.agent != agent || priors.shard != shard {
            let text = format_args!("{subject}: found {} {}", priors.agent, priors.shard);
            return Err(Fault::new(Kind::Key, text));
        }
        let age = value.age;
        Ok(Some(Incoming::Priors { age, priors }))
    }

    /// Whether the leader of the bucket of priors has more than this look was to read.
    async fn lacks_priors(&mut self, link: &mut Link, look: &Scan) -> Result<bool, Fault> {
        if !self.settings.take || look.is_whole(&self.priors) {
            return Ok(false);
        }
        let info = link.open_bucket(Bucket::Priors).await?;
        self.end = info.state.last_sequence;
        Ok(self.priors.lacks_messages(&info))
    }

    /// Takes over the client library's counters.
    fn update_traffic(&self, link: &Link) {
        use std::sync::atomic::Ordering::Relaxed;
        let now = link.client.statistics();
        let (sent, received) = self.before;
        let sum = |before: Traffic, messages: u64, bytes: u64| Traffic {
            messages: before.messages + messages,
            bytes: before.bytes + bytes,
        };
        let sent = sum(
            sent,
            now.out_messages.load(Relaxed),
            now.out_bytes.load(Relaxed),
        );
        let received = sum(
            received,
            now.in_messages.load(Relaxed),
            now.in_bytes.load(Relaxed),
        );
        self.shared.update_state(|state| {
            state.sent = sent;
            state.received = received;
        });
    }
}

/// Whether something that was last seen then has not been there for so long.
fn is_over(seen: Option<Instant>, now: Instant, silence: Duration) -> bool {
    seen.is_none_or(|at| now.saturating_duration_since(at) >= silence)
}

/// Whether another agent wrote the message that a server has in place of the one with sequence number `own`.
/// Messages of others come later: an earlier one is what is left where a server lost its last messages.
fn is_of_another(refusal: &str, own: Option<u64>) -> bool {
    last_sequence(refusal).is_none_or(|last| own.is_none_or(|own| last > own))
}

/// Whether an agent's status was deleted, as operators do.
async fn is_deleted(link: &mut Link, agent: &Name) -> Result<bool, Fault> {
    let mut puller = Puller::for_subject(Bucket::Status.key_subject(agent.as_str()));
    let mut place = ReadPosition::new(Bucket::Status);
    let values = next(&mut puller, link, &mut place).await?;
    Ok(values.last().is_some_and(Value::is_gone))
}

/// The sequence number of the last message under a key, 0 without one, in the words of a server.
fn last_sequence(refusal: &str) -> Option<u64> {
    let (_, said) = refusal.rsplit_once(WRONG_SEQUENCE)?;
    let number = said.strip_prefix(": ")?;
    let end = number.find(|it: char| !it.is_ascii_digit());
    number[..end.unwrap_or(number.len())].parse().ok()
}

/// The next messages. A server that others keep busy is asked again, by the same connection.
async fn next(
    puller: &mut Puller,
    link: &mut Link,
    place: &mut ReadPosition,
) -> Result<Vec<Value>, Fault> {
    for _ in 0..ASKED_AGAIN {
        match puller.next(link, place).await {
            Err(fault) if fault.kind == Kind::Slow => *puller = Puller::new(),
            done => return done,
        }
    }
    puller.next(link, place).await
}

/// Checks the buckets from which [`read_statuses`] reads nothing: a connection outlives a bucket that was
/// deleted, and at rest an agent notices that late.
async fn check_others(link: &mut Link) -> Result<(), Fault> {
    for bucket in [Bucket::Priors, Bucket::Policy] {
        match link.open_bucket(bucket).await {
            // A bucket without a leader for a moment keeps back no statuses.
            Err(fault) if !matches!(fault.kind, Kind::Slow | Kind::Server) => return Err(fault),
            _ => {}
        }
    }
    Ok(())
}

/// The statuses of all agents.
pub(crate) async fn read_statuses(link: &mut Link) -> Result<Vec<Reported>, Fault> {
    let mut all = BTreeMap::new();
    let mut place = ReadPosition::new(Bucket::Status);
    let mut puller = Puller::new();
    let (mut sizes, mut bytes, mut again) = (BTreeMap::new(), 0, EMPTY_ANSWERS_MAX);
    let mut is_over = false;
    let end = link.open_bucket(Bucket::Status).await?.state.last_sequence;
    let mut look = Scan::up_to(end);
    while !is_over {
        let values = next(&mut puller, link, &mut place).await?;
        is_over = look.is_over(&values, &place);
        if values.is_empty() && !look.is_whole(&place) && again > 0 {
            again -= 1;
            is_over = !place.lacks_messages(&link.open_bucket(Bucket::Status).await?);
            puller = Puller::new();
        }
        for value in values {
            let subject = value.message.subject.as_str();
            let Ok(Key::Status(agent)) = Key::parse(Bucket::Status, subject) else {
                continue;
            };
            // An agent that writes again and again counts once.
            let size = value.message.length + STATUS_OVERHEAD;
            bytes += size;
            bytes -= sizes.insert(agent.clone(), size).unwrap_or(0);
            if bytes > STATUSES_BYTES {
                let text = format_args!("statuses: found more than {STATUSES_BYTES} bytes");
                return Err(Fault::new(Kind::Size, text));
            }
            if value.is_gone() {
                all.remove(&agent);
                continue;
            }
            let status = value.check_read().and_then(|()| {
                let status = Status::parse(&value.message.payload);
                status.map_err(|error| Fault::refused_message(subject, &error))
            });
            let status = status.and_then(|received| match received.status.agent == agent {
                true => Ok(received),
                false => {
                    let text = format_args!("{subject}: found {}", received.status.agent);
                    Err(Fault::new(Kind::Key, text))
                }
            });
            all.insert(agent, (value.age, status));
        }
    }
    let row = |(agent, (age, status))| (agent, age, status);
    Ok(all.into_iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namesake_is_there_until_it_has_been_silent() {
        let (at, silence) = (Instant::now(), Duration::from_secs(1500));
        assert!(is_over(None, at, silence));
        assert!(!is_over(Some(at), at, silence));
        assert!(!is_over(Some(at), at + silence / 2, silence));
        assert!(is_over(Some(at), at + silence, silence));
    }

    #[test]
    fn earlier_message_is_of_no_other_agent() {
        let refusal = |last: &str| {
            format!(
                "bucket thalweg-status: wrong last sequence: wrong last sequence: {last} (code 400, error \
                 code 10071)"
            )
        };
        assert!(is_of_another(&refusal("8"), Some(7)));
        assert!(!is_of_another(&refusal("6"), Some(7)));
        assert!(!is_of_another(&refusal("0"), Some(7)));
        // Later servers may leave the number out while another message is on its way.
        assert!(is_of_another("wrong last sequence (code 400)", Some(7)));
    }
}
