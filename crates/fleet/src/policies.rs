//! Reading policies: the part of a session that nothing else holds up.
//!
//! While servers come and go, an agent that is back has to have the latest policy soon. A request that was
//! sent to a server without a leader is never answered, and readers may be at servers that lag behind. So
//! the agent asks with a short timeout, again and again, and compares with the bucket's leader.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Subscriber;
use futures_util::StreamExt as _;
use thalweg_units::random::Random;
use tokio::time::{sleep, sleep_until};

use crate::bucket::{Bucket, Key, notify_subject};
use crate::fault::{Fault, Kind};
use crate::link::Link;
use crate::names::Name;
use crate::pull::{Puller, ReadPosition, Scan, Value};
use crate::settings::Settings;
use crate::shared::{Incoming, Shared};
use crate::wire::Policy;
use crate::wire::policy::{PolicyRejection, Signed};

/// Agents hear of a policy at the same moment; each asks at a random time within this span.
const REQUEST_SPREAD: Duration = Duration::from_secs(1);
/// Pause before an agent asks again for a policy that its server may not have yet.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
const RETRIES: u32 = 3;
/// Pause before another reader is asked, where a reader lags behind the bucket's leader.
const READER_PAUSE: Duration = Duration::from_secs(1);
/// Number of other readers that are asked.
const READERS_MAX: u32 = 60;
/// Pause between requests of an agent that had to reconnect.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(6);
/// Usual timeout of an answer.
const SHORT_TIMEOUT: Duration = Duration::from_millis(1500);
/// One request in this many gets the timeout of a slow server; the session ends if that one fails.
const SHORT_ATTEMPTS: u32 = 3;
/// Pause after a refused request.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);

/// State of policies that outlives sessions.
pub(crate) struct Policies {
    shared: Arc<Shared>,
    settings: Settings,
    place: ReadPosition,
    /// Numbers of the policies that were obeyed.
    numbers: BTreeMap<Name, u64>,
    /// Policies of each label that were read and not handed over yet, as [`add_newest`] leaves them.
    newest: BTreeMap<Name, Vec<Policy>>,
    /// Attempts without an answer, one after the other.
    unanswered: u32,
    random: Random,
}

impl Policies {
    pub fn new(settings: &Settings, shared: Arc<Shared>, seed: u64) -> Self {
        Self {
            shared,
            settings: settings.clone(),
            place: ReadPosition::new(Bucket::Policy),
            numbers: settings.policies.clone(),
            newest: BTreeMap::new(),
            unanswered: 0,
            random: Random::new(seed),
        }
    }

    /// Reads policies until something is wrong with the session.
    pub async fn follow_policies(&mut self, link: &Link) -> Fault {
        let since = Instant::now();
        let full = self.settings.pace.timeout;
        loop {
            let is_hasty = !(self.unanswered + 1).is_multiple_of(SHORT_ATTEMPTS);
            let timeout = if is_hasty {
                SHORT_TIMEOUT.min(full)
            } else {
                full
            };
            let Err(fault) = self
                .run_session(&mut link.with_timeout(timeout), since)
                .await;
            if !matches!(fault.kind, Kind::Slow | Kind::Server) {
                return fault;
            }
            self.unanswered += 1;
            if self.unanswered.is_multiple_of(SHORT_ATTEMPTS) {
                return fault;
            }
            let is_refused = fault.kind == Kind::Server;
            self.shared.count_fault(fault);
            if is_refused {
                sleep(REFUSED_PAUSE).await;
            }
        }
    }

    async fn run_session(&mut self, link: &mut Link, since: Instant) -> Result<Infallible, Fault> {
        self.place
            .note_bucket(&link.open_bucket(Bucket::Policy).await?);
        let mut bell = self.subscribe_notifications(link).await?;
        let mut puller = Puller::new();
        let calm = since + self.settings.pace.uneasy;
        let (mut asks, mut others) = (0, READERS_MAX);
        loop {
            self.read_policies(link, &mut puller).await?;
            let now = Instant::now();
            let is_uneasy = asks > 0 || now < calm;
            let next = if is_uneasy && others > 0 && self.leader_has_more(link).await? {
                others -= 1;
                puller = Puller::new();
                now + READER_PAUSE
            } else if asks > 0 {
                asks -= 1;
                now + RETRY_PAUSE
            } else if now < calm {
                now + RECONNECT_INTERVAL
            } else {
                let pace = self.settings.pace.look;
                now + pace.mul_f64(0.75 + 0.5 * self.random.fraction())
            };
            self.unanswered = 0;
            let mut next = next;
            loop {
                tokio::select! {
                    fault = link.wait_for_event() => return Err(fault),
                    () = sleep_until(next.into()) => break,
                    rung = bell.next() => {
                        if rung.is_none() {
                            return Err(Fault::new(Kind::Unreachable, "the connection was lost"));
                        }
                        // A publisher that notifies constantly is heard no more often.
                        if asks == 0 {
                            let spread = REQUEST_SPREAD.mul_f64(self.random.fraction());
                            next = next.min(Instant::now() + spread);
                        }
                        (asks, others) = (RETRIES, READERS_MAX);
                    }
                }
            }
        }
    }

    /// Rings when a policy is published. What it says is not read: it has no place in the bucket's order.
    async fn subscribe_notifications(&mut self, link: &mut Link) -> Result<Subscriber, Fault> {
        let client = link.client.clone();
        link.run_on_bucket(Bucket::Policy, client.subscribe(notify_subject("*")))
            .await
    }

    /// Hands over what was read: also where the session ended meanwhile, as it is not read again.
    pub fn hand_over(&mut self) {
        let newest = std::mem::take(&mut self.newest);
        for policy in newest.into_values().flatten() {
            self.shared.deliver_message(Incoming::Policy(policy));
        }
    }

    /// Reads new policies, and hands over those of each label that count.
    async fn read_policies(&mut self, link: &mut Link, puller: &mut Puller) -> Result<(), Fault> {
        let mut look = Scan::default();
        loop {
            let values = puller.next(link, &mut self.place).await?;
            for value in &values {
                match self.verified_policy(value) {
                    Ok(Some(policy)) => {
                        self.numbers.insert(policy.label.clone(), policy.number);
                        let newest = self.newest.entry(policy.label.clone()).or_default();
                        add_newest(newest, policy, &self.settings.agent);
                    }
                    Ok(None) => {}
                    Err(fault) => self.shared.count_fault(fault),
                }
            }
            if look.is_over(&values, &self.place) {
                self.hand_over();
                return Ok(());
            }
        }
    }

    /// Whether the leader of the bucket has more than was read: a reader is at any of the servers, and one
    /// that was away may not have all of it for half a minute.
    async fn leader_has_more(&mut self, link: &mut Link) -> Result<bool, Fault> {
        let info = link.open_bucket(Bucket::Policy).await?;
        Ok(self.place.note_bucket(&info) || self.place.lacks_messages(&info))
    }

    fn verified_policy(&self, value: &Value) -> Result<Option<Policy>, Fault> {
        let subject = value.message.subject.as_str();
        let settings = &self.settings;
        let Key::Policy(label) = Key::parse(Bucket::Policy, subject)? else {
            unreachable!("the bucket's keys are of this kind");
        };
        if !settings.labels.contains(&label) || value.is_gone() {
            return Ok(None);
        }
        value.check_read()?;
        let signed = Signed::parse(&value.message.payload);
        let signed = signed.map_err(|error| Fault::refused_message(subject, &error))?;
        let has = self.numbers.get(&label).copied();
        match signed.verify_for(&label, &settings.keys, has) {
            Ok(policy) => Ok(Some(policy.clone())),
            // The bucket is read again in each new connection.
            Err(PolicyRejection::Old { .. }) => Ok(None),
            Err(PolicyRejection::Label { .. }) => Err(Fault::new(
                Kind::Key,
                format_args!("{subject}: of another label"),
            )),
            Err(error) => Err(Fault::new(Kind::Signature, error)),
        }
    }
}

/// Adds the newest policy of a label. Of those before it only the last for this agent still counts, and
/// only if the new one is for others: it is to be in force until that is for all.
fn add_newest(newest: &mut Vec<Policy>, policy: Policy, agent: &Name) {
    let is_mine = policy.is_for(agent);
    newest.retain(|before| !is_mine && before.is_for(agent));
    newest.push(policy);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use super::*;
    use crate::wire::policy::{ALL_PPM, canary_turn};

    #[test]
    fn canaries_for_others_leave_the_last_policy_for_this_agent() {
        let (agent, label) = (Name::new("web1").unwrap(), Name::all());
        let others = canary_turn(&agent, &label);
        let kept = |shares: &[u32]| {
            let mut newest = Vec::new();
            for (number, &canary_ppm) in (1..).zip(shares) {
                let policy = Policy {
                    label: label.clone(),
                    number,
                    time_s: 0,
                    canary_ppm,
                    text: String::new(),
                };
                add_newest(&mut newest, policy, &agent);
            }
            let numbers = newest.iter().map(|policy| policy.number);
            numbers.collect::<Vec<u64>>()
        };
        assert_eq!(kept(&[ALL_PPM, ALL_PPM]), [2]);
        assert_eq!(kept(&[ALL_PPM, ALL_PPM, others, others]), [2, 4]);
        assert_eq!(kept(&[ALL_PPM, others, others + 1]), [3]);
        assert_eq!(kept(&[others, others]), [2]);
    }
}
