//! The report of a run.

use serde::Serialize;

/// Measurements of a run. Unless noted otherwise, they cover the measured time: from the end of the
/// warm-up to the end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Name of the scenario.
    pub scenario: String,
    /// Seed of the run.
    pub seed: u64,
    /// Simulated time, seconds.
    pub duration_s: f64,
    /// Simulated time before measuring starts, seconds.
    pub warmup_s: f64,
    /// Switch utilisation (SU): throughput of the ports to the receivers, percent of their line
    /// rate. The mean where there are several.
    pub utilisation_percent: f64,
    /// Min/max fairness (FR) of the flows' rates, percent; 0 where nothing arrived. Only endless
    /// flows count if there are any.
    pub fairness_percent: f64,
    /// Min/max fairness of the hosts' rates, each the sum of the host's flows, percent.
    pub host_fairness_percent: f64,
    /// Jain's index of the flows' rates, 1/n to 1; 0 where nothing arrived.
    pub jain: f64,
    /// Queueing delay in switches (QL) of packets that arrived.
    pub queue_latency: Latency,
    /// Dropped in switches, Gbit/s.
    pub dropped_gbps: f64,
    /// Dropped in switches, percent of the packets that left the ports to the receivers or were
    /// dropped.
    pub dropped_percent: f64,
    /// Packets of the whole run.
    pub counts: Counts,
    /// Only where long and short flows compete.
    pub long_short: Option<LongShort>,
    /// Each flow, in the scenario's order.
    pub flows: Vec<FlowOutcome>,
    /// Each used port of a switch.
    pub ports: Vec<PortOutcome>,
    /// Each time that all data of a flow had arrived, in the whole run.
    pub completions: Vec<Completion>,
    /// Slowdowns of the flows that started in the measured time: completion time over that of the
    /// same flow alone. By size; the last entry is all flows.
    pub slowdowns: Vec<super::Slowdown>,
    /// Load that arrived, where flows come and go.
    pub offered: Option<Offered>,
    /// Rates and queues over time, in the whole run, if the scenario requests them.
    pub series: Option<Series>,
    /// Queueing delay as TCP sees it; only with hosts of the sender "linux".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoothed_delay: Option<SmoothedDelay>,
}

/// Smoothed round-trip times of all connections, read every 100 ms, less the shortest round-trip
/// time of all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SmoothedDelay {
    /// Median, µs.
    pub p50_us: f64,
    /// 95th percentile, µs.
    pub p95_us: f64,
}

impl SmoothedDelay {
    /// Delay of these round-trip times, µs; none without any.
    pub(crate) fn from_samples(mut smoothed_us: Vec<u32>, shortest_us: u32) -> Option<Self> {
        smoothed_us.sort_unstable();
        let last = smoothed_us.len().checked_sub(1)?;
        let at = |share: f64| {
            let rtt_us = smoothed_us[(share * last as f64).round() as usize];
            f64::from(rtt_us.saturating_sub(shortest_us))
        };
        Some(Self {
            p50_us: at(0.5),
            p95_us: at(0.95),
        })
    }
}

/// A distribution of times, µs. Percentiles are within 1.6 %; mean and maximum are exact.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

/// Packets and events of the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Size of every data packet.
    pub packet_bytes: u32,
    /// Data packets that left a host.
    pub sent_packets: u64,
    /// Data packets that reached their receiver.
    pub delivered_packets: u64,
    /// Delivered packets that the receiver discarded (go-back-N).
    pub wasted_packets: u64,
    /// Packets dropped at a full queue.
    pub dropped_packets: u64,
    /// Packets in flight at the end.
    pub underway_packets: u64,
    /// Probe responses that controllers have handled.
    pub decisions: u64,
    /// Congestion notification packets.
    pub notifications: u64,
    /// PFC XOFF frames.
    pub pauses: u64,
    /// Events that the simulator handled.
    pub events: u64,
}

impl Counts {
    /// Whether every packet is accounted for.
    pub fn all_packets_accounted(&self) -> bool {
        self.sent_packets == self.delivered_packets + self.dropped_packets + self.underway_packets
    }
}

/// One flow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FlowOutcome {
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// New data that arrived, Gbit/s.
    pub gbps: f64,
}

/// An output port of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PortOutcome {
    /// Number. Port n leads to host n; ports between switches follow.
    pub port: u32,
    /// Switch of the port.
    pub switch: u32,
    /// Throughput, percent of the line rate.
    pub utilisation_percent: f64,
    /// Dropped packets.
    pub dropped_packets: u64,
}

/// The long flow among short ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LongShort {
    /// Recovery time (RT), seconds. It is the mean time from the arrival of the short flows' last
    /// byte to the start of recovery: the first 10 µs in which the long flow gets at least 95 % of
    /// the line rate. None if it once did not recover, or nothing was measured.
    pub recovery_s: Option<f64>,
    /// The least that RT can be, seconds: the same mean, in which an interruption without recovery
    /// counts with the time until the next one. None if nothing was measured.
    pub recovery_least_s: Option<f64>,
    /// Number of measured recoveries.
    pub recovered: u32,
    /// Interruptions after which the long flow did not recover before the next.
    pub not_recovered: u32,
    /// The long flow's rate (LBW), Gbit/s.
    pub long_gbps: f64,
}

/// All data of a flow has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Completion {
    /// The flow.
    pub flow: u32,
    /// Time when it started to send that data, µs.
    pub start_us: f64,
    /// Time until the last byte arrived, µs.
    pub time_us: f64,
    /// Bytes sent: whole packets.
    pub bytes: u64,
    /// `time_us` over the time that the same data takes alone. Alone, the flow sends at the rate of
    /// its narrowest link and nothing else is in flight.
    pub slowdown: f64,
}

/// Load that arrived where flows come and go, in the whole run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Offered {
    /// Flows.
    pub flows: u64,
    /// Data of the flows in whole packets, bytes.
    pub bytes: u64,
    /// Flows that have not ended.
    pub unfinished: u64,
    /// Largest number of flows that the simulator held at a time. An ended flow keeps its slot for
    /// a while.
    pub places: u64,
}

/// Rates and queues over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Sampling interval, µs.
    pub interval_us: f64,
    /// For each flow of the scenario, the rate of new data that arrived in each interval, Gbit/s.
    pub flow_gbps: Vec<Vec<f64>>,
    /// Distribution of the queueing delay in switches, in the measured time: each delay, µs, and
    /// the share of packets with no longer delay.
    pub queue_latency: Vec<(f64, f64)>,
    /// For each port to a receiver.
    pub queues: Vec<QueueSeries>,
}

/// A queue over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueSeries {
    /// Number of the port.
    pub port: u32,
    /// Sampling times, µs.
    pub at_us: Vec<f64>,
    /// Bytes queued or being sent.
    pub bytes: Vec<u64>,
}
