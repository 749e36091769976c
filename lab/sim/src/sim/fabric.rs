//! The network between hosts: ports, the paths through them, and packets in flight.

use crate::Time;
use crate::cc::Hop;
use crate::rng::random_stream;
use crate::scenario::{Scenario, Workload};
use crate::topology::{Wiring, transmission_time};

use super::explicit::{Links, Sender};
use super::network;
use super::state::{Flow, MAX_HOPS, Packet, Port, Slab, Telemetry};
use super::transport::Transport;

pub(super) struct Fabric {
    pub ports: Vec<Port>,
    /// The ports of all flows, one flow after the other.
    pub paths: Vec<u32>,
    /// Where queues are explicit.
    pub links: Option<Links>,
    pub packets: Slab,
    /// Telemetry of packets, by slot; empty without controllers that need it.
    pub telemetry: Vec<Telemetry>,
}

impl Fabric {
    pub fn new(
        scenario: &Scenario,
        wiring: &Wiring,
        transport: &Transport,
        paths: Vec<u32>,
        seed: u64,
    ) -> Self {
        let listed = scenario.network.explicit_queues || scenario.network.pause.is_some();
        let ports = build_ports(scenario, wiring, transport, &paths, listed, seed);
        Self {
            links: listed.then(|| Links {
                senders: vec![Sender::default(); ports.len() + transport.hosts.len()],
                pause: scenario.network.pause,
            }),
            ports,
            paths,
            packets: Slab::default(),
            telemetry: Vec::new(),
        }
    }

    /// The ports on a flow's path, in order.
    pub fn flow_path(&self, flow: &Flow) -> &[u32] {
        let first = flow.path as usize;
        &self.paths[first..first + usize::from(flow.hops)]
    }

    /// Stores a packet that leaves its host, with the host's own telemetry, and returns its slot.
    #[inline]
    pub fn insert_with_telemetry(&mut self, packet: Packet, own: Hop) -> u32 {
        let place = self.packets.insert(packet);
        if self.telemetry.len() < self.packets.capacity() {
            let places = self.packets.capacity();
            self.telemetry.resize(places, [Hop::default(); MAX_HOPS]);
        }
        self.telemetry[place as usize][0] = own;
        place
    }
}

fn build_ports(
    scenario: &Scenario,
    wiring: &Wiring,
    transport: &Transport,
    paths: &[u32],
    listed: bool,
    seed: u64,
) -> Vec<Port> {
    let packet_bytes = scenario.network.packet_bytes;
    let shifts = if listed {
        vec![Time::ZERO; wiring.ports.len()]
    } else if matches!(scenario.workload, Workload::Poisson { .. }) {
        network::even_shifts(wiring, &transport.hosts)
    } else {
        network::arrival_shifts(wiring, &transport.hosts, &transport.flows, paths)
    };
    (0u64..)
        .zip(wiring.ports.iter().zip(shifts))
        .map(|(number, (plan, shift))| {
            let tx = transmission_time(packet_bytes, plan.link.rate_bps);
            let waiting = |bytes: u64| {
                let ps = u128::from(bytes) * u128::from(tx.ps()) / u128::from(packet_bytes);
                Time::from_ps(ps as u64)
            };
            let (mark_from, mark_all, mark_slope) = match scenario.network.ecn {
                None => (Time::MAX, Time::MAX, 0.0),
                Some(ecn) => {
                    let (from, all) = (waiting(ecn.min_bytes), waiting(ecn.max_bytes));
                    // Equal thresholds are a step; then the slope is not used.
                    let slope = ecn.max_probability / (all - from).ps().max(1) as f64;
                    (from, all, slope)
                }
            };
            Port {
                busy: Time::ZERO,
                tx,
                delay: plan.link.delay,
                limit: waiting(plan.link.queue_bytes),
                bucket: waiting(plan.link.bucket_bytes),
                shift,
                rate_bps: plan.link.rate_bps as f64,
                mark_from,
                mark_all,
                mark_slope,
                accepted: 0,
                measured: 0,
                dropped: 0,
                rng: random_stream(seed, (1 << 40) + number),
                switch: plan.switch,
            }
        })
        .collect()
}
