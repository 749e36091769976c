//! The buckets (key-value stores of JetStream): names, limits, and what is expected of them.

use std::time::Duration;

use async_nats::jetstream::stream;

use crate::fault::{Fault, Kind};
use crate::names::Name;
use crate::wire::{Shard, policy, priors, status};

/// Description of a bucket, with the version of its format.
const DESCRIPTION: &str = "thalweg fleet, format 1";

/// A bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bucket {
    /// Measurements of agents: key `AGENT.SHARD`.
    Priors,
    /// State of agents: key `AGENT`.
    Status,
    /// Policies: key `LABEL`, with their history.
    Policy,
}

/// All buckets.
pub const BUCKETS: [Bucket; 3] = [Bucket::Priors, Bucket::Status, Bucket::Policy];

/// The subject under which agents hear that a label has a new policy. No bucket has it.
pub(crate) fn notify_subject(label: &str) -> String {
    format!("thalweg.bell.{label}")
}

/// Limits of a server's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the bucket of priors, bytes; the others have a sixteenth.
    pub bytes: u64,
    /// How long priors and statuses of a silent agent are kept.
    pub age: Duration,
    /// Copies in a cluster: 1, 3 or 5.
    pub replicas: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            age: Duration::from_secs(30 * 86_400),
            replicas: 1,
        }
    }
}

/// Limits that an operator wants; what is not said stays, or is as usual in a new bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedLimits {
    /// As [`Limits::bytes`].
    pub bytes: Option<u64>,
    /// As [`Limits::age`].
    pub age: Option<Duration>,
    /// As [`Limits::replicas`].
    pub replicas: Option<u8>,
    /// Copies at least, unless it is said how many.
    pub least_replicas: u8,
}

impl From<&Limits> for WantedLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            bytes: Some(limits.bytes),
            age: Some(limits.age),
            replicas: Some(limits.replicas),
            least_replicas: 1,
        }
    }
}

impl WantedLimits {
    /// The limits that come of those before.
    pub(crate) fn limits_after(&self, before: &Limits) -> Limits {
        let least = before.replicas.max(self.least_replicas);
        Limits {
            bytes: self.bytes.unwrap_or(before.bytes),
            age: self.age.unwrap_or(before.age),
            replicas: self.replicas.unwrap_or(least),
        }
    }
}

impl Bucket {
    /// Name of the bucket.
    pub fn name(self) -> &'static str {
        match self {
            Self::Priors => "thalweg-priors",
            Self::Status => "thalweg-status",
            Self::Policy => "thalweg-policy",
        }
    }

    /// The stream that holds it.
    pub fn stream_name(self) -> String {
        format!("KV_{}", self.name())
    }

    /// The subject of a key.
    pub fn key_subject(self, key: &str) -> String {
        format!("$KV.{}.{key}", self.name())
    }

    /// Largest message, bytes.
    pub fn message_bytes(self) -> usize {
        match self {
            Self::Priors => priors::MAX_BYTES,
            Self::Status => status::MAX_BYTES,
            Self::Policy => policy::MAX_BYTES,
        }
    }

    /// Values kept of a key.
    fn history_length(self) -> i64 {
        match self {
            Self::Priors | Self::Status => 1,
            Self::Policy => 64,
        }
    }

    /// The stream's configuration. Different from buckets by default:
    ///
    /// - No rollup: by a header, an agent could purge what others wrote.
    /// - No direct reads: their answers go to any subject that the asker names, as raw messages, and
    ///   so an agent could write under another's key.
    /// - Full is full: an agent cannot push out what others wrote.
    pub(crate) fn stream_config(self, limits: &Limits) -> stream::Config {
        let (bytes, age) = match self {
            Self::Priors => (limits.bytes, limits.age),
            Self::Status => (limits.bytes / 16, limits.age),
            Self::Policy => (limits.bytes / 16, Duration::ZERO),
        };
        stream::Config {
            name: self.stream_name(),
            description: Some(DESCRIPTION.to_owned()),
            subjects: vec![self.key_subject(">")],
            max_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            max_messages: -1,
            max_messages_per_subject: self.history_length(),
            max_message_size: (self.message_bytes() + 1024) as i32,
            max_age: age,
            discard: stream::DiscardPolicy::New,
            storage: stream::StorageType::File,
            num_replicas: limits.replicas.into(),
            allow_rollup: false,
            allow_direct: false,
            deny_delete: true,
            deny_purge: true,
            ..stream::Config::default()
        }
    }

    /// The limits of a stream that is this bucket.
    pub(crate) fn stream_limits(self, found: &stream::Config) -> Limits {
        let usual = Limits::default();
        let bytes = u64::try_from(found.max_bytes).ok().filter(|it| *it > 0);
        Limits {
            bytes: bytes.map_or(usual.bytes, |bytes| match self {
                Self::Priors => bytes,
                Self::Status | Self::Policy => bytes.saturating_mul(16),
            }),
            age: match self {
                Self::Priors | Self::Status => found.max_age,
                Self::Policy => usual.age,
            },
            replicas: u8::try_from(found.num_replicas).unwrap_or(usual.replicas),
        }
    }

    /// Checks what clients rely on.
    pub(crate) fn check_config(self, found: &stream::Config) -> Result<(), Fault> {
        let name = self.name();
        let described = found.description.as_deref().unwrap_or("none");
        if described != DESCRIPTION {
            return Err(Fault::new(
                Kind::Version,
                format_args!(
                    "bucket {name}: description: found {described:?}, expected {DESCRIPTION:?}"
                ),
            ));
        }
        let expected = self.stream_config(&Limits::default());
        let same = found.subjects == expected.subjects
            && found.max_messages_per_subject == expected.max_messages_per_subject
            && found.max_message_size == expected.max_message_size
            && !found.allow_rollup
            && !found.allow_direct;
        match same {
            true => Ok(()),
            false => Err(Fault::new(
                Kind::Version,
                format_args!("bucket {name}: subjects, history or sizes are not those of format 1"),
            )),
        }
    }
}

/// A bucket's key, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Priors(Name, Shard),
    Status(Name),
    Policy(Name),
}

impl Key {
    /// The key of a subject in this bucket.
    pub fn parse(bucket: Bucket, subject: &str) -> Result<Self, Fault> {
        let prefix = bucket.key_subject("");
        let wrong = || {
            let name = bucket.name();
            Fault::new(
                Kind::Key,
                format_args!("bucket {name}: found the key {subject:?}"),
            )
        };
        let key = subject.strip_prefix(&prefix).ok_or_else(wrong)?;
        let name = |text: &str| Name::new(text).map_err(|_| wrong());
        match bucket {
            Bucket::Priors => {
                let (agent, shard) = key.split_once('.').ok_or_else(wrong)?;
                let number: u8 = shard.parse().map_err(|_| wrong())?;
                let known = Shard::new(number).filter(|known| known.to_string() == shard);
                Ok(Self::Priors(name(agent)?, known.ok_or_else(wrong)?))
            }
            Bucket::Status => Ok(Self::Status(name(key)?)),
            Bucket::Policy => Ok(Self::Policy(name(key)?)),
        }
    }
}
