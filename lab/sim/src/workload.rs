//! The flows of a run, and when each sends how much.

mod sizes;

use crate::Time;
use crate::rng::{Random, random_stream};
use crate::scenario::{Scenario, Workload};

pub use sizes::Sizes;

/// One flow as the workload plans it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Planned {
    pub from: u32,
    pub to: u32,
    /// Packets that it sends, and sends again when it goes on; none: without end.
    pub packets: Option<u32>,
    /// Time of its start.
    pub start: Time,
}

/// When flows that have sent all their data go on.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Again {
    Never,
    /// This long after its own end.
    Each(Time),
    /// This long after the last has ended, plus a random share of the second time for each.
    Together(Time, Time),
}

/// The flows of a run, in order, and what happens when one has sent all its data.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub flows: Vec<Planned>,
    again: Again,
    /// Flows that have not sent all their data.
    unfinished: u32,
    rng: Random,
    /// All flows where they come and go; `flows` is empty then.
    pub arrivals: Option<Arrivals>,
}

/// A flow that arrives, sends its data once, and ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Arrival {
    pub at: Time,
    pub from: u32,
    pub to: u32,
    pub packets: u32,
}

/// Flows that arrive at random (a Poisson process: open loop), each from a random host to a random
/// other one.
#[derive(Debug, Clone)]
pub(crate) struct Arrivals {
    rng: Random,
    hosts: u32,
    sizes: Sizes,
    packet_bytes: u32,
    mean_gap_s: f64,
    last: Time,
    until: Time,
}

impl Arrivals {
    /// `load` is the mean offered load of all hosts, as a share of their links.
    fn new(scenario: &Scenario, sizes: Sizes, load: f64, until: Time, seed: u64) -> Self {
        let network = &scenario.network;
        Self {
            rng: random_stream(seed, 1 << 42),
            hosts: scenario.topology.hosts() as u32,
            sizes,
            packet_bytes: network.packet_bytes,
            mean_gap_s: mean_gap_s(scenario, sizes, load),
            last: Time::ZERO,
            until,
        }
    }
}

/// Mean time between two arrivals, seconds.
pub(crate) fn mean_gap_s(scenario: &Scenario, sizes: Sizes, load: f64) -> f64 {
    let network = &scenario.network;
    let packet_bytes = network.packet_bytes;
    let bits = sizes.mean_packets(packet_bytes) * f64::from(packet_bytes) * 8.0;
    let hosts = scenario.topology.hosts() as u32;
    let rate = load * f64::from(hosts) * network.link.rate_bps as f64;
    bits / rate
}

impl Iterator for Arrivals {
    type Item = Arrival;

    /// The next flow; none after the last moment of arrivals.
    fn next(&mut self) -> Option<Arrival> {
        // 1 − fraction is above 0.
        let gap = -(1.0 - self.rng.fraction()).ln() * self.mean_gap_s;
        self.last += Time::from_secs(gap);
        if self.last >= self.until {
            return None;
        }
        let from = self.rng.below(u64::from(self.hosts)) as u32;
        let other = self.rng.below(u64::from(self.hosts - 1)) as u32;
        let bytes = self.sizes.size_quantile(self.rng.fraction());
        Some(Arrival {
            at: self.last,
            from,
            to: other + u32::from(other >= from),
            packets: packets_for_bytes(bytes, self.packet_bytes),
        })
    }
}

/// Whole packets for a number of bytes, at least one. The check of the scenario keeps this below
/// 2^32.
fn packets_for_bytes(bytes: u64, packet_bytes: u32) -> u32 {
    bytes.div_ceil(u64::from(packet_bytes)).max(1) as u32
}

/// The flows of a scenario.
pub(crate) fn plan_flows(scenario: &Scenario, seed: u64) -> Plan {
    let mut rng = random_stream(seed, 1 << 41);
    let spread = scenario.hosts.start_spread;
    let packets = |bytes: u64| packets_for_bytes(bytes, scenario.network.packet_bytes);
    let mut arrivals = None;
    let mut flows = Vec::new();
    let mut again = Again::Never;
    let mut add = |from, to, packets, start: Option<Time>| {
        let random = Time::from_ps(rng.below(spread.ps()));
        flows.push(Planned {
            from,
            to,
            packets,
            start: start.unwrap_or(random),
        });
    };
    match &scenario.workload {
        Workload::ManyToOne {
            senders,
            flows: count,
        } => {
            (0..*count).for_each(|flow| add(1 + flow % senders, 0, None, None));
        }
        Workload::AllToAll { flows_per_pair } => {
            let hosts = scenario.topology.hosts() as u32;
            for from in 0..hosts {
                for to in (0..hosts).filter(|to| *to != from) {
                    for _ in 0..*flows_per_pair {
                        add(from, to, None, None);
                    }
                }
            }
        }
        Workload::LongShort {
            senders,
            flows: count,
            burst_bytes,
            per_host,
            idle,
            together,
        } => {
            add(1, 0, None, Some(Time::ZERO));
            for flow in 1..*count {
                // The long flow has a host of its own.
                let (others, short) = (senders - 1, count - 1);
                let place = (flow - 1) % others;
                // Flows are dealt in turn: the first hosts may have one more.
                let of_host = short / others + u32::from(place < short % others);
                let share = if *per_host { of_host } else { 1 };
                let bytes = burst_bytes.div_ceil(u64::from(share));
                add(2 + place, 0, Some(packets(bytes)), None);
            }
            // The long flow is alone at first, for as long as between two rounds.
            for flow in &mut flows[1..] {
                flow.start += *idle;
            }
            again = match together {
                true => Again::Together(*idle, spread),
                false => Again::Each(*idle),
            };
        }
        Workload::Poisson { sizes, load, until } => {
            arrivals = Some(Arrivals::new(scenario, *sizes, *load, *until, seed));
        }
        Workload::Flows(list) => {
            for flow in list {
                add(flow.from, flow.to, flow.bytes.map(packets), flow.start);
            }
        }
    }
    let unfinished = flows.iter().filter(|flow| flow.packets.is_some()).count() as u32;
    Plan {
        flows,
        again,
        unfinished,
        rng,
        arrivals,
    }
}

impl Plan {
    /// All data of a flow has arrived: which flows go on, and when.
    pub fn flow_completed(&mut self, flow: u32, at: Time) -> Vec<(u32, Time)> {
        match self.again {
            Again::Never => Vec::new(),
            Again::Each(idle) => vec![(flow, at + idle)],
            Again::Together(idle, spread) => {
                self.unfinished -= 1;
                if self.unfinished > 0 {
                    return Vec::new();
                }
                let short: Vec<u32> = (0u32..)
                    .zip(&self.flows)
                    .filter(|(_, flow)| flow.packets.is_some())
                    .map(|(number, _)| number)
                    .collect();
                self.unfinished = short.len() as u32;
                short
                    .into_iter()
                    .map(|flow| {
                        let random = Time::from_ps(self.rng.below(spread.ps()));
                        (flow, at + idle + random)
                    })
                    .collect()
            }
        }
    }
}
