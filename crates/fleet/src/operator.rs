//! What operators do: make buckets, publish policies, look at all agents.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::stream;
use tokio::runtime::Runtime;

use crate::bucket::{BUCKETS, Bucket, Limits};
use crate::client::Member;
use crate::fault::{Fault, Kind};
use crate::keys::SigningKey;
use crate::link::Link;
use crate::names::Name;
use crate::session::statuses;
use crate::settings::{Checked, Settings, SettingsError};
use crate::wire::WireError;
use crate::wire::policy::{Policy, Signed};

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

/// What became of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// It is new.
    New,
    /// It was there with these limits.
    Same,
    /// It was there, and has these limits now.
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
        let checked = settings.checked()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let link = runtime.block_on(first(&checked))?;
        Ok(Self { runtime, link })
    }

    /// Makes a bucket, or gives it these limits.
    ///
    /// # Errors
    /// It is of another version, or the server refuses.
    pub fn make(&mut self, bucket: Bucket, limits: &Limits) -> Result<Made, OperatorError> {
        let Self { runtime, link } = self;
        Ok(runtime.block_on(make(link, bucket, limits))?)
    }

    /// Makes all buckets.
    ///
    /// # Errors
    /// As [`Operator::make`].
    pub fn make_all(&mut self, limits: &Limits) -> Result<Vec<(Bucket, Made)>, OperatorError> {
        let made = |bucket: Bucket| Ok((bucket, self.make(bucket, limits)?));
        BUCKETS.into_iter().map(made).collect()
    }

    /// Signs and publishes a policy with the number after the label's last one; returns the number.
    ///
    /// # Errors
    /// The text is too long, the server refuses, or somebody else was faster.
    pub fn publish(
        &mut self,
        label: &Name,
        text: &str,
        canary_ppm: u32,
        key: &SigningKey,
    ) -> Result<u64, OperatorError> {
        let Self { runtime, link } = self;
        let (last, sequence) = match runtime.block_on(last(link, label))? {
            Some((signed, sequence)) => (signed.unverified().number, sequence),
            None => (0, 0),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let policy = Policy {
            label: label.clone(),
            number: last + 1,
            time_s: now.map_or(0, |now| now.as_secs()),
            canary_ppm,
            text: text.to_owned(),
        };
        let signed = policy.sign(key)?;
        runtime.block_on(put(link, label, &signed, sequence))?;
        Ok(last + 1)
    }

    /// The last policy of a label; its signature is not verified.
    ///
    /// # Errors
    /// The server refuses, or what is there is no policy.
    pub fn policy(&mut self, label: &Name) -> Result<Option<Signed>, OperatorError> {
        let Self { runtime, link } = self;
        let last = runtime.block_on(last(link, label))?;
        Ok(last.map(|(signed, _)| signed))
    }

    /// The statuses of all agents, in order of their names.
    ///
    /// # Errors
    /// The server refuses.
    pub fn statuses(&mut self) -> Result<Vec<Member>, OperatorError> {
        let Self { runtime, link } = self;
        let rows = runtime.block_on(statuses(link))?;
        let member = |(agent, age, status)| Member { agent, age, status };
        Ok(rows.into_iter().map(member).collect())
    }
}

async fn first(checked: &Checked) -> Result<Link, Fault> {
    let mut last = Fault::new(Kind::Unreachable, "no server");
    for server in &checked.servers {
        match Link::connect(checked, server).await {
            Ok(link) => return Ok(link),
            Err(fault) => last = fault,
        }
    }
    Err(last)
}

async fn make(link: &mut Link, bucket: Bucket, limits: &Limits) -> Result<Made, Fault> {
    let config = bucket.config(limits);
    let context = link.context.clone();
    match context.get_stream(bucket.stream()).await {
        Ok(stream) => {
            let found = &stream.cached_info().config;
            bucket.check(found)?;
            let same = |found: &stream::Config| {
                found.max_bytes == config.max_bytes
                    && found.max_age == config.max_age
                    && found.num_replicas == config.num_replicas
            };
            if same(found) {
                return Ok(Made::Same);
            }
            link.run(bucket, context.update_stream(&config)).await?;
            Ok(Made::Changed)
        }
        // That it is not there, or why the server does not say.
        Err(_) => {
            let making = context.create_stream(&config);
            match tokio::time::timeout(Duration::from_secs(20), making).await {
                Ok(Ok(_)) => Ok(Made::New),
                Ok(Err(error)) if matches!(error.kind(), CreateStreamErrorKind::TimedOut) => {
                    Err(slow(bucket))
                }
                Ok(Err(error)) => Err(Fault::bucket(bucket.name(), &error)),
                Err(_) => Err(slow(bucket)),
            }
        }
    }
}

fn slow(bucket: Bucket) -> Fault {
    Fault::new(
        Kind::Slow,
        format_args!("bucket {}: no answer in time", bucket.name()),
    )
}

/// The last policy of a label, and its place in the bucket.
async fn last(link: &mut Link, label: &Name) -> Result<Option<(Signed, u64)>, Fault> {
    let bucket = Bucket::Policy;
    let context = link.context.clone();
    let subject = bucket.subject(label.as_str());
    let stream = link
        .run(bucket, context.get_stream(bucket.stream()))
        .await?;
    bucket.check(&stream.cached_info().config)?;
    let message = match stream.get_last_raw_message_by_subject(&subject).await {
        Ok(message) => message,
        Err(error) if error.kind() == stream::LastRawMessageErrorKind::NoMessageFound => {
            return Ok(None);
        }
        Err(error) => return Err(Fault::bucket(bucket.name(), &error)),
    };
    let signed = Signed::parse(&message.payload).map_err(|error| Fault::wire(&subject, &error))?;
    Ok(Some((signed, message.sequence)))
}

/// Publishes, if the last policy of the label is still this one.
async fn put(link: &mut Link, label: &Name, signed: &Signed, last: u64) -> Result<(), Fault> {
    let bucket = Bucket::Policy;
    let context = link.context.clone();
    let subject = bucket.subject(label.as_str());
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
    link.run(bucket, publishing).await?;
    Ok(())
}
