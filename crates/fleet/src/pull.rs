//! Reading a bucket, from where one has stopped.
//!
//! A push consumer would send a heartbeat every few seconds, a watch of the client library as well.
//! This one asks: at rest a look costs two messages. Its place is the sequence number of the last
//! message, so neither a lost consumer nor another server loses anything. Of each key with a history
//! of one only the newest is read.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, pull};
use async_nats::jetstream::stream;
use futures_util::StreamExt as _;

use crate::bucket::Bucket;
use crate::fault::{Fault, Kind};
use crate::link::Link;

/// Messages of one request: all of them are in memory at once.
pub(crate) const BATCH: usize = 16;
/// Bytes of one request, whatever the bucket's messages have: more than the largest one.
const BATCH_BYTES: usize = 1 << 20;
/// Error of a server whose next message alone is larger than the request.
const TOO_LARGE: &str = "Message Size Exceeds MaxBytes";
/// A server removes a consumer that is idle for this long.
const CONSUMER_IDLE: Duration = Duration::from_secs(1200);
/// Messages that a look reads beyond twice those that there were when it began: numbers of servers are
/// estimates, and others write meanwhile.
const EXTRA_MESSAGES: u64 = 1000;
/// Messages are at most so old: clocks of servers differ, too.
const AGE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// A message of a bucket.
pub(crate) struct Value {
    pub message: async_nats::Message,
    /// Time since the server took it, by the server's clock.
    pub age: Duration,
    /// Messages that come after it.
    pending: u64,
    /// Size of a message that was too large to be read.
    unread: Option<usize>,
}

impl Value {
    /// Fails if the message was not read.
    pub fn check_read(&self) -> Result<(), Fault> {
        match self.unread {
            None => Ok(()),
            Some(found) => Err(Fault::new(
                Kind::Size,
                format_args!(
                    "{}: found {found} bytes, expected at most {BATCH_BYTES}",
                    self.message.subject
                ),
            )),
        }
    }

    /// Whether the key was deleted.
    pub fn is_gone(&self) -> bool {
        let headers = self.message.headers.as_ref();
        let operation = headers.and_then(|headers| headers.get("KV-Operation"));
        operation.is_some_and(|it| matches!(it.as_str(), "DEL" | "PURGE"))
    }
}

/// One look at a bucket. It has an end, also where somebody writes faster than one reads.
#[derive(Default)]
pub(crate) struct Scan {
    /// Messages that are still read; unknown before the first.
    left: Option<u64>,
    /// The last message of the bucket when the look began. Later ones are of those that write all the time.
    end: Option<u64>,
}

impl Scan {
    /// A look up to this message.
    pub fn up_to(end: u64) -> Self {
        Self {
            left: None,
            end: Some(end),
        }
    }

    /// Whether the last message to read is known.
    pub fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// Sets the last message to read.
    pub fn end_at(&mut self, end: u64) {
        self.end = Some(end);
    }

    /// Whether all messages up to the end were read.
    pub fn is_whole(&self, place: &ReadPosition) -> bool {
        self.end.is_some_and(|end| place.has_reached(end))
    }

    /// Whether the scan is over with these messages, which end at this place.
    pub fn is_over(&mut self, values: &[Value], place: &ReadPosition) -> bool {
        let Some(first) = values.first() else {
            return true;
        };
        let most = first
            .pending
            .saturating_mul(2)
            .saturating_add(EXTRA_MESSAGES);
        let left = self.left.get_or_insert(most);
        *left = left.saturating_sub(values.len() as u64);
        *left == 0 || self.is_whole(place)
    }
}

/// Where the reading of a bucket has got.
pub(crate) struct ReadPosition {
    bucket: Bucket,
    /// The last message that was read.
    sequence: u64,
    /// When the bucket was made, ns: another one begins anew.
    created: i128,
}

/// A reader at one server.
pub(crate) struct Puller {
    /// Subject to read; empty: all.
    subject: String,
    consumer: Option<Consumer<pull::Config>>,
    /// The server's time minus that of `Instant`s, as ns since 1970 at `made`.
    server_ns: i128,
    made: Instant,
}

impl ReadPosition {
    pub fn new(bucket: Bucket) -> Self {
        Self {
            bucket,
            sequence: 0,
            created: 0,
        }
    }

    /// Takes note of the bucket at a server; whether it is another one than before.
    pub fn note_bucket(&mut self, info: &stream::Info) -> bool {
        let other = self.is_other(info);
        if other {
            self.sequence = 0;
        }
        self.created = info.created.unix_timestamp_nanos();
        other
    }

    /// Whether the bucket is another one than before.
    fn is_other(&self, info: &stream::Info) -> bool {
        let created = info.created.unix_timestamp_nanos();
        let known = self.created != 0;
        known && (self.created != created || info.state.last_sequence < self.sequence)
    }

    /// Whether there is more in the bucket than was read.
    pub fn lacks_messages(&self, info: &stream::Info) -> bool {
        // Of one that was emptied, or whose messages are too old, nothing is left to read.
        info.state.messages > 0 && !self.has_reached(info.state.last_sequence)
    }

    /// Whether all was read up to this message.
    pub fn has_reached(&self, sequence: u64) -> bool {
        self.sequence >= sequence
    }
}

impl Puller {
    pub fn new() -> Self {
        Self::for_subject(String::new())
    }

    /// A reader of a subject alone.
    pub fn for_subject(subject: String) -> Self {
        Self {
            subject,
            consumer: None,
            server_ns: 0,
            made: Instant::now(),
        }
    }

    /// The next messages; none if all were read.
    pub async fn next(
        &mut self,
        link: &mut Link,
        place: &mut ReadPosition,
    ) -> Result<Vec<Value>, Fault> {
        // A consumer may be gone: with the server that had it, or after a long pause. After a message that
        // nats-server 2.9.10 cannot read itself (32 MB) it does not answer for the consumer any more.
        if self.consumer.is_some() {
            match self.request_batch(link, place).await {
                Err(fault) if [Kind::Server, Kind::Bucket, Kind::Slow].contains(&fault.kind) => {}
                asked => return asked,
            }
            if place.is_other(&link.open_bucket(place.bucket).await?) {
                let text = format_args!("bucket {} was made anew", place.bucket.name());
                return Err(Fault::new(Kind::Bucket, text));
            }
        }
        self.create_consumer(link, place, false).await?;
        match self.request_batch(link, place).await {
            // From a time when the bucket had other limits. The next message can be read.
            Err(fault) if fault.text.contains(TOO_LARGE) => {
                self.create_consumer(link, place, true).await?;
                let head = self.request_batch(link, place).await;
                self.consumer = None;
                head
            }
            asked => asked,
        }
    }

    /// Makes a consumer, of the heads of messages alone if those are too large.
    async fn create_consumer(
        &mut self,
        link: &mut Link,
        place: &ReadPosition,
        heads: bool,
    ) -> Result<(), Fault> {
        let config = pull::Config {
            headers_only: heads,
            filter_subject: self.subject.clone(),
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: place.sequence + 1,
            },
            ack_policy: AckPolicy::None,
            inactive_threshold: CONSUMER_IDLE,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let context = link.context.clone();
        let making = context.create_consumer_on_stream(config, place.bucket.stream_name());
        let consumer = link.run_on_bucket(place.bucket, making).await?;
        self.server_ns = consumer.cached_info().created.unix_timestamp_nanos();
        self.made = Instant::now();
        self.consumer = Some(consumer);
        Ok(())
    }

    async fn request_batch(
        &mut self,
        link: &mut Link,
        place: &mut ReadPosition,
    ) -> Result<Vec<Value>, Fault> {
        // Kept if all is well: what it delivered would otherwise be lost. Between accounts an empty
        // message ends the answers of a request, and anybody can put one under a key of its own.
        let consumer = self.consumer.take().expect("it was made");
        let heads = consumer.cached_info().config.headers_only;
        let most = if heads { 1 } else { BATCH };
        let asking = async {
            let batch = consumer.fetch().max_messages(most).max_bytes(BATCH_BYTES);
            let mut batch = batch.messages().await?;
            let mut messages = Vec::new();
            while let Some(message) = batch.next().await {
                match message {
                    Ok(message) => {
                        let is_end = message.payload.is_empty() && message.headers.is_none();
                        messages.push(message);
                        if is_end {
                            return Ok((messages, false));
                        }
                    }
                    // Such as that the bytes are used up: the next request says what it is.
                    Err(_) if !messages.is_empty() => break,
                    Err(error) => return Err(error),
                }
            }
            Ok::<_, async_nats::Error>((messages, true))
        };
        let (messages, is_whole) = link.run_with_timeout(place.bucket, asking).await?;
        let mut values = Vec::with_capacity(messages.len());
        for message in messages {
            let info = message
                .info()
                .map_err(|why| Fault::bucket_error(place.bucket.name(), &*why))?;
            place.sequence = place.sequence.max(info.stream_sequence);
            let age = self.message_age(info.published.unix_timestamp_nanos());
            values.push(Value {
                age,
                pending: info.pending,
                unread: heads.then(|| size_of_headed(&message)),
                message: message.message,
            });
        }
        self.consumer = is_whole.then_some(consumer);
        Ok(values)
    }

    /// The age of a message that the server took at this time of its own clock, ns since 1970.
    fn message_age(&self, published_ns: i128) -> Duration {
        let now = self.server_ns + self.made.elapsed().as_nanos() as i128;
        let age = u64::try_from((now - published_ns).max(0)).unwrap_or(u64::MAX);
        Duration::from_nanos(age).min(AGE_MAX)
    }
}

/// The size of a message of which only the head was sent.
fn size_of_headed(message: &async_nats::Message) -> usize {
    let headers = message.headers.as_ref();
    let size = headers.and_then(|headers| headers.get("Nats-Msg-Size"));
    size.and_then(|size| size.as_str().parse().ok())
        .unwrap_or(0)
}
