//! What a connection is expected to take: means of strata, over both groups.

use crate::class::{RTTS, SIZES, rtt_class, size_class};
use crate::limits::Chronographs;
use crate::row::{ROWS, Row};

/// Measurements of a connection, or of a stretch of it, at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connection {
    /// Acknowledged bytes.
    pub bytes: u64,
    /// Time with data outstanding; 0 = none or unknown.
    pub busy_us: u64,
    /// Data segments sent, retransmissions included.
    pub segs_out: u32,
    /// Retransmissions among them.
    pub retrans: u32,
    /// Smoothed RTT at the end; 0 = unknown.
    pub srtt_us: u32,
    /// Lowest RTT; 0 = unknown.
    pub min_rtt_us: u32,
    /// Smoothed RTT at establishment; 0 = unknown.
    pub handshake_rtt_us: u32,
    /// Reset or time-out, or not; `None` for a stretch after which the connection went on.
    pub failed: Option<bool>,
    /// Times that the connection was limited; `None` where the kernel does not report them.
    pub held: Option<Chronographs>,
}

impl Connection {
    /// The value of a measure; none where the connection says nothing of it.
    pub fn measure_value(&self, measure: Row) -> Option<f64> {
        match measure {
            Row::Retransmitted => (self.segs_out > 0)
                .then(|| (f64::from(self.retrans) / f64::from(self.segs_out)).min(1.0)),
            Row::Failed => self.failed.map(f64::from),
            Row::Inflation => (self.srtt_us > 0 && self.min_rtt_us > 0).then(|| {
                // A queue that is short beside the path costs nothing.
                let guard = f64::from(self.min_rtt_us.clamp(200, 10_000));
                let (now, least) = (f64::from(self.srtt_us), f64::from(self.min_rtt_us));
                ((now + guard) / (least + guard)).log2().max(0.0)
            }),
            Row::Time | Row::TimeOf(_) => {
                (self.bytes > 0 && self.busy_us > 0).then(|| (self.busy_us as f64).log2())
            }
        }
    }
}

/// One measure in one stratum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stratum {
    /// Connections so far.
    pub count: u64,
    /// Running mean of the stratum's values; recent ones count more beyond [`MEMORY`] of them.
    pub mean: f64,
}

/// Connections that a stratum's mean remembers.
const MEMORY: u64 = 4096;

/// Means of the four measures by stratum. Connections are compared with the mean *before* them,
/// whatever their group, so that a mean that is off costs precision, but is no bias.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    strata: Vec<Stratum>,
}

impl Default for Baseline {
    fn default() -> Self {
        let strata = Row::MEASURES.len() * SIZES * RTTS;
        Self {
            strata: vec![Stratum::default(); strata],
        }
    }
}

impl Baseline {
    /// All strata, for keeping: index and content of those that are in use.
    pub fn strata(&self) -> impl Iterator<Item = (usize, Stratum)> + '_ {
        let known = self.strata.iter().copied().enumerate();
        known.filter(|(_, stratum)| stratum.count > 0)
    }

    /// Puts a kept stratum back; false if the index or the mean is none.
    pub fn restore(&mut self, index: usize, stratum: Stratum) -> bool {
        match self.strata.get_mut(index) {
            Some(place) if stratum.mean.is_finite() => {
                *place = stratum;
                true
            }
            _ => false,
        }
    }

    /// How a connection differs from its strata, by row; `None` where it says nothing, and for the
    /// first of a stratum. Then it counts for their means.
    pub fn compare_connection(&mut self, connection: &Connection) -> [Option<f64>; ROWS] {
        let size = size_class(connection.bytes);
        let rtt = rtt_class(connection.handshake_rtt_us);
        let mut residuals = [None; ROWS];
        for (index, measure) in Row::MEASURES.into_iter().enumerate() {
            let Some(value) = connection.measure_value(measure) else {
                continue;
            };
            // What has failed is smaller for it: failures know no sizes.
            let size = if measure == Row::Failed { 0 } else { size };
            let stratum = &mut self.strata[(index * SIZES + size) * RTTS + rtt];
            residuals[index] = stratum.add(value, measure.residual_clip());
        }
        residuals[Row::TimeOf(size).index()] = residuals[Row::Time.index()];
        residuals
    }
}

impl Stratum {
    fn add(&mut self, value: f64, clip: f64) -> Option<f64> {
        self.count += 1;
        if self.count == 1 {
            self.mean = value;
            return None;
        }
        let residual = (value - self.mean).clamp(-clip, clip);
        self.mean += residual / self.count.min(MEMORY) as f64;
        Some(residual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Connection = Connection {
        bytes: 50_000,
        busy_us: 1 << 20,
        segs_out: 40,
        retrans: 4,
        srtt_us: 50_000,
        min_rtt_us: 20_000,
        handshake_rtt_us: 20_000,
        failed: Some(false),
        held: None,
    };

    #[test]
    fn a_connection_is_compared_with_those_before() {
        let mut baseline = Baseline::default();
        assert_eq!(baseline.compare_connection(&PLAIN), [None; ROWS]);
        let worse = Connection {
            busy_us: 1 << 21,
            retrans: 6,
            srtt_us: 110_000,
            failed: Some(true),
            ..PLAIN
        };
        let residuals = baseline.compare_connection(&worse);
        // 40 segments: 0.15 retransmitted, not 0.1; (110 + 10) / (20 + 10) is four, not two.
        let close = |row: Row, value: f64| (residuals[row.index()].unwrap() - value).abs() < 1e-9;
        assert!(
            close(Row::Time, 1.0) && close(Row::TimeOf(2), 1.0),
            "{residuals:?}"
        );
        assert!(close(Row::Retransmitted, 0.05) && close(Row::Inflation, 1.0));
        assert!(close(Row::Failed, 1.0) && residuals[Row::TimeOf(3).index()].is_none());
        // The mean is now that of both.
        let third = baseline.compare_connection(&PLAIN);
        assert_eq!(third[Row::Time.index()], Some(-0.5));
    }

    #[test]
    fn what_a_connection_does_not_tell_is_left_out() {
        let mut baseline = Baseline::default();
        baseline.compare_connection(&PLAIN);
        let silent = Connection {
            handshake_rtt_us: PLAIN.handshake_rtt_us,
            failed: None,
            ..Connection::default()
        };
        assert_eq!(baseline.compare_connection(&silent), [None; ROWS]);
        // Small connections fail as large ones do.
        let failed = Connection {
            failed: Some(true),
            ..silent
        };
        let residuals = baseline.compare_connection(&failed);
        assert_eq!(residuals[Row::Failed.index()], Some(1.0));
    }

    #[test]
    fn one_that_hung_is_clipped() {
        let mut baseline = Baseline::default();
        baseline.compare_connection(&PLAIN);
        let hung = Connection {
            busy_us: 1 << 60,
            ..PLAIN
        };
        assert_eq!(
            baseline.compare_connection(&hung)[0],
            Some(Row::Time.residual_clip())
        );
    }

    #[test]
    fn strata_are_kept_and_put_back() {
        let mut baseline = Baseline::default();
        baseline.compare_connection(&PLAIN);
        let mut again = Baseline::default();
        for (index, stratum) in baseline.strata() {
            assert!(again.restore(index, stratum));
        }
        assert_eq!(again, baseline);
        let broken = Stratum {
            count: 1,
            mean: f64::NAN,
        };
        assert!(!again.restore(0, broken) && !again.restore(1 << 20, Stratum::default()));
    }
}
