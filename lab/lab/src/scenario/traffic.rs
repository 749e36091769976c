//! The `[traffic]` table.

use serde::{Deserialize, Serialize};
use thalweg_units::reader::Table;
use thalweg_units::schema;

use super::congestion_control;
use super::path::is_zero;
use super::sizes::{self, Flows, Idle, Sizes};
use super::web::Web;
use crate::units::grammar::CONGESTION_CONTROL;
use crate::units::{Delay, Seconds, Size};
use crate::worker::{HEAD, OBJECTS};

/// The traffic of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Traffic {
    /// Number of rounds of each mode. A round is one connection or one group of flows.
    pub connections: u32,
    /// Sending time of each flow; unused if flows have a size.
    pub duration: Seconds,
    /// The first part of `duration`, which is not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<Seconds>,
    /// The traffic of one round.
    #[serde(flatten)]
    pub kind: TrafficKind,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            connections: 60,
            duration: Seconds::new(1),
            warmup: None,
            kind: TrafficKind::Bulk,
        }
    }
}

/// The traffic of one round.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum TrafficKind {
    /// One iperf3 connection that sends for a time.
    Bulk,
    /// Flows of a given size, one after the other, each a connection of its own.
    Short {
        /// Flows in a round.
        flows: u32,
        /// Bytes of each.
        #[serde(flatten)]
        sizes: Sizes,
        /// Addresses of the server that the flows go to in turn.
        #[serde(skip_serializing_if = "is_one")]
        hosts: u32,
    },
    /// Connections at the same time, each with one response after the other.
    Responses {
        /// Number of connections.
        flows: Flows,
        /// Bytes of each response.
        #[serde(flatten)]
        sizes: Sizes,
        /// The time between responses.
        #[serde(flatten)]
        idle: Idle,
        /// The receiver's time between the last byte of a response and its answer.
        // The default is left out, so that older results stay comparable.
        #[serde(skip_serializing_if = "is_zero")]
        think: Delay,
    },
    /// Pages of several objects.
    Web(Web),
    /// Flows whose congestion control the mode decides, at the same time as flows whose application
    /// sets one.
    Competing {
        /// Flows whose congestion control the mode decides.
        flows: u32,
        /// The others.
        against: Against,
    },
    /// Endless flows at the same time, whose congestion control the mode decides.
    Streams {
        /// Number of flows.
        flows: Flows,
    },
    /// An endless flow, and others that send bursts with pauses, each over one connection.
    #[serde(rename = "long-short")]
    LongShort {
        /// Number of flows, the endless one included.
        flows: u32,
        /// Bytes of a burst.
        burst: Size,
        /// The pause after each burst.
        idle: Delay,
    },
    /// Calls of 1 MB, calls of 10 kB, and streams, all at the same time.
    Incast {
        /// Number of senders. Without `rpcs` each has one of the three, in turn.
        senders: u32,
        /// Loops of calls of 1 MB per sender, beside [`SMALL_CALLS`] loops of calls of 10 kB and
        /// one stream.
        #[serde(skip_serializing_if = "Option::is_none")]
        rpcs: Option<u32>,
    },
}

/// Competing flows of a given congestion control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Against {
    /// Congestion control of the flows, set by the application.
    pub cc: String,
    /// Number of flows.
    pub flows: u32,
}

/// The class of the competitors. They count only for statistics that name them.
pub const INCUMBENT: &str = "incumbent";
/// The classes of incast flows in the order of the senders, with the bytes of a call; none: a
/// stream.
pub const INCAST: [(&str, Option<u64>); 3] = [
    ("rpc-1mb", Some(1_000_000)),
    ("rpc-10kb", Some(10_000)),
    ("stream", None),
];

/// The class of the endless flow among bursts.
pub const LONG: &str = "long";
/// The class of the bursts.
pub const SHORT: &str = "short";

/// Loops of calls of 10 kB of a sender with all three sorts. With its stream and X loops of calls
/// of 1 MB it has X + 3 flows at a time.
pub const SMALL_CALLS: u32 = 2;
/// Most flows at the same time.
const MOST_AT_ONCE: u32 = 1000;

/// Most addresses of a server.
const MOST_HOSTS: u32 = 200;

fn is_one(hosts: &u32) -> bool {
    *hosts == 1
}

impl TrafficKind {
    /// Addresses of the server that its flows go to.
    pub fn server_addresses(&self) -> u32 {
        match self {
            Self::Short { hosts, .. } => *hosts,
            _ => 1,
        }
    }

    /// The classes of its flows.
    pub fn flow_classes(&self) -> Vec<&'static str> {
        match self {
            Self::Bulk | Self::Short { .. } | Self::Streams { .. } | Self::Responses { .. } => {
                Vec::new()
            }
            Self::Web(_) => OBJECTS.iter().map(|(class, _)| *class).collect(),
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
            TrafficKind::Bulk => format!("{connections} connections of {duration} each"),
            TrafficKind::Short {
                flows,
                sizes,
                hosts,
            } => {
                let to = match hosts {
                    1 => String::new(),
                    hosts => format!(", to {hosts} addresses in turn"),
                };
                format!("{connections} rounds of {flows} flows of {sizes}, one after the other{to}")
            }
            TrafficKind::Responses {
                flows,
                sizes,
                idle,
                think,
            } => {
                let answered = match *think {
                    Delay::ZERO => String::new(),
                    think => format!(", answered after {think}"),
                };
                format!(
                    "{connections} rounds of {duration}: {flows} connections at once, each with \
                     responses of {sizes}, {idle}{answered}"
                )
            }
            TrafficKind::Web(web) => format!("{connections} rounds of {duration}: {web}"),
            TrafficKind::Competing { flows, against } => format!(
                "{connections} rounds of {duration}: {flows} flows against {} of {}",
                against.flows, against.cc
            ),
            TrafficKind::Streams { flows } => {
                format!("{connections} rounds of {duration}: {flows} flows at once")
            }
            TrafficKind::LongShort { flows, burst, idle } => format!(
                "{connections} rounds of {duration}: an endless flow among {} that send {burst} and \
                 pause for {idle}",
                flows - 1
            ),
            TrafficKind::Incast {
                senders,
                rpcs: Some(rpcs),
            } => format!(
                "{connections} rounds of {duration}: {senders} senders at once, each with \
                 {rpcs} × rpc-1mb, {SMALL_CALLS} × rpc-10kb and a stream"
            ),
            TrafficKind::Incast {
                senders,
                rpcs: None,
            } => format!(
                "{connections} rounds of {duration}: {senders} senders at once ({})",
                kind.flow_classes().join(", ")
            ),
        }
    }
}

/// The key of a kind.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Name {
    Bulk,
    Short,
    Competing,
    Incast,
    Streams,
    LongShort,
    Responses,
    Web,
}

impl Traffic {
    /// Reads the table; none if there is a fault.
    pub(super) fn from_table(mut table: Table<'_>) -> Option<Self> {
        let mut traffic = Self::default();
        // The other keys depend on the kind.
        let name = table.take_kind(Some("bulk"))?;
        let connections = table.count("connections", 1..=10_000);
        traffic.connections = connections.unwrap_or(traffic.connections);
        if !matches!(name, Name::Short) {
            traffic.duration = table.value("duration").unwrap_or(traffic.duration);
        }
        if matches!(name, Name::Competing | Name::Streams) {
            traffic.warmup = table.value("warmup");
        }
        traffic.kind = match name {
            Name::Bulk => TrafficKind::Bulk,
            Name::Short => TrafficKind::Short {
                flows: table.count("flows", 1..=1000).unwrap_or(20),
                sizes: Sizes::from_table(&mut table, 0),
                hosts: table.count("hosts", 1..=MOST_HOSTS).unwrap_or(1),
            },
            Name::Competing => TrafficKind::Competing {
                flows: table.count("flows", 1..=100).unwrap_or(1),
                against: Against::from_table(table.needed_sub("against")),
            },
            Name::Incast => read_incast(&mut table),
            Name::Streams => TrafficKind::Streams {
                flows: Flows::from_table(&mut table, MOST_AT_ONCE),
            },
            Name::Responses => TrafficKind::Responses {
                flows: Flows::from_table(&mut table, MOST_AT_ONCE),
                sizes: Sizes::from_table(&mut table, HEAD as u64),
                idle: Idle::from_table(&mut table),
                think: table.value("think").unwrap_or_default(),
            },
            Name::Web => TrafficKind::Web(Web::from_table(&mut table)),
            Name::LongShort => TrafficKind::LongShort {
                flows: table.count("flows", 2..=MOST_AT_ONCE).unwrap_or(2),
                burst: sizes::at_least(&mut table, "burst", HEAD as u64)
                    .unwrap_or(Size::from_bytes(200 * 1024)),
                idle: table.value("idle").unwrap_or(Delay::from_us(10_000)),
            },
        };
        table.refuse_unknown_keys();
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
    /// Reads the table; empty if there is a fault.
    fn from_table(table: Option<Table<'_>>) -> Self {
        let mut against = Self {
            cc: String::new(),
            flows: 1,
        };
        if let Some(mut table) = table {
            let what = "what to compete with";
            let cc = table.required(
                "cc",
                what,
                congestion_control,
                CONGESTION_CONTROL,
                schema::congestion_control,
            );
            against.cc = cc.unwrap_or_default();
            against.flows = table.count("flows", 1..=100).unwrap_or(against.flows);
            table.refuse_unknown_keys();
        }
        against
    }
}

fn read_incast(table: &mut Table<'_>) -> TrafficKind {
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
    TrafficKind::Incast { senders, rpcs }
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
