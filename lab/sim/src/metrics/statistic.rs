//! Statistics by which runs are compared: one number each, defined once.

use serde::Serialize;

use super::{Latency, Outcome};

/// Heading of a column, with the unit; unit behind a number; and value in a run, none if nothing
/// was measured.
type Definition = (&'static str, &'static str, fn(&Outcome) -> Option<f64>);

thalweg_report::statistics! {
    /// A number that describes a run.
    Statistic: Definition;
    Utilisation, "utilisation", ("SU %", " %", |run| Some(run.utilisation_percent)),
        "Switch utilisation (SU): what left the ports to the receivers, of their line rate.";
    Fairness, "fairness", ("FR %", " %", |run| Some(run.fairness_percent)),
        "Fairness (FR): least rate of a flow over the greatest; 0 where nothing arrived.";
    HostFairness, "host-fairness", ("hosts' FR %", " %", |run| Some(run.host_fairness_percent)),
        "The same of the sums of each sending host's flows.";
    QueueLatency, "queue-latency", ("QL µs", " µs", |run| Some(measured_queue_latency(run)?.mean_us)),
        "Queue latency (QL): mean time that packets have waited in switches; none where nothing arrived.";
    QueueLatencyP99, "queue-latency-p99", ("QL p99 µs", " µs", |run| Some(measured_queue_latency(run)?.p99_us)),
        "99th percentile of the same.";
    SmoothedDelay, "smoothed-delay", ("RTT+ µs", " µs", |run| Some(run.smoothed_delay?.p50_us)),
        "Median of smoothed round-trip times less the shortest one (sender \"linux\").";
    SmoothedDelayP95, "smoothed-delay-p95", ("RTT+ p95 µs", " µs", |run| Some(run.smoothed_delay?.p95_us)),
        "95th percentile of the same.";
    Dropped, "dropped", ("DR Gbit/s", " Gbit/s", |run| Some(run.dropped_gbps)),
        "Drop rate (DR): what full queues dropped.";
    DroppedPercent, "dropped-percent", ("dropped %", " %", |run| Some(run.dropped_percent)),
        "The same, of what left the ports to the receivers or was dropped.";
    Recovery, "recovery", ("RT s", " s", |run| run.long_short?.recovery_s),
        "Recovery time (RT): until the long flow is back at 95 % of the line rate; none if it once was not.";
    LongRate, "long-rate", ("LBW Gbit/s", " Gbit/s", |run| Some(run.long_short?.long_gbps)),
        "Bandwidth of the long flow (LBW).";
    SlowdownP50, "slowdown-p50", ("slowdown p50", "", |run| Some(run.slowdowns.last()?.p50)),
        "Median of flow completion times over those of the flow alone in the network.";
    SlowdownP99, "slowdown-p99", ("slowdown p99", "", |run| Some(run.slowdowns.last()?.p99)),
        "99th percentile of the same.";
}

/// The queueing delay of the packets that arrived; none where nothing arrived, as a delay of 0
/// would be the best of all.
fn measured_queue_latency(run: &Outcome) -> Option<&Latency> {
    (run.utilisation_percent > 0.0).then_some(&run.queue_latency)
}

impl Statistic {
    /// Heading of a column, with the unit.
    pub fn column_heading(self) -> &'static str {
        self.definition().0
    }

    /// Unit, for use behind a number.
    pub fn unit_suffix(self) -> &'static str {
        self.definition().1
    }

    /// Whether only hosts with TCP have it.
    pub fn is_of_tcp(self) -> bool {
        matches!(self, Self::SmoothedDelay | Self::SmoothedDelayP95)
    }

    /// Value of the statistic in a run; none if nothing was measured.
    pub fn value_in(self, outcome: &Outcome) -> Option<f64> {
        self.definition().2(outcome)
    }
}

/// Mean and spread of a statistic over the seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Mean.
    pub mean: f64,
    /// Standard deviation of the sample (n − 1); 0 for one value.
    pub deviation: f64,
    /// Least value.
    pub least: f64,
    /// Greatest value.
    pub most: f64,
    /// Runs that had a value.
    pub runs: usize,
}

impl Summary {
    /// Summary of these values; none without values.
    pub fn from_values(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let runs = values.len();
        let mean = values.iter().sum::<f64>() / runs as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self {
            mean,
            deviation: (squares / (runs.max(2) - 1) as f64).sqrt(),
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            runs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_files_are_the_keys() {
        for statistic in Statistic::ALL {
            let name = serde_json::to_value(statistic).unwrap();
            assert_eq!(name, statistic.key());
        }
    }

    #[test]
    fn summaries_by_hand() {
        // Mean 5, squares 9 + 1 + 1 + 9 = 20, over 3.
        let summary = Summary::from_values(&[2.0, 4.0, 6.0, 8.0]).unwrap();
        assert_eq!((summary.mean, summary.least, summary.most), (5.0, 2.0, 8.0));
        assert!((summary.deviation - (20.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(Summary::from_values(&[7.0]).unwrap().deviation, 0.0);
        assert_eq!(Summary::from_values(&[]), None);
    }
}
