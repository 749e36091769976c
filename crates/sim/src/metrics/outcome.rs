//! The report of a run.

use serde::Serialize;

/// What a run measured. Unless said otherwise, in the measured time: from the end of the
/// warm-up to the end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Name of the scenario.
    pub scenario: String,
    /// Seed of the run.
    pub seed: u64,
    /// Simulated time, seconds.
    pub duration_s: f64,
    /// Of that, not measured, seconds.
    pub warmup_s: f64,
    /// Switch utilisation (SU): what left the ports to the receivers, percent of their line
    /// rate; their mean where there are several.
    pub utilisation_percent: f64,
    /// Fairness (FR): least rate of a flow over the greatest, percent. Of the endless flows if
    /// there are any.
    pub fairness_percent: f64,
    /// The same of the sums of each sending host's flows.
    pub host_fairness_percent: f64,
    /// Jain's index of the flows' rates, 1/n to 1.
    pub jain: f64,
    /// Time that packets which arrived have waited in switches (QL).
    pub queue_latency: Latency,
    /// Dropped in switches, Gbit/s.
    pub dropped_gbps: f64,
    /// Dropped in switches, percent of what left the ports to the receivers or was dropped.
    pub dropped_percent: f64,
    /// Packets of the whole run.
    pub counts: Counts,
    /// Where long and short flows compete.
    pub long_short: Option<LongShort>,
    /// Each flow, in the scenario's order.
    pub flows: Vec<FlowOutcome>,
    /// Each port of a switch that was used.
    pub ports: Vec<PortOutcome>,
    /// Each time that a flow's data had all arrived, in the whole run.
    pub completions: Vec<Completion>,
    /// Completion times of the flows that began in the measured time against those of the same
    /// flow alone, by size, and last of all together.
    pub slowdowns: Vec<super::Slowdown>,
    /// What came, where flows come and go.
    pub offered: Option<Offered>,
    /// Rates and queues over time, in the whole run, if the scenario asks for them.
    pub series: Option<Series>,
}

/// A distribution of times, µs. Percentiles are within 1.6 %, mean and greatest are exact.
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
    /// That reached their receiver.
    pub delivered_packets: u64,
    /// Of those, that the receiver had no use for (go-back-N).
    pub wasted_packets: u64,
    /// That a full queue dropped.
    pub dropped_packets: u64,
    /// That were under way at the end.
    pub underway_packets: u64,
    /// Answers to probes that controllers have dealt with.
    pub decisions: u64,
    /// Congestion notification packets.
    pub notifications: u64,
    /// Pause frames that stopped the sender of a link.
    pub pauses: u64,
    /// Events that the simulator handled.
    pub events: u64,
}

impl Counts {
    /// Whether every packet is accounted for.
    pub fn conserved(&self) -> bool {
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

/// One output port of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PortOutcome {
    /// Number; port n leads to host n, ports between switches follow.
    pub port: u32,
    /// Its switch.
    pub switch: u32,
    /// What left, percent of the line rate.
    pub utilisation_percent: f64,
    /// What did not fit, packets.
    pub dropped_packets: u64,
}

/// How the long flow fared among short ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LongShort {
    /// Recovery time (RT): mean time from the arrival of the short flows' last byte to the
    /// begin of the first 10 µs in which at least 95 % of the line rate arrives from the long
    /// flow, seconds. None where that never happened.
    pub recovery_s: Option<f64>,
    /// How often that was measured.
    pub recovered: u32,
    /// How often the long flow did not get there before the next interruption.
    pub not_recovered: u32,
    /// The long flow's rate (LBW), Gbit/s.
    pub long_gbps: f64,
}

/// A flow had all its data across.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Completion {
    /// Which.
    pub flow: u32,
    /// When it began to send that data, µs.
    pub start_us: f64,
    /// How long it took until the last byte arrived, µs.
    pub time_us: f64,
    /// What it sent, bytes: whole packets.
    pub bytes: u64,
    /// `time_us` over what the same data takes where nothing else is under way and the flow
    /// sends at the rate of its narrowest link.
    pub slowdown: f64,
}

/// What came, where flows come and go; in the whole run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Offered {
    /// Flows.
    pub flows: u64,
    /// Their data in whole packets, bytes.
    pub bytes: u64,
    /// Of the flows, those that have not ended.
    pub unfinished: u64,
    /// Most flows that the simulator held at a time; those that have ended make room after a
    /// while.
    pub places: u64,
}

/// Rates and queues over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Distance of the samples, µs.
    pub interval_us: f64,
    /// For each flow of the scenario, new data that arrived in each interval, Gbit/s.
    pub flow_gbps: Vec<Vec<f64>>,
    /// Distribution of the time that packets have waited in switches, in the measured time: each
    /// time, µs, and the share of packets that waited no longer.
    pub queue_latency: Vec<(f64, f64)>,
    /// For each port to a receiver.
    pub queues: Vec<QueueSeries>,
}

/// A queue over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueSeries {
    /// Number of the port.
    pub port: u32,
    /// When it was sampled, µs.
    pub at_us: Vec<f64>,
    /// What waited or was being sent, bytes.
    pub bytes: Vec<u64>,
}
