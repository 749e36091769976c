//! Quantities of a connection. Each is defined here once, for tables, page, `results.json`, `lab
//! compare` and expectations.

use serde::Serialize;
use thalweg_report::sample::{self, Weighted};

use crate::figure::{Better, Unit};
use crate::outcome::{Connection, ModeOutcome};

/// A quantity of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// [`Measure::description`] defines this and the others.
    Goodput,
    /// Segments retransmitted.
    RetransmissionShare,
    /// Single round-trip times under load.
    Rtt,
    /// Smoothed round-trip time under load.
    Srtt,
    /// Smoothed round-trip time above the least.
    QueueDelay,
    /// Flow-completion time.
    Fct,
}

impl Measure {
    /// All measures, in the order of the tables.
    pub const ALL: [Self; 6] = [
        Self::Goodput,
        Self::RetransmissionShare,
        Self::Rtt,
        Self::Srtt,
        Self::QueueDelay,
        Self::Fct,
    ];

    /// Name in files and on the command line.
    pub fn key(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::RetransmissionShare => "retransmission-share",
            Self::Rtt => "rtt",
            Self::Srtt => "srtt",
            Self::QueueDelay => "queue-delay",
            Self::Fct => "fct",
        }
    }

    /// Name for a reader.
    pub fn title(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::RetransmissionShare => "retransmission share",
            Self::Rtt => "RTT under load",
            Self::Srtt => "smoothed RTT under load",
            Self::QueueDelay => "queue delay",
            Self::Fct => "flow-completion time",
        }
    }

    /// Definition in a sentence.
    pub fn description(self) -> &'static str {
        match self {
            Self::Goodput => {
                "what the receiver got, over the time it took; 0 where the connection failed"
            }
            Self::RetransmissionShare => "segments retransmitted, of all data segments sent",
            Self::Rtt => {
                "from when data leaves the sender until it is first acknowledged, by TCP timestamps, one sample a millisecond at most"
            }
            Self::Srtt => {
                "the sender's smoothed round-trip time (tcpi_rtt), sampled every 100 ms while it sends"
            }
            Self::QueueDelay => {
                "smoothed round-trip time less the least round-trip time that any connection of the scenario saw"
            }
            Self::Fct => {
                "from the call of connect until the receiver has the last byte of a flow of known size; infinite where it failed"
            }
        }
    }

    /// Unit of the measure.
    pub fn unit(self) -> Unit {
        match self {
            Self::Goodput => Unit::BitsPerSecond,
            Self::RetransmissionShare => Unit::Share,
            Self::Rtt | Self::Srtt | Self::QueueDelay | Self::Fct => Unit::Microseconds,
        }
    }

    /// Which direction is an improvement.
    pub fn better(self) -> Better {
        match self {
            Self::Goodput => Better::Higher,
            _ => Better::Lower,
        }
    }

    /// The values of a connection, each with the number of times it was measured. Round-trip times
    /// have one value a sample. `least_rtt_us` is the scenario's.
    pub fn connection_values(
        self,
        connection: &Connection,
        least_rtt_us: Option<f64>,
    ) -> Vec<Weighted> {
        let one = |value: Option<f64>| value.map(|value| (value, 1)).into_iter().collect();
        let smoothed = |origin: f64| {
            let samples = connection.srtt_us.iter();
            samples
                .map(|us| ((f64::from(*us) - origin).max(0.0), 1))
                .collect()
        };
        match self {
            Self::Goodput => one(Some(connection.goodput_bps)),
            Self::RetransmissionShare => one(connection.retransmission_share()),
            Self::Rtt => connection.rtt_us.clone(),
            Self::Srtt => smoothed(0.0),
            Self::QueueDelay => least_rtt_us.map(smoothed).unwrap_or_default(),
            // A failed flow counts as the slowest; leaving it out would flatter the mode.
            Self::Fct => one(match (connection.flow_bytes, &connection.error) {
                (Some(_), Some(_)) => Some(f64::INFINITY),
                _ => connection.fct_us,
            }),
        }
    }

    /// One value per connection, the median of several. `thalweg-lab compare` resamples these.
    pub fn connection_value(
        self,
        connection: &Connection,
        least_rtt_us: Option<f64>,
    ) -> Option<f64> {
        sample::weighted_quantile(&self.connection_values(connection, least_rtt_us), 0.5)
    }

    /// The values of all measured connections of a mode.
    pub fn mode_values<'a>(
        self,
        connections: impl Iterator<Item = &'a Connection>,
        outcome: &ModeOutcome,
    ) -> Vec<Weighted> {
        connections
            .flat_map(|connection| self.connection_values(connection, outcome.least_rtt_us))
            .collect()
    }
}

impl std::fmt::Display for Measure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.key())
    }
}

impl std::str::FromStr for Measure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|measure| measure.key() == text)
            .ok_or_else(|| {
                let known: Vec<&str> = Self::ALL.iter().map(|measure| measure.key()).collect();
                format!("expected one of {}, found {text:?}", known.join(", "))
            })
    }
}

/// Jain's fairness index, (Σx)²/(n·Σx²): 1 if all are equal, 1/n if one has everything (Jain, Chiu,
/// Hawe 1984). `None` if the sum is 0.
pub fn jain_index(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_has_its_known_values() {
        assert_eq!(jain_index(&[5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain_index(&[7.0, 0.0, 0.0, 0.0]), Some(0.25));
        // (1 + 3)² / (2 · (1 + 9)) = 0.8
        assert_eq!(jain_index(&[1.0, 3.0]), Some(0.8));
        assert_eq!((jain_index(&[]), jain_index(&[0.0])), (None, None));
    }

    #[test]
    fn a_connections_round_trip_time_is_the_median_of_its_samples() {
        let connection = Connection {
            rtt_us: vec![(20.5, 3), (900.0, 2)],
            ..Connection::default()
        };
        assert_eq!(Measure::Rtt.connection_value(&connection, None), Some(20.5));
        assert_eq!(
            Measure::Rtt.connection_value(&Connection::default(), None),
            None
        );
    }

    #[test]
    fn a_failed_flow_takes_for_ever_and_queue_delay_is_never_negative() {
        let mut connection = Connection {
            flow_bytes: Some(10_000),
            fct_us: Some(400.0),
            srtt_us: vec![50, 80],
            sent_segments: Some(100),
            retransmits: 5,
            ..Connection::default()
        };
        assert_eq!(
            Measure::Fct.connection_value(&connection, None),
            Some(400.0)
        );
        assert_eq!(
            Measure::QueueDelay.connection_values(&connection, Some(60.0)),
            [(0.0, 1), (20.0, 1)]
        );
        assert_eq!(
            Measure::RetransmissionShare.connection_values(&connection, None),
            [(0.05, 1)]
        );
        connection.error = Some("timed out".into());
        assert_eq!(
            Measure::Fct.connection_value(&connection, None),
            Some(f64::INFINITY)
        );
    }

    #[test]
    fn names_round_trip() {
        for measure in Measure::ALL {
            assert_eq!(measure.key().parse(), Ok(measure));
            assert_eq!(serde_json::to_value(measure).unwrap(), measure.key());
        }
        assert!(
            "latency"
                .parse::<Measure>()
                .unwrap_err()
                .contains("queue-delay")
        );
    }
}
