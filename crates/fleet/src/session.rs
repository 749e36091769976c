//! The client's thread: one session after another, each with one server.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use async_nats::Subscriber;
use futures_util::Stream;
use thalweg_units::random::Random;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::bucket::{BUCKETS, Bucket, Key};
use crate::fault::{Fault, Kind};
use crate::link::Link;
use crate::names::Name;
use crate::pull::{Place, Puller, Value};
use crate::settings::Checked;
use crate::shared::{Connection, Incoming, Letter, Shared, Slot, Traffic};
use crate::wire::policy::{Disobeyed, Signed};
use crate::wire::{Priors, Status};

/// A session of this length was a good one: the next attempt comes soon.
const GOOD: Duration = Duration::from_secs(60);
/// The first pause between attempts.
const FIRST: Duration = Duration::from_millis(250);
/// All agents hear of a policy at once, and ask within this time.
const SPREAD: Duration = Duration::from_secs(1);
/// Whoever hears of a policy may be at a server that does not have it yet: it asks again after this,
/// so often.
const LATER: Duration = Duration::from_secs(2);
const ASKS: u32 = 3;
/// An agent that had to connect anew asks as often for a while.
const OFTEN: Duration = Duration::from_secs(6);
/// A refused message is offered again after this.
const AGAIN: Duration = Duration::from_secs(60);

/// What an agent says of itself, as it was found in the bucket.
pub(crate) type Reported = (Name, Duration, Result<Status, Fault>);

/// What the handle asks of the thread.
pub(crate) enum Command {
    Statuses(SyncSender<Result<Vec<Reported>, Fault>>),
}

/// What outlives sessions.
pub(crate) struct Agent {
    checked: Checked,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    priors: Place,
    policy: Place,
    /// Numbers of the policies that were obeyed.
    numbers: BTreeMap<Name, u64>,
    random: Random,
    /// Traffic of earlier connections.
    before: (Traffic, Traffic),
}

impl Agent {
    pub fn new(checked: Checked, shared: Arc<Shared>, commands: mpsc::Receiver<Command>) -> Self {
        Self {
            numbers: checked.settings.policies.clone(),
            priors: Place::new(Bucket::Priors),
            policy: Place::new(Bucket::Policy),
            random: Random::new(RandomState::new().hash_one(&checked.settings.agent)),
            before: Default::default(),
            checked,
            shared,
            commands,
        }
    }

    /// Sessions until the handle is gone. Each has a runtime of its own: what the client library
    /// left behind ends with it.
    pub fn run(mut self) {
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
                    self.shared.fault(Fault::new(Kind::Unreachable, text));
                    // Descriptors or memory may be back later; without a runtime nobody wakes us.
                    std::thread::sleep(pace.unreachable);
                    continue;
                }
            };
            let begun = Instant::now();
            let shared = Arc::clone(&self.shared);
            let ended = runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = shared.stop.notified() => None,
                    fault = self.session(next) => Some(fault),
                }
            });
            shared.state(|state| state.connected = None);
            let Some(fault) = ended else { return };
            let most = match fault.kind {
                Kind::Unreachable | Kind::Slow => pace.unreachable,
                _ => pace.refused,
            };
            shared.fault(fault);
            if begun.elapsed() >= GOOD {
                pause = FIRST;
            }
            next = (next + 1) % count;
            // Agents that lost the same server do not come back together.
            let wait = pause.min(most).mul_f64(0.5 + 0.5 * self.random.fraction());
            pause = (pause * 2).min(pace.refused.max(pace.unreachable));
            if runtime.block_on(self.idle(wait)) {
                return;
            }
        }
    }

    /// Waits; whether the handle is gone.
    async fn idle(&mut self, wait: Duration) -> bool {
        let away = || Fault::new(Kind::Unreachable, "the fleet is away");
        let until = tokio::time::Instant::now() + wait;
        loop {
            tokio::select! {
                biased;
                () = self.shared.stop.notified() => return true,
                () = sleep_until(until) => return false,
                Some(Command::Statuses(answer)) = self.commands.recv() => {
                    drop(answer.try_send(Err(away())));
                }
            }
        }
    }

    /// One session with one server, until something is wrong.
    async fn session(&mut self, server: usize) -> Fault {
        let connecting = Link::connect(&self.checked, &self.checked.servers[server]);
        let mut link = match connecting.await {
            Ok(link) => link,
            Err(fault) => return fault,
        };
        self.shared.state(|state| state.connections += 1);
        let Err(fault) = self.work(&mut link).await;
        self.account(&link);
        let state = self.shared.snapshot();
        self.before = (state.sent, state.received);
        fault
    }

    async fn work(&mut self, link: &mut Link) -> Result<Infallible, Fault> {
        self.open(link).await?;
        let since = Instant::now();
        let server = link.server.clone();
        self.shared
            .state(|state| state.connected = Some(Connection { server, since }));
        let mut bell = self.bell(link).await?;
        let mut pullers = (Puller::new(), Puller::new());
        // At once; later ones at any moment of the time between them.
        let mut look = Instant::now();
        let mut policies = Instant::now();
        let calm = since + self.checked.settings.pace.uneasy;
        let mut asks: u32 = 0;
        loop {
            self.account(link);
            let now = Instant::now();
            if now >= policies {
                self.policies(link, &mut pullers.1).await?;
                policies = match asks {
                    0 if now >= calm => look.max(now) + self.checked.settings.pace.look,
                    0 => now + OFTEN,
                    _ => now + LATER,
                };
                if asks > 0 || now < calm {
                    // Another reader may be at a server that has it.
                    pullers.1 = Puller::new();
                }
                asks = asks.saturating_sub(1);
                continue;
            }
            if now >= look && !self.shared.is_behind() {
                if self.others(link, &mut pullers.0).await? {
                    let pace = self.checked.settings.pace.look;
                    look = now + pace.mul_f64(0.75 + 0.5 * self.random.fraction());
                    policies = policies.min(look);
                    self.shared.state(|state| state.looked = Some(now));
                }
                continue;
            }
            let due = match self.shared.due(now) {
                Ok((slot, letter)) => {
                    self.publish(link, slot, letter).await?;
                    continue;
                }
                Err(due) => due,
            };
            let wake = [
                Some(policies),
                (!self.shared.is_behind()).then_some(look),
                due,
            ];
            let wake = wake.into_iter().flatten().min().unwrap_or(policies);
            tokio::select! {
                fault = link.event() => return Err(fault),
                () = sleep_until(wake.into()) => {}
                () = self.shared.changed.notified() => {}
                rung = ring(&mut bell) => {
                    self.rung(rung)?;
                    let spread = SPREAD.mul_f64(self.random.fraction());
                    policies = policies.min(Instant::now() + spread);
                    asks = ASKS;
                }
                Some(Command::Statuses(answer)) = self.commands.recv() => {
                    let statuses = statuses(link).await;
                    let fault = statuses.as_ref().err().cloned();
                    // The asker may have gone.
                    drop(answer.try_send(statuses));
                    fault.map_or(Ok(()), Err)?;
                }
            }
        }
    }

    /// Checks all buckets.
    async fn open(&mut self, link: &mut Link) -> Result<(), Fault> {
        for bucket in BUCKETS {
            let info = link.open(bucket).await?;
            match bucket {
                Bucket::Priors => {
                    if self.priors.meet(&info) {
                        self.shared.deliver(Incoming::Anew);
                        self.shared.resend();
                    }
                }
                Bucket::Policy => drop(self.policy.meet(&info)),
                Bucket::Status => {}
            }
        }
        Ok(())
    }

    /// Rings when a policy is published.
    async fn bell(&mut self, link: &mut Link) -> Result<Subscriber, Fault> {
        let subject = Bucket::Policy.subject("*");
        let client = link.client.clone();
        link.run(Bucket::Policy, client.subscribe(subject)).await
    }

    /// The bell has rung. Its message is not read: it has no place in the bucket's order.
    fn rung(&self, message: Option<async_nats::Message>) -> Result<(), Fault> {
        let Some(message) = message else {
            return Err(Fault::new(Kind::Unreachable, "the connection was lost"));
        };
        let found = message.payload.len();
        if found > Bucket::Policy.message_bytes() {
            let most = Bucket::Policy.message_bytes();
            let text = format_args!(
                "{}: found {found} bytes, expected at most {most}",
                message.subject
            );
            self.shared.fault(Fault::new(Kind::Size, text));
        }
        Ok(())
    }

    async fn publish(&self, link: &mut Link, slot: Slot, letter: Letter) -> Result<(), Fault> {
        let agent = &self.checked.settings.agent;
        let pace = self.checked.settings.pace;
        let (bucket, key, pause) = match slot {
            Slot::Status => (Bucket::Status, agent.to_string(), pace.status),
            Slot::Priors(shard) => (Bucket::Priors, format!("{agent}.{shard}"), pace.priors),
        };
        let context = link.context.clone();
        let bytes = letter.bytes.clone();
        let publishing = async {
            let sent = context.publish(bucket.subject(&key), bytes.into()).await?;
            sent.await
        };
        match link.run(bucket, publishing).await {
            Ok(_) => {
                self.shared.published(slot, letter.bytes, pause);
                Ok(())
            }
            // Others can still be read, and perhaps the next message passes.
            Err(fault)
                if matches!(
                    fault.kind,
                    Kind::Full | Kind::Size | Kind::Permission | Kind::Server
                ) =>
            {
                self.shared.fault(fault);
                self.shared.refused(slot, AGAIN.min(pause));
                Ok(())
            }
            Err(fault) => Err(fault),
        }
    }

    /// Reads priors of others; whether all were read.
    async fn others(&mut self, link: &mut Link, puller: &mut Puller) -> Result<bool, Fault> {
        if !self.checked.settings.take {
            return Ok(true);
        }
        let values = puller.next(link, &mut self.priors).await?;
        let all = values.is_empty();
        for value in values {
            match self.prior(&value) {
                Ok(Some(incoming)) => self.shared.deliver(incoming),
                Ok(None) => {}
                Err(fault) => self.shared.fault(fault),
            }
        }
        Ok(all)
    }

    fn prior(&self, value: &Value) -> Result<Option<Incoming>, Fault> {
        let subject = value.message.subject.as_str();
        let Key::Priors(agent, shard) = Key::parse(Bucket::Priors, subject)? else {
            unreachable!("the bucket's keys are of this kind");
        };
        value.check()?;
        if agent == self.checked.settings.agent {
            return Ok(None);
        }
        if value.is_gone() {
            return Ok(Some(Incoming::Gone { agent, shard }));
        }
        let priors = Priors::parse(&value.message.payload);
        let priors = priors.map_err(|error| Fault::wire(subject, &error))?;
        if priors.agent != agent || priors.shard != shard {
            let text = format_args!("{subject}: found {} {}", priors.agent, priors.shard);
            return Err(Fault::new(Kind::Key, text));
        }
        let age = value.age;
        Ok(Some(Incoming::Priors { age, priors }))
    }

    /// Reads all new policies, and hands over the newest of each label.
    async fn policies(&mut self, link: &mut Link, puller: &mut Puller) -> Result<(), Fault> {
        let mut newest = BTreeMap::new();
        loop {
            let values = puller.next(link, &mut self.policy).await?;
            if values.is_empty() {
                break;
            }
            for value in values {
                match self.policy(&value) {
                    Ok(Some(policy)) => {
                        self.numbers.insert(policy.label.clone(), policy.number);
                        newest.insert(policy.label.clone(), policy);
                    }
                    Ok(None) => {}
                    Err(fault) => self.shared.fault(fault),
                }
            }
        }
        for policy in newest.into_values() {
            self.shared.deliver(Incoming::Policy(policy));
        }
        Ok(())
    }

    fn policy(&self, value: &Value) -> Result<Option<crate::wire::Policy>, Fault> {
        let subject = value.message.subject.as_str();
        let settings = &self.checked.settings;
        let Key::Policy(label) = Key::parse(Bucket::Policy, subject)? else {
            unreachable!("the bucket's keys are of this kind");
        };
        if !settings.labels.contains(&label) || value.is_gone() {
            return Ok(None);
        }
        value.check()?;
        let signed = Signed::parse(&value.message.payload);
        let signed = signed.map_err(|error| Fault::wire(subject, &error))?;
        let has = self.numbers.get(&label).copied();
        match signed.obeyed(&label, &settings.keys, has) {
            Ok(policy) => Ok(Some(policy.clone())),
            // What is in the bucket is read again in each connection that begins anew.
            Err(Disobeyed::Old { .. }) => Ok(None),
            Err(Disobeyed::Label { .. }) => Err(Fault::new(
                Kind::Key,
                format_args!("{subject}: of another label"),
            )),
            Err(error) => Err(Fault::new(Kind::Signature, error)),
        }
    }

    /// Takes over the client library's counters.
    fn account(&self, link: &Link) {
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
        self.shared.state(|state| {
            state.sent = sent;
            state.received = received;
        });
    }
}

async fn ring(bell: &mut Subscriber) -> Option<async_nats::Message> {
    std::future::poll_fn(|cx| Pin::new(&mut *bell).poll_next(cx)).await
}

/// The statuses of all agents.
pub(crate) async fn statuses(link: &mut Link) -> Result<Vec<Reported>, Fault> {
    let mut all = BTreeMap::new();
    let mut place = Place::new(Bucket::Status);
    let mut puller = Puller::new();
    loop {
        let values = puller.next(link, &mut place).await?;
        if values.is_empty() {
            break;
        }
        for value in values {
            let subject = value.message.subject.as_str();
            let Ok(Key::Status(agent)) = Key::parse(Bucket::Status, subject) else {
                continue;
            };
            if value.is_gone() {
                all.remove(&agent);
                continue;
            }
            let status = value.check().and_then(|()| {
                let status = Status::parse(&value.message.payload);
                status.map_err(|error| Fault::wire(subject, &error))
            });
            let status = status.and_then(|status| match status.agent == agent {
                true => Ok(status),
                false => {
                    let text = format_args!("{subject}: found {}", status.agent);
                    Err(Fault::new(Kind::Key, text))
                }
            });
            all.insert(agent, (value.age, status));
        }
    }
    let row = |(agent, (age, status))| (agent, age, status);
    Ok(all.into_iter().map(row).collect())
}
