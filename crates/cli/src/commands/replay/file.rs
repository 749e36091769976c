//! The file of decisions: a line of JSON each for its head, every connection, and its end.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use thalweg_agent::config::learner::Networks;
use thalweg_gain::replay::{ARMS, Connection, Cost, First, Stretch};
use thalweg_learner::{End, Sample, window};
use thalweg_units::file;
use thalweg_units::prefix::{MAPPED, Prefix};

use thalweg_terminal::output;

/// Name of the format.
pub const FORMAT: &str = "thalweg-decisions";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Largest file.
const MAX_BYTES: u64 = 4 << 30;
/// Error of a sum of probabilities, each of which has 16 bits.
const ROUNDING: f64 = 0.01;
/// Largest cost of an initial window, bits, and the least below 0.
const COST_MAX: f64 = 32.0;
/// Cost of a retransmission of all segments, bits (`thalweg_learner::window::report`).
const WASTE_BITS: f64 = 3.0;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Head {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Names of the arms, in order of their slots.
    #[serde(default)]
    pub arms: Vec<String>,
}

/// A connection: the decision about it, and its measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// When its arm was chosen, milliseconds since 1970.
    pub time_ms: i64,
    /// Network namespace cookie.
    pub netns: u64,
    /// Key of the host record.
    pub host: String,
    /// The system's arm, if it is one.
    pub system: Option<String>,
    /// The arm it used from then on.
    pub arm: String,
    /// The permitted arms.
    pub allowed: Vec<String>,
    /// Why the arm was chosen.
    pub reason: String,
    /// The record that chose, if it was not the host's: `fleet-prefix` and `fleet-named` are what other
    /// agents told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Whether the connection is in the control group.
    pub control: bool,
    /// Probability of each arm; one without is not chosen.
    pub propensities: BTreeMap<String, f64>,
    /// Smoothed RTT at establishment, µs; 0: unknown.
    pub handshake_rtt_us: u32,
    /// Version of the rule of choice.
    pub rule: u16,
    /// Hash of its parameters.
    pub parameters: u32,
    /// Number of connections that it stands for: one over the share of host-hours kept.
    pub stands_for: f64,
    /// Initial window, where these are learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Measurement intervals.
    pub stretches: Vec<Measured>,
}

/// The initial window of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Size of the window, segments.
    pub segments: u32,
    /// Probability of that size.
    pub propensity: f64,
    /// The time of the transfer in units of the round trips that it takes with the kernel's own
    /// window, bits; `None`: it said nothing about the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_bits: Option<f64>,
}

/// A measurement interval.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// End of the interval, milliseconds since 1970.
    pub time_ms: i64,
    /// Arm of the interval, if its congestion control is one.
    pub arm: Option<String>,
    /// Cause of the end.
    pub end: String,
    /// Acknowledged bytes.
    pub bytes: u64,
    /// Busy time if the kernel reports it, else wall time, µs.
    pub duration_us: u64,
    /// Wall time, µs.
    pub wall_us: u64,
    /// Smoothed RTT at the end, µs.
    pub srtt_us: u32,
    /// Minimum RTT, µs.
    pub min_rtt_us: u32,
    /// Data segments sent.
    pub segs_out: u32,
    /// Retransmissions among them.
    pub retrans: u32,
    /// Time limited by the receiver's window, µs.
    pub receiver_us: u32,
    /// Time limited by the send buffer, µs.
    pub buffer_us: u32,
    /// Whether the last rate sample was limited by the application.
    pub app_limited: bool,
}

/// The last line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tail {
    /// Names of the causes of an interval's end.
    pub end: u64,
}

/// Names of stretches' ends.
const ENDS: [(&str, End); 6] = [
    ("fin-local", End::FinLocal),
    ("fin-remote", End::FinRemote),
    ("reset", End::Reset),
    ("timeout", End::Timeout),
    ("switch", End::Switch),
    ("stretch", End::Stretch),
];

/// The content of a file.
pub struct Decisions {
    /// Names of the arms.
    pub arms: Vec<String>,
    /// Connections in order of time.
    pub connections: Vec<Connection>,
    /// Connections whose initial window was chosen, in order of time.
    pub windows: Vec<First>,
}

/// Reads a file whole. `networks`: how long the prefixes are whose records choose windows.
///
/// # Errors
/// A fault of the file, with file and line.
pub fn read_decisions(path: &Path, networks: &Networks) -> Result<Decisions> {
    let name = path.display().to_string();
    let mut lines = BufReader::new(file::open_regular(path, MAX_BYTES)?).split(b'\n');
    let head = match lines.next() {
        None => bail!("{name}: the file is empty, expected decisions"),
        Some(line) => parse_head(&line.with_context(|| name.clone())?)
            .with_context(|| line_position(&name, 1))?,
    };
    let mut reader = Reader::new(head.arms, networks);
    for (line, number) in lines.zip(2..) {
        let line = line.with_context(|| name.clone())?;
        let count = reader.connections.len();
        if let Ok(tail) = serde_json::from_slice::<Tail>(&line) {
            if tail.end != count as u64 {
                bail!(
                    "{name}:{number}: found {count} connections, expected {}",
                    tail.end
                );
            }
            return Ok(reader.sorted_by_time());
        }
        let line = match serde_json::from_slice(&line) {
            Ok(line) => line,
            Err(error) if error.is_eof() => bail!("{}", cut_short(&name, count)),
            Err(error) => bail!(
                "{}: {}",
                line_position(&name, number),
                message_without_position(&error)
            ),
        };
        reader
            .add_line(&line)
            .with_context(|| line_position(&name, number))?;
    }
    bail!("{}", cut_short(&name, reader.connections.len()))
}

fn line_position(name: &str, number: usize) -> String {
    format!("{name}:{number}")
}

fn cut_short(name: &str, connections: usize) -> String {
    let connections = output::count_text(connections, "connection");
    format!("{name}: the file is cut short after {connections}, expected its last line")
}

/// A message without the position, which counts from the start of the line.
fn message_without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

fn parse_head(line: &[u8]) -> Result<Head> {
    let head = serde_json::from_slice::<Head>(line).ok();
    let Some(head) = head.filter(|head| head.format == FORMAT) else {
        bail!("found another first line, expected the head of a file of decisions")
    };
    if head.version != VERSION {
        bail!("found version {}, expected {VERSION}", head.version);
    }
    if head.arms.is_empty() || head.arms.len() > ARMS {
        bail!("found {} arms, expected 1 to {ARMS}", head.arms.len());
    }
    Ok(head)
}

/// Turns lines into connections.
struct Reader<'a> {
    arms: Vec<String>,
    lengths: &'a Networks,
    hosts: HashMap<(u64, String), u64>,
    networks: HashMap<(u64, String), u64>,
    connections: Vec<Connection>,
    windows: Vec<First>,
}

impl<'a> Reader<'a> {
    fn new(arms: Vec<String>, lengths: &'a Networks) -> Self {
        Self {
            arms,
            lengths,
            hosts: HashMap::new(),
            networks: HashMap::new(),
            connections: Vec::new(),
            windows: Vec::new(),
        }
    }

    fn sorted_by_time(mut self) -> Decisions {
        self.connections
            .sort_by_key(|connection| connection.start_ns);
        self.windows.sort_by_key(|first| first.start_ns);
        Decisions {
            arms: self.arms,
            connections: self.connections,
            windows: self.windows,
        }
    }

    fn arm_index(&self, name: &str) -> Result<usize> {
        let known = self.arms.iter().position(|arm| arm == name);
        known.with_context(|| format!("found the arm {name:?}, expected one of the first line"))
    }

    fn optional_arm(&self, name: Option<&String>) -> Result<Option<usize>> {
        name.map(|name| self.arm_index(name)).transpose()
    }

    fn add_line(&mut self, line: &Line) -> Result<()> {
        let arm = self.arm_index(&line.arm)?;
        let mut allowed = 0;
        for name in &line.allowed {
            allowed |= 1u16 << self.arm_index(name)?;
        }
        let propensities = self.arm_propensities(line)?;
        if propensities[arm] <= 0.0 {
            bail!("propensities: found none of {:?}, the chosen arm", line.arm);
        }
        if !(line.stands_for >= 1.0 && line.stands_for.is_finite()) {
            bail!("stands_for: found {}, expected 1 or more", line.stands_for);
        }
        let stretches = line
            .stretches
            .iter()
            .map(|measured| self.measured_interval(measured));
        let stretches = stretches.collect::<Result<_>>()?;
        let next = self.hosts.len() as u64;
        let host = (line.netns, line.host.clone());
        let host = *self.hosts.entry(host).or_insert(next);
        if let Some(window) = &line.window {
            let first = self.chosen_window(line, window, host);
            self.windows.push(first.context("window")?);
        }
        self.connections.push(Connection {
            host,
            start_ns: ms_to_ns(line.time_ms)?,
            system: self.optional_arm(line.system.as_ref())?,
            arm,
            allowed,
            control: line.control,
            propensities,
            stands_for: line.stands_for,
            stretches,
        });
        Ok(())
    }

    /// The choice of an initial window.
    fn chosen_window(&mut self, line: &Line, window: &Window, host: u64) -> Result<First> {
        let &Window {
            segments,
            propensity,
            cost_bits,
        } = window;
        let Some(arm) = window::window_arm(segments) else {
            bail!(
                "segments: found {segments}, expected an even number from {} to {}",
                window::LEAST,
                window::MOST
            )
        };
        if !(propensity > 0.0 && propensity <= 1.0) {
            bail!("propensity: found {propensity}, expected more than 0, and 1 at most");
        }
        let last = line.stretches.last();
        let cost = match (cost_bits, last) {
            (None, _) => None,
            (Some(bits), _) if bits.is_nan() || bits.abs() > COST_MAX => {
                bail!("cost_bits: found {bits:?}, expected -{COST_MAX} to {COST_MAX}")
            }
            (Some(_), None) => bail!("cost_bits: found one without a stretch"),
            (Some(bits), Some(last)) => {
                let segs = f64::from(last.segs_out.max(1));
                let waste = WASTE_BITS * (f64::from(last.retrans) / segs).min(1.0);
                Some(Cost {
                    bits,
                    time_bits: bits - waste,
                })
            }
        };
        let next = self.networks.len() as u64;
        let network = (line.netns, network_of(&line.host, self.lengths));
        Ok(First {
            host,
            network: *self.networks.entry(network).or_insert(next),
            start_ns: ms_to_ns(line.time_ms)?,
            arm,
            propensity,
            control: line.control,
            stands_for: line.stands_for,
            bytes: line.stretches.iter().map(|it| it.bytes).sum(),
            cost,
        })
    }

    fn arm_propensities(&self, line: &Line) -> Result<[f64; ARMS]> {
        let mut propensities = [0.0; ARMS];
        for (name, &share) in &line.propensities {
            if !(0.0..=1.0).contains(&share) {
                bail!("propensities.{name}: found {share}, expected 0 to 1");
            }
            propensities[self.arm_index(name)?] = share;
        }
        let sum: f64 = propensities.iter().sum();
        if line.propensities.is_empty() {
            bail!("propensities: found none, expected one of each permitted arm");
        }
        if (sum - 1.0).abs() > ROUNDING {
            bail!("propensities: found a sum of {sum:.3}, expected 1");
        }
        Ok(propensities.map(|share| share / sum))
    }

    fn measured_interval(&self, measured: &Measured) -> Result<Stretch> {
        let end = ENDS.iter().find(|(name, _)| *name == measured.end);
        let Some((_, end)) = end else {
            bail!("end: found {:?}, expected how a stretch ends", measured.end)
        };
        Ok(Stretch {
            end_ns: ms_to_ns(measured.time_ms)?,
            arm: self.optional_arm(measured.arm.as_ref())?,
            sample: learning_sample(measured, *end),
        })
    }
}

/// The network of a host, as text. A host without address is one by itself.
fn network_of(host: &str, lengths: &Networks) -> String {
    let Ok(prefix) = Prefix::parse(host) else {
        return host.to_owned();
    };
    let length = match prefix.is_ipv4() {
        true => u32::from(MAPPED) + lengths.ipv4_prefix,
        false => lengths.ipv6_prefix,
    };
    let whole = prefix.length128();
    let cut = prefix.cut_to(u8::try_from(length).map_or(whole, |length| length.min(whole)));
    format!("{}/{}", cut.address(), cut.length())
}

/// Sample that a rule learns from. Events have no rate sample, which would show pauses in wall
/// time, and do not tell slow start from the rest.
fn learning_sample(measured: &Measured, end: End) -> Sample {
    Sample {
        bytes: measured.bytes,
        duration_us: measured.duration_us,
        rate_delivered_bytes: 0,
        rate_interval_us: 0,
        srtt_us: measured.srtt_us,
        min_rtt_us: measured.min_rtt_us,
        segs_out: measured.segs_out,
        retrans: measured.retrans,
        steady_segs: measured.segs_out,
        steady_retrans: measured.retrans,
        loss_srtt_us: 0,
        limited_us: u64::from(measured.receiver_us) + u64::from(measured.buffer_us),
        busy_time: true,
        end,
    }
}

fn ms_to_ns(ms: i64) -> Result<u64> {
    let ns = u64::try_from(ms)
        .ok()
        .and_then(|ms| ms.checked_mul(1_000_000));
    ns.with_context(|| format!("time_ms: found {ms}, expected milliseconds since 1970"))
}
