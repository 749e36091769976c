//! Priors: what one agent has measured of networks, a shard a message.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use thalweg_units::prefix::Prefix;
use thalweg_units::random::hash_bytes;

use super::{WireError, read_document, write_document};
use crate::names::Name;
use crate::text::{is_text, one_line};

/// Version of the format.
pub const FORMAT: u64 = 1;
/// Largest message, bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// Most networks of a message.
pub const MAX_NETWORKS: usize = 512;
/// Most arms of a network, as the learner has.
pub const MAX_ARMS: usize = 16;
/// Number of shards.
pub const SHARDS: u8 = 16;
/// 1 in Q16.
const ONE: i32 = 1 << 16;
/// Largest difference of costs and rates, bits in Q16.
const MAX_BITS: i32 = 64 * ONE;
/// Longest queue, bits in Q16.
const MAX_QUEUE_Q16: u32 = 16 << 16;
/// Oldest measurement, s: a year.
const MAX_AGE_S: u32 = 366 * 86_400;
/// Longest name of an arm, bytes; as in the kernel, without the closing NUL.
const ARM_MAX: usize = 15;
/// Longest name of a network, bytes.
const NAME_MAX: usize = 64;

/// A part of the networks, below [`SHARDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shard(u8);

impl Shard {
    /// The shard of this number; none from [`SHARDS`] on.
    pub fn new(number: u8) -> Option<Self> {
        (number < SHARDS).then_some(Self(number))
    }

    /// All shards.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SHARDS).map(Self)
    }

    /// Number of the shard.
    pub fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A network that agents have in common. Namespaces differ between machines, so all of it is of
/// the agent's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    /// The addresses of a prefix, wider than a host: /31 and /64 at most.
    Prefix(Prefix),
    /// A network that the operator's table names.
    Named(String),
    /// The hosts of a service with a similar RTT.
    Service {
        /// Port of the side that listens.
        port: u16,
        /// Whether connections were accepted; otherwise they were opened.
        accepted: bool,
        /// Class of the RTT at the handshake, 0 to 7.
        rtt: u8,
    },
    /// Everything.
    All,
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => {
                write!(formatter, "prefix:{}/{}", prefix.address(), prefix.length())
            }
            Self::Named(name) => write!(formatter, "name:{name}"),
            Self::Service {
                port,
                accepted,
                rtt,
            } => {
                let side = if *accepted { "accepted" } else { "opened" };
                write!(formatter, "service:{port}:{side}:{rtt}")
            }
            Self::All => formatter.write_str("all"),
        }
    }
}

impl Network {
    /// The network of a text that [`fmt::Display`] writes, and of no other.
    pub fn parse(text: &str) -> Option<Self> {
        let network = match text.split_once(':') {
            None if text == "all" => Self::All,
            Some(("prefix", prefix)) => Self::Prefix(Prefix::parse(prefix).ok()?),
            Some(("name", name)) => Self::Named(name.to_owned()),
            Some(("service", service)) => {
                let mut parts = service.split(':');
                let (port, side, rtt) = (parts.next()?, parts.next()?, parts.next()?);
                Self::Service {
                    port: port.parse().ok()?,
                    accepted: side == "accepted",
                    rtt: rtt.parse().ok()?,
                }
            }
            _ => return None,
        };
        // One text a network: the shard is its hash.
        (network.is_valid() && network.to_string() == text).then_some(network)
    }

    /// Whether a message may have the network: a prefix of several hosts, or a short name without
    /// invisible characters.
    pub fn is_valid(&self) -> bool {
        match self {
            Self::Prefix(prefix) => prefix.length() <= if prefix.is_ipv4() { 31 } else { 64 },
            Self::Named(name) => is_text(name, NAME_MAX),
            Self::Service { rtt, .. } => *rtt < 8,
            Self::All => true,
        }
    }

    /// Shard of the network: FNV-1a of the text, the upper bits folded into the lower.
    pub fn shard(&self) -> Shard {
        let hash = hash_bytes(self.to_string().bytes());
        let folded = hash ^ (hash >> 32);
        Shard((folded ^ (folded >> 16)) as u8 % SHARDS)
    }
}

/// Measurements of one arm in a network by one agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ArmRow", into = "ArmRow")]
pub struct Arm {
    /// Name of the congestion control.
    pub name: String,
    /// Mean cost above the system arm's, bits in Q16, -64 to 64 bits.
    pub cost_q16: i32,
    /// Discounted number of measurements, Q16.
    pub evidence_q16: u32,
    /// log2 of the rate over the system arm's, bits in Q16, -64 to 64 bits.
    pub log_rate_q16: i32,
    /// Mean absolute deviation of the cost, bits in Q16, up to 64 bits.
    pub deviation_q16: u32,
    /// Discounted number of data segments.
    pub segments: u32,
    /// How many of them were retransmissions, discounted.
    pub retransmitted: u32,
}

/// An arm as a row: names of fields would be most of a message.
type ArmRow = (String, i32, u32, i32, u32, u32, u32);

impl From<ArmRow> for Arm {
    fn from(
        (name, cost_q16, evidence_q16, log_rate_q16, deviation_q16, segments, retransmitted): ArmRow,
    ) -> Self {
        Self {
            name,
            cost_q16,
            evidence_q16,
            log_rate_q16,
            deviation_q16,
            segments,
            retransmitted,
        }
    }
}

impl From<Arm> for ArmRow {
    fn from(arm: Arm) -> Self {
        (
            arm.name,
            arm.cost_q16,
            arm.evidence_q16,
            arm.log_rate_q16,
            arm.deviation_q16,
            arm.segments,
            arm.retransmitted,
        )
    }
}

impl Arm {
    fn check_fields(&self) -> Result<(), WireError> {
        let within = |bits: i32| bits.unsigned_abs() <= MAX_BITS.unsigned_abs();
        let graphic = self.name.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_text(&self.name, ARM_MAX) || !graphic {
            let name = one_line(&self.name, 20);
            return Err(WireError::wrong_field(
                "arm",
                format!("{name:?}"),
                "1 to 15 printable characters",
            ));
        }
        let bits = "-64 to 64 bits in Q16";
        if !within(self.cost_q16) {
            return Err(WireError::wrong_field("cost", self.cost_q16, bits));
        }
        if !within(self.log_rate_q16) {
            return Err(WireError::wrong_field("log_rate", self.log_rate_q16, bits));
        }
        if self.deviation_q16 > MAX_BITS.unsigned_abs() {
            return Err(WireError::wrong_field(
                "deviation",
                self.deviation_q16,
                "at most 64 bits in Q16",
            ));
        }
        Ok(())
    }
}

/// Measurements of one network by one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The network.
    pub network: Network,
    /// Age of the last measurement when the message was made, s.
    pub age_s: u32,
    /// The queue under the system arm, bits in Q16, up to 16 bits.
    pub queue_q16: u32,
    /// Arms, each once.
    pub arms: Vec<Arm>,
}

/// The measurements of one agent in the networks of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Priors {
    /// Agent that measured.
    pub agent: Name,
    /// The networks' shard.
    pub shard: Shard,
    /// Version of the learner's rule: costs of another version are not comparable.
    pub rule: u32,
    /// The networks, each once.
    pub networks: Vec<Measured>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u64,
    rule: u32,
    agent: Name,
    shard: u8,
    networks: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    of: String,
    age_s: u32,
    queue_q16: u32,
    arms: Vec<Arm>,
}

impl Priors {
    /// Reads a message.
    ///
    /// # Errors
    /// The message is too large, of another version, or has a field out of bounds.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let document: Document = read_document(bytes, MAX_BYTES, FORMAT)?;
        let shard = Shard::new(document.shard)
            .ok_or_else(|| WireError::wrong_field("shard", document.shard, "below 16"))?;
        let found = document.networks.len();
        if found > MAX_NETWORKS {
            return Err(WireError::wrong_field("networks", found, "at most 512"));
        }
        let mut networks = Vec::with_capacity(found);
        for entry in document.networks {
            let network = Network::parse(&entry.of).ok_or_else(|| {
                let text = one_line(&entry.of, 80);
                WireError::wrong_field(
                    "of",
                    format!("{text:?}"),
                    "a network, such as prefix:192.0.2.0/24",
                )
            })?;
            networks.push(Measured {
                network,
                age_s: entry.age_s,
                queue_q16: entry.queue_q16,
                arms: entry.arms,
            });
        }
        let priors = Self {
            agent: document.agent,
            shard,
            rule: document.rule,
            networks,
        };
        priors.check_networks()?;
        Ok(priors)
    }

    /// The message. Networks beyond what a message may have are left out, the last ones first, so
    /// those with most evidence should come first.
    ///
    /// # Errors
    /// A field is out of bounds.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        self.check_networks()?;
        let entry = |measured: &Measured| Entry {
            of: measured.network.to_string(),
            age_s: measured.age_s,
            queue_q16: measured.queue_q16,
            arms: measured.arms.clone(),
        };
        let mut document = Document {
            format: FORMAT,
            rule: self.rule,
            agent: self.agent.clone(),
            shard: self.shard.0,
            networks: self.networks.iter().take(MAX_NETWORKS).map(entry).collect(),
        };
        loop {
            let bytes = write_document(&document);
            if bytes.len() <= MAX_BYTES {
                return Ok(bytes);
            }
            let fit = document.networks.len() * MAX_BYTES / bytes.len();
            document
                .networks
                .truncate(fit.min(document.networks.len() - 1));
        }
    }

    fn check_networks(&self) -> Result<(), WireError> {
        let mut seen = HashSet::new();
        for measured in &self.networks {
            let network = &measured.network;
            if !network.is_valid() || network.shard() != self.shard || !seen.insert(network) {
                let expected = format!("networks of shard {}, each once", self.shard);
                return Err(WireError::wrong_field("of", network, &expected));
            }
            if measured.queue_q16 > MAX_QUEUE_Q16 {
                return Err(WireError::wrong_field(
                    "queue_q16",
                    measured.queue_q16,
                    "at most 16 bits in Q16",
                ));
            }
            if measured.age_s > MAX_AGE_S {
                return Err(WireError::wrong_field(
                    "age_s",
                    measured.age_s,
                    "at most 31622400",
                ));
            }
            let found = measured.arms.len();
            if found == 0 || found > MAX_ARMS {
                return Err(WireError::wrong_field("arms", found, "1 to 16"));
            }
            let mut names = HashSet::new();
            for arm in &measured.arms {
                arm.check_fields()?;
                if !names.insert(&arm.name) {
                    return Err(WireError::wrong_field("arm", &arm.name, "each once"));
                }
            }
        }
        Ok(())
    }
}
