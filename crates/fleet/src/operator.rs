//! What operators do: make buckets, publish policies, look at all agents.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::stream;
use futures_util::StreamExt as _;
use tokio::runtime::Runtime;

use crate::bucket::{BUCKETS, Bucket, Key, Limits, WantedLimits, notify_subject};
use crate::client::Member;
use crate::fault::{Fault, Kind};
use crate::keys::{PublicKey, SigningKey};
use crate::link::Link;
use crate::names::Name;
use crate::pull::{Puller, ReadPosition, Scan};
use crate::session::read_statuses;
use crate::settings::{Checked, Settings, SettingsError};
use crate::wire::WireError;
use crate::wire::policy::{Policy, Signed};

/// Pause before another reader is asked, where a reader lags behind the bucket's leader.
const READER_PAUSE: Duration = Duration::from_millis(500);
/// Number of other readers that are asked.
const READERS_MAX: u32 = 60;
/// Bytes of policies that are held at once: those of 64 labels and more.
const POLICIES_BYTES: usize = 32 << 20;
/// The highest number that is believed without a signature.
const NUMBER_TOLD_MAX: u64 = 1 << 40;

/// Why an operator's command failed.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The server.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The policy.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The runtime.
    #[error("no runtime: {0}")]
    Runtime(#[from] std::io::Error),
}

/// Outcome of the set-up of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketChange {
    /// The bucket is new.
    New,
    /// The bucket had these limits already.
    Same,
    /// The bucket existed, and has these limits now.
    Changed,
}

/// A connection of an operator. Its functions wait for the server.
pub struct Operator {
    runtime: Runtime,
    link: Link,
}

impl Operator {
    /// Connects to the first server that lets us in.
    ///
    /// # Errors
    /// The settings, or that of the last server.
    pub fn connect(settings: &Settings) -> Result<Self, OperatorError> {
        let checked = settings.read_checked()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let link = runtime.block_on(first_link(&checked))?;
        Ok(Self { runtime, link })
    }

    /// Makes a bucket, or gives it these limits.
    ///
    /// # Errors
    /// The bucket is of another version, or the server refuses.
    pub fn create_bucket(
        &mut self,
        bucket: Bucket,
        wanted: impl Into<WantedLimits>,
    ) -> Result<BucketChange, OperatorError> {
        let Self { runtime, link } = self;
        Ok(runtime.block_on(create_or_update(link, bucket, &wanted.into()))?)
    }

    /// Makes all buckets.
    ///
    /// # Errors
    /// As [`Operator::create_bucket`].
    pub fn make_all(
        &mut self,
        wanted: impl Into<WantedLimits>,
    ) -> Result<Vec<(Bucket, BucketChange)>, OperatorError> {
        let wanted = wanted.into();
        let made = |bucket: Bucket| Ok((bucket, self.create_bucket(bucket, wanted)?));
        BUCKETS.into_iter().map(made).collect()
    }

    /// Signs and publishes a policy, and rings for it; returns its number. That follows the highest one of
    /// the bucket's history, or that agents say to have: the bucket may have been lost, or an old policy
    /// put back.
    ///
    /// # Errors
    /// The text is too long, the server refuses, or somebody else was faster.
    pub fn publish_policy(
        &mut self,
        label: &Name,
        text: &str,
        canary_ppm: u32,
        key: &SigningKey,
        members: &[Member],
    ) -> Result<u64, OperatorError> {
        let Self { runtime, link } = self;
        let sequence = runtime.block_on(last_sequence(link, label))?;
        let signed =
            runtime.block_on(highest_in_bucket(link, label, &key.public_key(), sequence))?;
        let number = signed.max(highest_reported(members, label)) + 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let policy = Policy {
            label: label.clone(),
            number,
            time_s: now.map_or(0, |now| now.as_secs()),
            canary_ppm,
            text: text.to_owned(),
        };
        let signed = policy.sign(key)?;
        runtime.block_on(publish_after(link, label, &signed, sequence))?;
        Ok(number)
    }

    /// The last policy of each label; signatures are not verified. What is no policy is left out.
    ///
    /// # Errors
    /// The server refuses.
    pub fn last_policies(&mut self) -> Result<BTreeMap<Name, Signed>, OperatorError> {
        let Self { runtime, link } = self;
        Ok(runtime.block_on(newest_policies(link))?)
    }

    /// The statuses of all agents, in order of their names.
    ///
    /// # Errors
    /// The server refuses.
    pub fn statuses(&mut self) -> Result<Vec<Member>, OperatorError> {
        let Self { runtime, link } = self;
        let rows = runtime.block_on(read_statuses(link))?;
        Ok(rows.into_iter().map(Member::new).collect())
    }
}

async fn first_link(checked: &Checked) -> Result<Link, Fault> {
    let mut last = Fault::new(Kind::Unreachable, "no server");
    for server in &checked.servers {
        match Link::connect(checked, server).await {
            Ok(link) => return Ok(link),
            Err(fault) => last = fault,
        }
    }
    Err(last)
}

async fn create_or_update(
    link: &mut Link,
    bucket: Bucket,
    wanted: &WantedLimits,
) -> Result<BucketChange, Fault> {
    let context = link.context.clone();
    match context.get_stream(bucket.stream_name()).await {
        Ok(stream) => {
            let found = &stream.cached_info().config;
            bucket.check_config(found)?;
            let config = bucket.stream_config(&wanted.limits_after(&bucket.stream_limits(found)));
            let same = |found: &stream::Config| {
                found.max_bytes == config.max_bytes
                    && found.max_age == config.max_age
                    && found.num_replicas == config.num_replicas
            };
            if same(found) {
                return Ok(BucketChange::Same);
            }
            link.run_on_bucket(bucket, context.update_stream(&config))
                .await?;
            Ok(BucketChange::Changed)
        }
        // That it is not there, or why the server does not say.
        Err(_) => {
            let config = bucket.stream_config(&wanted.limits_after(&Limits::default()));
            let making = context.create_stream(&config);
            match tokio::time::timeout(Duration::from_secs(20), making).await {
                Ok(Ok(_)) => Ok(BucketChange::New),
                Ok(Err(error)) if matches!(error.kind(), CreateStreamErrorKind::TimedOut) => {
                    Err(slow_bucket_fault(bucket))
                }
                Ok(Err(error)) => Err(Fault::bucket_error(bucket.name(), &error)),
                Err(_) => Err(slow_bucket_fault(bucket)),
            }
        }
    }
}

fn slow_bucket_fault(bucket: Bucket) -> Fault {
    Fault::new(
        Kind::Slow,
        format_args!("bucket {}: no answer in time", bucket.name()),
    )
}

/// The place in the bucket of what is under a label, whatever it is; 0: nothing.
async fn last_sequence(link: &mut Link, label: &Name) -> Result<u64, Fault> {
    let bucket = Bucket::Policy;
    let stream = policy_stream(link).await?;
    let subject = bucket.key_subject(label.as_str());
    match stream.get_last_raw_message_by_subject(&subject).await {
        Ok(message) => Ok(message.sequence),
        Err(error) if error.kind() == stream::LastRawMessageErrorKind::NoMessageFound => Ok(0),
        Err(error) => Err(Fault::bucket_error(bucket.name(), &error)),
    }
}

/// The highest number of a label that an agent says to have. One that lies cannot use up all numbers.
fn highest_reported(members: &[Member], label: &Name) -> u64 {
    let known = members.iter().filter_map(|it| it.status.as_ref().ok());
    let progress = known.flat_map(|status| &status.policies);
    let of_label = progress.filter(|it| it.label == *label);
    let numbers = of_label.map(|it| it.number.min(NUMBER_TOLD_MAX));
    numbers.max().unwrap_or(0)
}

/// The highest number of a label in the bucket, up to this place; 0: none. Those that this key did not
/// sign cannot use up all numbers.
async fn highest_in_bucket(
    link: &mut Link,
    label: &Name,
    key: &PublicKey,
    sequence: u64,
) -> Result<u64, Fault> {
    let mut place = ReadPosition::new(Bucket::Policy);
    let mut puller = Puller::for_subject(Bucket::Policy.key_subject(label.as_str()));
    let mut look = Scan::default();
    let mut highest = 0;
    let mut others = READERS_MAX;
    loop {
        let values = puller.next(link, &mut place).await?;
        for value in &values {
            let Ok(signed) = Signed::parse(&value.message.payload) else {
                continue;
            };
            let number = match signed.verify_for(label, std::slice::from_ref(key), None) {
                Ok(policy) => policy.number,
                // Perhaps of the key before this one; perhaps of nobody.
                Err(_) => signed.unverified().number.min(NUMBER_TOLD_MAX),
            };
            highest = highest.max(number);
        }
        if !look.is_over(&values, &place) {
            continue;
        }
        if place.has_reached(sequence) {
            return Ok(highest);
        }
        // The reader is at a server that lags behind: a number that is there already would be obeyed by
        // nobody.
        if others == 0 {
            return Err(slow_bucket_fault(Bucket::Policy));
        }
        others -= 1;
        tokio::time::sleep(READER_PAUSE).await;
        puller = Puller::for_subject(Bucket::Policy.key_subject(label.as_str()));
        look = Scan::default();
    }
}

/// The last policy of each label, as the bucket's leader has it.
async fn newest_policies(link: &mut Link) -> Result<BTreeMap<Name, Signed>, Fault> {
    let bucket = Bucket::Policy;
    let stream = policy_stream(link).await?;
    let asking = stream.info_with_subjects(bucket.key_subject(">"));
    let mut subjects = link.run_on_bucket(bucket, asking).await?;
    let (mut newest, mut bytes) = (BTreeMap::new(), 0);
    while let Some(found) = subjects.next().await {
        let (subject, _) = found.map_err(|error| Fault::bucket_error(bucket.name(), &error))?;
        let Ok(Key::Policy(label)) = Key::parse(bucket, &subject) else {
            continue;
        };
        let message = link
            .run_on_bucket(bucket, stream.get_last_raw_message_by_subject(&subject))
            .await?;
        bytes += message.payload.len() + subject.len();
        if bytes > POLICIES_BYTES {
            let text = format_args!("policies: found more than {POLICIES_BYTES} bytes");
            return Err(Fault::new(Kind::Size, text));
        }
        if let Ok(signed) = Signed::parse(&message.payload) {
            newest.insert(label, signed);
        }
    }
    Ok(newest)
}

/// The bucket of policies.
async fn policy_stream(link: &mut Link) -> Result<stream::Stream, Fault> {
    let bucket = Bucket::Policy;
    let context = link.context.clone();
    let stream = link
        .run_on_bucket(bucket, context.get_stream(bucket.stream_name()))
        .await?;
    bucket.check_config(&stream.cached_info().config)?;
    Ok(stream)
}

/// Publishes, if the last policy of the label is still this one.
async fn publish_after(
    link: &mut Link,
    label: &Name,
    signed: &Signed,
    last: u64,
) -> Result<(), Fault> {
    let bucket = Bucket::Policy;
    let context = link.context.clone();
    let subject = bucket.key_subject(label.as_str());
    let mut headers = async_nats::HeaderMap::new();
    headers.insert(
        async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
        last.to_string().as_str(),
    );
    let publishing = async {
        let sent = context
            .publish_with_headers(subject, headers, signed.encode().into())
            .await?;
        sent.await
    };
    link.run_on_bucket(bucket, publishing).await?;
    let client = link.client.clone();
    let ringing = async {
        client
            .publish(notify_subject(label.as_str()), "".into())
            .await?;
        client.flush().await?;
        Ok::<_, async_nats::Error>(())
    };
    // The policy is published: an agent that misses the notification finds it within ten minutes.
    drop(link.run_with_timeout(bucket, ringing).await);
    Ok(())
}
