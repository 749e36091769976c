//! Mode `gain`: what `thalweg gain` finds, beside what the laboratory measures directly.
//!
//! In that mode the agent compares hosts that it treats with those of its control group. The
//! laboratory compares the same transfers in two other modes: with an agent for all of them, and
//! with the system's default. Both must come to the same.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use thalweg_gain::{Connection as Ended, Row, size_class, size_words};
use thalweg_report::sample;
use thalweg_units::random::Random;

use crate::error::Error;
use crate::mode::Mode;
use crate::outcome::{Connection, ModeOutcome};
use crate::scenario::{Scenario, TrafficKind};

/// Resamples of the bootstrap, its seed, and the confidence level of its intervals.
const RESAMPLES: u32 = 2_000;
const SEED: u64 = 1;
const CONFIDENCE: f64 = 0.95;

/// The answer of `GET /v1/gain`, all groups together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// First line of the agent's answer.
    pub summary: String,
    /// Rows of the comparison; none before a connection has ended.
    pub rows: Vec<GainRow>,
}

/// A row: treated connections against the control group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GainRow {
    /// `time`, `retransmitted`, `failed` or `rtt`.
    pub measure: String,
    /// The size class, of those by size.
    pub size: Option<String>,
    /// `percent` or `points`.
    pub unit: String,
    /// Host-hours of the control group.
    pub control: u64,
    /// Host-hours of the others.
    pub treated: u64,
    /// The effect, in the unit; above 0 is more. None without connections on both sides.
    pub effect: Option<f64>,
    /// The interval's lower end; none with too few host-hours.
    pub low: Option<f64>,
    /// Upper end of the interval.
    pub high: Option<f64>,
    /// `better`, `worse`, `same` or `unknown`.
    pub verdict: String,
    /// The difference as measured directly; none without the modes for it.
    #[serde(default)]
    pub direct: Option<Direct>,
}

/// The mean difference of the same transfers in two modes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Direct {
    /// In the row's unit.
    pub effect: f64,
    /// Lower end of the 95 % interval: a percentile bootstrap over remote addresses.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Transfers that both modes have.
    pub transfers: u64,
    /// Remote addresses.
    pub hosts: u64,
}

impl Gain {
    /// Reads the agent's answer.
    ///
    /// # Errors
    /// [`Error::Process`] if it is not one.
    pub(crate) fn parse(body: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Answer {
            summary: String,
            groups: Vec<Group>,
        }
        #[derive(Deserialize)]
        struct Group {
            rows: Vec<GainRow>,
        }
        let answer: Answer = serde_json::from_str(body)
            .map_err(|error| Error::system("cannot understand the agent's gain")(error.into()))?;
        let all = answer.groups.into_iter().next();
        Ok(Self {
            summary: answer.summary,
            rows: all.map_or_else(Vec::new, |group| group.rows),
        })
    }

    /// The row of the time per transfer, of all sizes.
    pub fn transfer_time_row(&self) -> Option<&GainRow> {
        let is_time = |row: &&GainRow| row.measure == "time" && row.size.is_none();
        self.rows.iter().find(is_time)
    }

    /// Number of rows whose interval does not hold what was measured directly; infinite where the
    /// time per transfer has no interval.
    ///
    /// # Errors
    /// Why there is nothing to compare with, in words.
    pub(crate) fn missed_rows(&self) -> Result<f64, String> {
        if self.rows.iter().all(|row| row.direct.is_none()) {
            return Err("mode thalweg or the default's was not run".to_owned());
        }
        match self.transfer_time_row() {
            Some(time) if time.interval_holds().is_some() => {
                let missed = self
                    .rows
                    .iter()
                    .filter(|row| row.interval_holds() == Some(false));
                Ok(missed.count() as f64)
            }
            _ => Ok(f64::INFINITY),
        }
    }
}

impl GainRow {
    /// Whether the interval holds what was measured directly; none without one of the two.
    pub fn interval_holds(&self) -> Option<bool> {
        let (low, high) = self.low.zip(self.high)?;
        let direct = self.direct?.effect;
        Some(low <= direct && direct <= high)
    }

    fn row_kind(&self) -> Option<Row> {
        Row::all().find(|row| {
            let size = match row {
                Row::TimeOf(size) => Some(size_words(*size)),
                _ => None,
            };
            row.measure_name() == self.measure && size == self.size.as_deref()
        })
    }
}

/// Puts what was measured directly beside the agent's rows.
pub(crate) fn compare_with_measured(modes: &mut [ModeOutcome], scenario: &Scenario) {
    // The transfers of other traffic are not the agent's connections.
    if !matches!(scenario.traffic.kind, TrafficKind::Short { .. }) {
        return;
    }
    let default = Mode::Fixed(scenario.system.default_cc.clone());
    let find = |wanted: &Mode| modes.iter().find(|mode| mode.mode == *wanted);
    let without = find(&default).or_else(|| find(&Mode::Baseline));
    let (Some(with), Some(without)) = (find(&Mode::Thalweg), without) else {
        return;
    };
    let pairs = transfer_pairs(with, without);
    for mode in modes {
        let Some(gain) = &mut mode.gain else { continue };
        for row in &mut gain.rows {
            row.direct = row
                .row_kind()
                .and_then(|kind| direct_difference(kind, &pairs));
        }
    }
}

/// One transfer in both modes.
struct Pair {
    cluster: (String, Option<IpAddr>),
    with: Ended,
    without: Ended,
}

/// The transfers that both modes have. Those of a round go to a host in the same order, and have
/// the same sizes.
fn transfer_pairs(with: &ModeOutcome, without: &ModeOutcome) -> Vec<Pair> {
    let by_round = |mode: &ModeOutcome| {
        let mut rounds: BTreeMap<(u32, String), Vec<Connection>> = BTreeMap::new();
        for one in &mode.connections {
            let round = rounds.entry((one.round, one.host.clone())).or_default();
            round.push(one.clone());
        }
        rounds
    };
    let mut others = by_round(without);
    let mut pairs = Vec::new();
    for (round, connections) in by_round(with) {
        let other = others.remove(&round).unwrap_or_default();
        pairs.extend(connections.iter().zip(&other).map(|(with, without)| Pair {
            cluster: (with.host.clone(), with.address),
            with: as_ended(with),
            without: as_ended(without),
        }));
    }
    pairs
}

/// A connection as the agent knows it, with the time that its user waited.
fn as_ended(connection: &Connection) -> Ended {
    let clipped = |value: u64| value.try_into().unwrap_or(u32::MAX);
    Ended {
        bytes: connection.flow_bytes.unwrap_or(0),
        busy_us: connection.fct_us.map_or(0, |us| us as u64),
        segs_out: clipped(connection.sent_segments.unwrap_or(0)),
        retrans: clipped(connection.retransmits),
        srtt_us: connection.srtt_us.last().copied().unwrap_or(0),
        min_rtt_us: connection.min_rtt_us.map_or(0, |us| us as u32),
        handshake_rtt_us: 0,
        failed: Some(connection.error.is_some()),
        held: None,
    }
}

/// Sum and number of the differences of a host's transfers.
type Sums = (f64, u64);

/// The mean difference of a row; none without transfers that tell of it.
fn direct_difference(row: Row, pairs: &[Pair]) -> Option<Direct> {
    let mut hosts: BTreeMap<_, Sums> = BTreeMap::new();
    for pair in pairs {
        if matches!(row, Row::TimeOf(size) if size != size_class(pair.with.bytes)) {
            continue;
        }
        if let Some((with, without)) = pair
            .with
            .measure_value(row)
            .zip(pair.without.measure_value(row))
        {
            let (sum, count) = hosts.entry(&pair.cluster).or_default();
            *sum += with - without;
            *count += 1;
        }
    }
    let hosts: Vec<Sums> = hosts.into_values().collect();
    let effect = host_mean(hosts.iter().copied())?;
    let mut random = Random::new(SEED);
    let resampled: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            let draws = (0..hosts.len()).map(|_| hosts[random.below(hosts.len() as u64) as usize]);
            host_mean(draws)
        })
        .collect();
    let tail = (1.0 - CONFIDENCE) / 2.0;
    Some(Direct {
        effect: row.in_percent(effect),
        low: row.in_percent(sample::quantile(&resampled, tail)?),
        high: row.in_percent(sample::quantile(&resampled, 1.0 - tail)?),
        transfers: hosts.iter().map(|(_, count)| count).sum(),
        hosts: hosts.len() as u64,
    })
}

fn host_mean(hosts: impl Iterator<Item = Sums>) -> Option<f64> {
    let (sum, count) = hosts.fold((0.0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
#[path = "gain_tests.rs"]
mod tests;
