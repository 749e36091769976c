//! The scenario file.
//!
//! Parsing is strict: an unknown key, a malformed quantity or a network that cannot exist is an
//! error with file, line, column and what was expected.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use thalweg_units::file::{ReadError, read_text};
use thalweg_units::memory::check_toml;
use thalweg_units::{FileError, Probability, Rate, Size, Span, position, with_suggestion};
use toml::Spanned;

use super::kinds::{self, TopologyTable, WorkloadTable};
use super::{Ecn, Hosts, Link, Network, Pause, Recovery, Scenario, Topology, Workload, check};
use crate::Time;
use crate::expect;

/// A message at a place in the text.
pub(super) type Fault = (Range<usize>, String);

/// Why a scenario cannot be had from a file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It is not a valid scenario.
    #[error(transparent)]
    Scenario(#[from] FileError),
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// Where it cannot be read, or is not a valid scenario.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        Ok(Self::parse(&read_text(file)?, file)?)
    }

    /// Checks the text of a scenario; `file` is for messages only.
    ///
    /// # Errors
    /// The first fault, with its place.
    pub fn parse(text: &str, file: &Path) -> Result<Self, FileError> {
        let at = |(span, message): Fault| {
            let (line, column) = position(text, span.start);
            FileError {
                file: file.to_owned(),
                line,
                column,
                message,
            }
        };
        check_toml(text).map_err(|error| at((error.at..error.at, error.to_string())))?;
        let document: Document = toml::from_str(text).map_err(|error| {
            at((
                error.span().unwrap_or(0..0),
                with_suggestion(error.message()),
            ))
        })?;
        document.scenario().map_err(at)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    name: Spanned<String>,
    #[serde(default)]
    description: String,
    pub(super) duration: Spanned<Span>,
    #[serde(default)]
    pub(super) warmup: Option<Spanned<Span>>,
    #[serde(default)]
    pub(super) series: Option<Spanned<Span>>,
    topology: TopologyTable,
    pub(super) link: Spanned<LinkTable>,
    #[serde(default)]
    pub(super) fabric: Option<Spanned<LinkTable>>,
    #[serde(default)]
    pub(super) network: NetworkTable,
    #[serde(default)]
    pub(super) hosts: HostsTable,
    pub(super) workload: WorkloadTable,
    #[serde(default)]
    pub(super) flow: Vec<Spanned<FlowTable>>,
    #[serde(default)]
    expect: Vec<Spanned<expect::Table>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkTable {
    rate: Rate,
    delay: Span,
    #[serde(default)]
    queue: Option<Size>,
}

/// Bytes that a port queues where a scenario does not say.
const DEFAULT_QUEUE: u64 = 10 << 20;

impl LinkTable {
    fn link(&self) -> Link {
        Link {
            rate_bps: self.rate.bps(),
            delay: time(self.delay),
            queue_bytes: self.queue.map_or(DEFAULT_QUEUE, Size::bytes),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkTable {
    pub(super) packet: Option<Spanned<Size>>,
    pub(super) answer: Option<Spanned<Size>>,
    pub(super) base_rtt: Option<Spanned<Span>>,
    pub(super) ecn: Option<Spanned<EcnTable>>,
    pub(super) pause: Option<Spanned<PauseTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EcnTable {
    min: Size,
    max: Size,
    probability: Probability,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PauseTable {
    stop: Size,
    go: Size,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct HostsTable {
    pub(super) burst: Option<Spanned<u32>>,
    start_spread: Option<Span>,
    reaction: Option<Span>,
    pub(super) min_rate: Option<Spanned<Rate>>,
    recovery: Option<RecoveryWord>,
    pub(super) timeout: Option<Spanned<Span>>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum RecoveryWord {
    GoBackN,
    SelectiveRepeat,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowTable {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) size: Option<Size>,
    pub(super) start: Option<Span>,
    #[serde(default = "one")]
    pub(super) count: u32,
}

fn one() -> u32 {
    1
}

pub(super) fn time(span: Span) -> Time {
    Time::from_ps(span.ps())
}

/// The place of a value that may not be there.
pub(super) fn span_of<T>(value: &Option<Spanned<T>>, instead: Range<usize>) -> Range<usize> {
    value.as_ref().map_or(instead, Spanned::span)
}

fn value<T: Clone>(spanned: &Option<Spanned<T>>) -> Option<T> {
    spanned.as_ref().map(|spanned| spanned.get_ref().clone())
}

impl Document {
    fn scenario(self) -> Result<Scenario, Fault> {
        let name = self.name.get_ref();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(plain) {
            return Err((
                self.name.span(),
                format!(
                    "expected a name of 1 to 64 letters, digits, '-', '_' or '.', \
                     not beginning with '.', found {name:?}"
                ),
            ));
        }
        let topology = self.topology.topology()?;
        let link = self.link.get_ref().link();
        if let (Topology::Star { .. }, Some(fabric)) = (topology, &self.fabric) {
            return Err((
                fabric.span(),
                "a star has no links between switches: expected no `fabric`".into(),
            ));
        }
        let network = &self.network;
        let spanned_bytes = |size: &Option<Spanned<Size>>, instead: u32| match size {
            None => Ok(instead),
            Some(size) => u32::try_from(size.get_ref().bytes())
                .ok()
                .filter(|bytes| (64..=65_535).contains(bytes))
                .ok_or_else(|| {
                    let message = format!("expected 64 to 65535 bytes, found {}", size.get_ref());
                    (size.span(), message)
                }),
        };
        let hosts = &self.hosts;
        let mut scenario = Scenario {
            name: name.clone(),
            description: self.description.clone(),
            duration: time(*self.duration.get_ref()),
            warmup: value(&self.warmup).map_or(Time::ZERO, time),
            topology,
            network: Network {
                link,
                fabric: self
                    .fabric
                    .as_ref()
                    .map_or(link, |fabric| fabric.get_ref().link()),
                packet_bytes: spanned_bytes(&network.packet, 1024)?,
                answer_bytes: spanned_bytes(&network.answer, 64)?,
                base_rtt: value(&network.base_rtt).map(time),
                ecn: network.ecn.as_ref().map(|ecn| Ecn {
                    min_bytes: ecn.get_ref().min.bytes(),
                    max_bytes: ecn.get_ref().max.bytes(),
                    max_probability: ecn.get_ref().probability.fraction(),
                }),
                pause: network.pause.as_ref().map(|pause| Pause {
                    stop_bytes: pause.get_ref().stop.bytes(),
                    go_bytes: pause.get_ref().go.bytes(),
                }),
                explicit_queues: false,
            },
            hosts: Hosts {
                burst_packets: value(&hosts.burst).unwrap_or(1),
                start_spread: hosts.start_spread.map_or(Time::from_us(1_000), time),
                reaction: hosts.reaction.map_or(Time::from_us(1), time),
                min_rate_bps: value(&hosts.min_rate).map_or(1_000_000, Rate::bps),
                recovery: match hosts.recovery {
                    Some(RecoveryWord::GoBackN) => Recovery::GoBackN,
                    Some(RecoveryWord::SelectiveRepeat) | None => Recovery::SelectiveRepeat,
                },
                timeout: value(&hosts.timeout).map_or(Time::ZERO, time),
            },
            workload: Workload::Flows(Vec::new()),
            series: value(&self.series).map(time),
            expect: Vec::new(),
        };
        scenario.workload = kinds::workload(&self, topology)?;
        for table in &self.expect {
            let expectation = table.get_ref().check(table.span(), &scenario.workload)?;
            scenario.expect.push(expectation);
        }
        check::document(&self, &mut scenario)?;
        Ok(scenario)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Star { hosts } => write!(f, "{hosts} hosts at one switch"),
            Self::LeafSpine {
                leaves,
                spines,
                hosts_per_leaf,
            } => write!(
                f,
                "{leaves} leaf switches with {hosts_per_leaf} hosts each, {spines} spine switches"
            ),
            Self::FatTree { ports } => {
                write!(f, "a fat tree of switches with {ports} ports")
            }
        }
    }
}
