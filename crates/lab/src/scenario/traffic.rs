//! The `[traffic]` table.

use serde::{Deserialize, Serialize};
use thalweg_units::reader::Table;

use super::congestion_control;
use crate::units::grammar::CONGESTION_CONTROL;
use crate::units::{Delay, Seconds, Size};

/// What is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// How many rounds each mode has: one connection each, or one group of flows.
    pub connections: u32,
    /// How long each sends; of no effect where flows have a size.
    pub duration: Seconds,
    /// The first part of `duration`, which is not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<Seconds>,
    /// What one round is.
    #[serde(flatten)]
    pub kind: Kind,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            connections: 60,
            duration: Seconds::new(1),
            warmup: None,
            kind: Kind::Bulk,
        }
    }
}

/// What one round is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    /// One connection of iperf3 that sends for a time.
    Bulk,
    /// Flows of a size, one after the other, each a connection of its own.
    Short {
        /// Flows in a round.
        flows: u32,
        /// Bytes of each.
        bytes: Size,
    },
    /// Flows whose congestion control the mode decides, and others whose application
    /// asks for one, at the same time.
    Competing {
        /// Flows whose congestion control the mode decides.
        flows: u32,
        /// The others.
        against: Against,
    },
    /// Endless flows at the same time, whose congestion control the mode decides.
    Streams {
        /// How many.
        flows: u32,
    },
    /// An endless flow, and others that send a burst, pause, and again, each over a
    /// connection that stays.
    #[serde(rename = "long-short")]
    LongShort {
        /// How many, the endless one included.
        flows: u32,
        /// Bytes of a burst.
        burst: Size,
        /// The pause after each.
        idle: Delay,
    },
    /// Senders of calls of 1 MB, calls of 10 kB, and streams, at the same time.
    Incast {
        /// How many; without `rpcs` the three sorts take turns.
        senders: u32,
        /// Loops of calls of 1 MB that each sender has, beside [`SMALL_CALLS`] loops of
        /// calls of 10 kB and one stream.
        #[serde(skip_serializing_if = "Option::is_none")]
        rpcs: Option<u32>,
    },
}

/// Flows of a given congestion control to compete with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Against {
    /// Their congestion control, set by the application.
    pub cc: String,
    /// How many.
    pub flows: u32,
}

/// The class of flows that are there to be competed with. They count only where
/// a statistic names them.
pub const INCUMBENT: &str = "incumbent";
/// The classes of the flows of incast, in the order in which senders take them,
/// with the bytes of a call; none: a stream.
pub const INCAST: [(&str, Option<u64>); 3] = [
    ("rpc-1mb", Some(1_000_000)),
    ("rpc-10kb", Some(10_000)),
    ("stream", None),
];

/// The class of the endless flow among bursts.
pub const LONG: &str = "long";
/// The class of the bursts.
pub const SHORT: &str = "short";

/// Loops of calls of 10 kB of a sender that does all three: with its stream and X loops
/// of calls of 1 MB it has X + 3 flows at a time.
pub const SMALL_CALLS: u32 = 2;
/// Flows that may be under way at once.
const MOST_AT_ONCE: u32 = 1000;

impl Kind {
    /// The classes that its flows may have.
    pub fn classes(&self) -> Vec<&'static str> {
        match self {
            Self::Bulk | Self::Short { .. } | Self::Streams { .. } => Vec::new(),
            Self::LongShort { .. } => vec![LONG, SHORT],
            Self::Competing { .. } => vec![INCUMBENT],
            Self::Incast { senders, rpcs } => INCAST
                .iter()
                .take(rpcs.map_or(*senders as usize, |_| INCAST.len()))
                .map(|(class, _)| *class)
                .collect(),
        }
    }
}

impl Traffic {
    /// In one line, for a reader.
    pub fn describe(&self) -> String {
        let Self {
            connections,
            duration,
            warmup,
            kind,
        } = self;
        let duration = match warmup {
            Some(warmup) => format!("{duration} (without the first {warmup})"),
            None => duration.to_string(),
        };
        match kind {
            Kind::Bulk => format!("{connections} connections of {duration} each"),
            Kind::Short { flows, bytes } => {
                format!("{connections} rounds of {flows} flows of {bytes}, one after the other")
            }
            Kind::Competing { flows, against } => format!(
                "{connections} rounds of {duration}: {flows} flows against {} of {}",
                against.flows, against.cc
            ),
            Kind::Streams { flows } => {
                format!("{connections} rounds of {duration}: {flows} flows at once")
            }
            Kind::LongShort { flows, burst, idle } => format!(
                "{connections} rounds of {duration}: an endless flow among {} that send {burst} and \
                 pause for {idle}",
                flows - 1
            ),
            Kind::Incast {
                senders,
                rpcs: Some(rpcs),
            } => format!(
                "{connections} rounds of {duration}: {senders} senders at once, each with \
                 {rpcs} × rpc-1mb, {SMALL_CALLS} × rpc-10kb and a stream"
            ),
            Kind::Incast {
                senders,
                rpcs: None,
            } => format!(
                "{connections} rounds of {duration}: {senders} senders at once ({})",
                kind.classes().join(", ")
            ),
        }
    }
}

/// The word of a kind.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Name {
    Bulk,
    Short,
    Competing,
    Incast,
    Streams,
    LongShort,
}

impl Traffic {
    /// None where there is a fault.
    pub(super) fn read(mut table: Table<'_>) -> Option<Self> {
        let mut traffic = Self::default();
        // The other keys depend on it.
        let name = table.kind(Some("bulk"))?;
        let connections = table.count("connections", 1..=10_000);
        traffic.connections = connections.unwrap_or(traffic.connections);
        if !matches!(name, Name::Short) {
            traffic.duration = table.value("duration").unwrap_or(traffic.duration);
        }
        if matches!(name, Name::Competing | Name::Streams) {
            traffic.warmup = table.value("warmup");
        }
        traffic.kind = match name {
            Name::Bulk => Kind::Bulk,
            Name::Short => Kind::Short {
                flows: table.count("flows", 1..=1000).unwrap_or(20),
                bytes: table.value("bytes").unwrap_or(Size::from_bytes(10_000)),
            },
            Name::Competing => Kind::Competing {
                flows: table.count("flows", 1..=100).unwrap_or(1),
                against: Against::read(table.needed_sub("against")),
            },
            Name::Incast => incast(&mut table),
            Name::Streams => Kind::Streams {
                flows: table.count("flows", 1..=MOST_AT_ONCE).unwrap_or(2),
            },
            Name::LongShort => Kind::LongShort {
                flows: table.count("flows", 2..=MOST_AT_ONCE).unwrap_or(2),
                burst: table.value("burst").unwrap_or(Size::from_bytes(200 * 1024)),
                idle: table.value("idle").unwrap_or(Delay::from_us(10_000)),
            },
        };
        table.finish();
        let duration = traffic.duration;
        if let Some(warmup) = traffic.warmup
            && warmup >= duration
        {
            let expected = format!("less than the duration of {duration}");
            table.wrong("warmup", warmup.to_string(), expected);
        }
        table.is_sound().then_some(traffic)
    }
}

impl Against {
    /// Nobody's where there is a fault.
    fn read(table: Option<Table<'_>>) -> Self {
        let mut against = Self {
            cc: String::new(),
            flows: 1,
        };
        if let Some(mut table) = table {
            let what = "what to compete with";
            let cc = table.required("cc", what, congestion_control, CONGESTION_CONTROL);
            against.cc = cc.unwrap_or_default();
            against.flows = table.count("flows", 1..=100).unwrap_or(against.flows);
            table.finish();
        }
        against
    }
}

fn incast(table: &mut Table<'_>) -> Kind {
    let senders = table.count("senders", 1..=100).unwrap_or(3);
    let rpcs = table.count("rpcs", 1..=100);
    if let Some(rpcs) = rpcs {
        let at_once = senders * (rpcs + SMALL_CALLS + 1);
        if at_once > MOST_AT_ONCE {
            let found = format!(
                "{at_once} flows at once, {rpcs} + {SMALL_CALLS} calls and a stream of each of \
                 {senders} senders"
            );
            table.wrong("rpcs", found, format!("at most {MOST_AT_ONCE}"));
        }
    }
    Kind::Incast { senders, rpcs }
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
