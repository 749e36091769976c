//! The ends of the network: flows, their hosts, and losses.

use crate::Time;
use crate::scenario::Scenario;
use crate::topology::{Wiring, crossing_time, transmission_time};
use crate::workload::Plan;

use super::state::{ENDLESS, Flow, Host, Losses, Telemetry, put_in_slot};

pub(super) struct Transport {
    pub flows: Vec<Flow>,
    pub hosts: Vec<Host>,
    /// Losses of each flow.
    pub losses: Vec<Losses>,
    /// Telemetry in each flow's probe response; empty without controllers that need it.
    pub answer_telemetry: Vec<Telemetry>,
}

impl Transport {
    /// The flows before their start, and the list of their paths.
    pub fn new(scenario: &Scenario, wiring: &Wiring, plan: &Plan) -> (Self, Vec<u32>) {
        let mut paths = Vec::new();
        let mut transport = Self {
            flows: Vec::new(),
            hosts: build_hosts(scenario, wiring),
            losses: Vec::new(),
            answer_telemetry: Vec::new(),
        };
        let extra = answer_delay(scenario, wiring);
        for (number, flow) in plan.flows.iter().enumerate() {
            let path = wiring.flow_path(flow.from, flow.to, number as u64);
            let back = wiring.path_links(flow.to, flow.from);
            let back = crossing_time(&back, scenario.network.answer_bytes) + extra;
            let packets = flow.packets.unwrap_or(ENDLESS);
            let first = paths.len() as u32;
            let flow = Flow::new(first, path.len() as u8, flow.from, packets, back);
            paths.extend(path);
            transport.admit_flow(number, flow);
        }
        (transport, paths)
    }

    /// Puts a flow into its slot.
    pub fn admit_flow(&mut self, place: usize, flow: Flow) {
        put_in_slot(&mut self.flows, place, flow);
        // The losses of an ended flow are empty.
        if place == self.losses.len() {
            self.losses.push(Losses::default());
        }
    }
}

/// The receiver's response delay. With it, the longest path has the scenario's base RTT.
pub(super) fn answer_delay(scenario: &Scenario, wiring: &Wiring) -> Time {
    let longest = wiring.longest_path();
    // A faster interface saves a part of the first link's time.
    let saved = match scenario
        .hosts
        .linux
        .as_ref()
        .and_then(|linux| linux.nic_bps)
    {
        None => Time::ZERO,
        Some(nic_bps) => {
            let packet_bytes = scenario.network.packet_bytes;
            transmission_time(packet_bytes, longest[0].rate_bps)
                .saturating_sub(transmission_time(packet_bytes, nic_bps))
        }
    };
    scenario
        .network
        .base_rtt
        .unwrap_or(Time::ZERO)
        .saturating_sub(
            crossing_time(&longest, scenario.network.packet_bytes)
                + crossing_time(&longest, scenario.network.answer_bytes),
        )
        + saved
}

fn build_hosts(scenario: &Scenario, wiring: &Wiring) -> Vec<Host> {
    let packet_bytes = scenario.network.packet_bytes;
    let nic_bps = scenario
        .hosts
        .linux
        .as_ref()
        .and_then(|linux| linux.nic_bps);
    (0..wiring.hosts as usize)
        .map(|host| {
            // A host's link is the same in both directions.
            let link = wiring.ports[host].link;
            let rate_bps = nic_bps.unwrap_or(link.rate_bps);
            Host {
                busy: Time::ZERO,
                tx: transmission_time(packet_bytes, rate_bps),
                delay: link.delay,
                rate_bps: rate_bps as f64,
                sent_bytes: 0,
            }
        })
        .collect()
}
