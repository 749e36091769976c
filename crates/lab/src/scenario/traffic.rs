//! The `[traffic]` table.

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::Fault;
use crate::outcome::INCUMBENT;
use crate::units::grammar::is_congestion_control;
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

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "kebab-case")]
enum Name {
    #[default]
    Bulk,
    Short,
    Competing,
    Incast,
    Streams,
    LongShort,
}

impl Name {
    fn word(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Short => "short",
            Self::Competing => "competing",
            Self::Incast => "incast",
            Self::Streams => "streams",
            Self::LongShort => "long-short",
        }
    }
}

/// The table as the file has it.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    kind: Option<Spanned<Name>>,
    connections: Option<Spanned<u32>>,
    duration: Option<Spanned<Seconds>>,
    flows: Option<Spanned<u32>>,
    bytes: Option<Spanned<Size>>,
    against: Option<Spanned<AgainstTable>>,
    senders: Option<Spanned<u32>>,
    rpcs: Option<Spanned<u32>>,
    warmup: Option<Spanned<Seconds>>,
    burst: Option<Spanned<Size>>,
    idle: Option<Spanned<Delay>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AgainstTable {
    cc: Spanned<String>,
    flows: Option<Spanned<u32>>,
}

impl Table {
    pub(super) fn check(self) -> Result<Traffic, Fault> {
        let default = Traffic::default();
        let name = self
            .kind
            .as_ref()
            .map_or(Name::Bulk, |kind| *kind.get_ref());
        let only = |names: &[Name], key: &str, span: Option<std::ops::Range<usize>>| match span {
            Some(span) if !names.contains(&name) => {
                let words: Vec<String> = names
                    .iter()
                    .map(|name| format!("\"{}\"", name.word()))
                    .collect();
                Err((
                    span,
                    format!(
                        "`{key}` goes with kind {} only, found kind \"{}\"",
                        words.join(" or "),
                        name.word()
                    ),
                ))
            }
            _ => Ok(()),
        };
        use Name::{Bulk, Competing, Incast, LongShort, Short, Streams};
        let span = |duration: &Spanned<Seconds>| duration.span();
        only(
            &[Bulk, Competing, Incast, Streams, LongShort],
            "duration",
            self.duration.as_ref().map(span),
        )?;
        only(
            &[Short, Competing, Streams, LongShort],
            "flows",
            self.flows.as_ref().map(Spanned::span),
        )?;
        only(&[Short], "bytes", self.bytes.as_ref().map(Spanned::span))?;
        only(
            &[Competing],
            "against",
            self.against.as_ref().map(Spanned::span),
        )?;
        only(
            &[Incast],
            "senders",
            self.senders.as_ref().map(Spanned::span),
        )?;
        only(&[Incast], "rpcs", self.rpcs.as_ref().map(Spanned::span))?;
        only(
            &[Competing, Streams],
            "warmup",
            self.warmup.as_ref().map(span),
        )?;
        only(
            &[LongShort],
            "burst",
            self.burst.as_ref().map(Spanned::span),
        )?;
        only(&[LongShort], "idle", self.idle.as_ref().map(Spanned::span))?;
        let duration = self.duration.map_or(default.duration, Spanned::into_inner);
        if let Some(warmup) = &self.warmup
            && *warmup.get_ref() >= duration
        {
            return Err((
                warmup.span(),
                format!(
                    "expected a warmup shorter than the duration of {duration}, found {}",
                    warmup.get_ref()
                ),
            ));
        }
        let kind = match name {
            Bulk => Kind::Bulk,
            Short => Kind::Short {
                flows: count(self.flows, 20, 1..=1000, "flows")?,
                bytes: self
                    .bytes
                    .map_or(Size::from_bytes(10_000), Spanned::into_inner),
            },
            Competing => Kind::Competing {
                flows: count(self.flows, 1, 1..=100, "flows")?,
                against: match (self.against, self.kind) {
                    (Some(against), _) => against.into_inner().check()?,
                    (None, kind) => {
                        return Err((
                            kind.map_or(0..0, |kind| kind.span()),
                            "expected `against`, such as { cc = \"cubic\", flows = 2 }".into(),
                        ));
                    }
                },
            },
            Incast => incast(self.senders, self.rpcs)?,
            Streams => Kind::Streams {
                flows: count(self.flows, 2, 1..=MOST_AT_ONCE, "flows")?,
            },
            LongShort => Kind::LongShort {
                flows: count(self.flows, 2, 2..=MOST_AT_ONCE, "flows")?,
                burst: self
                    .burst
                    .map_or(Size::from_bytes(200 * 1024), Spanned::into_inner),
                idle: self
                    .idle
                    .map_or(Delay::from_us(10_000), Spanned::into_inner),
            },
        };
        Ok(Traffic {
            connections: count(
                self.connections,
                default.connections,
                1..=10_000,
                "connections",
            )?,
            duration,
            warmup: self.warmup.map(Spanned::into_inner),
            kind,
        })
    }
}

impl AgainstTable {
    fn check(self) -> Result<Against, Fault> {
        if !is_congestion_control(self.cc.get_ref()) {
            return Err((
                self.cc.span(),
                format!(
                    "expected the name of a congestion control, found {:?}",
                    self.cc.get_ref()
                ),
            ));
        }
        Ok(Against {
            flows: count(self.flows, 1, 1..=100, "flows")?,
            cc: self.cc.into_inner(),
        })
    }
}

fn incast(senders: Option<Spanned<u32>>, rpcs: Option<Spanned<u32>>) -> Result<Kind, Fault> {
    let senders = count(senders, 3, 1..=100, "senders")?;
    let Some(rpcs) = rpcs else {
        return Ok(Kind::Incast {
            senders,
            rpcs: None,
        });
    };
    let span = rpcs.span();
    let rpcs = count(Some(rpcs), 1, 1..=100, "rpcs")?;
    let at_once = senders * (rpcs + SMALL_CALLS + 1);
    if at_once > MOST_AT_ONCE {
        return Err((
            span,
            format!(
                "expected at most {MOST_AT_ONCE} flows at once, found {at_once}: {senders} senders \
                 with {rpcs} + {SMALL_CALLS} calls and a stream each"
            ),
        ));
    }
    Ok(Kind::Incast {
        senders,
        rpcs: Some(rpcs),
    })
}

fn count(
    found: Option<Spanned<u32>>,
    default: u32,
    range: std::ops::RangeInclusive<u32>,
    what: &str,
) -> Result<u32, Fault> {
    match found {
        Some(found) if !range.contains(found.get_ref()) => Err((
            found.span(),
            format!(
                "expected {} to {} {what}, found {}",
                range.start(),
                range.end(),
                found.get_ref()
            ),
        )),
        Some(found) => Ok(found.into_inner()),
        None => Ok(default),
    }
}
