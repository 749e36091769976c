//! Flows that come and go.
//!
//! A flow has a place in the arrays, with its way through the network. When all its data has
//! arrived the place rests until nothing of the flow can still be under way: acknowledgements,
//! reports, time-outs. Then the next flow that comes may have it, so memory follows the flows
//! that are there at a time, not those that ever were.

use crate::Time;
use crate::cc::{Controller, Hop, Setup, TIMERS};
use crate::engine::EventQueue;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::topology::{Wiring, crossing};
use crate::workload::Arrival;

use super::state::{Flow, Losses, MAX_HOPS};
use super::{Kind, Simulation, answer_delay, path_links};

/// Ports of the longest way.
const MAX_PORTS: usize = MAX_HOPS - 1;

/// Flows that are told to expect so many on the narrowest link. HPCC sets its additive increase
/// for the most flows that are likely to compete (Li et al. 2019, §3.3): about a hundred where
/// servers have links of 100 Gbit/s (§5.1, 80 bytes a round trip).
const EXPECTED_FLOWS: u32 = 100;

type Factory<C> = Box<dyn FnMut(u32, &Setup) -> C + Send>;

/// What it takes to let a flow come.
pub(super) struct Open<C> {
    wiring: Wiring,
    factory: Option<Factory<C>>,
    /// The flow that comes next.
    next: Option<Arrival>,
    /// How many have come: the hash of a way takes it.
    come: u64,
    /// Places of flows that have gone.
    free: Vec<u32>,
    packet_bytes: u32,
    answer_bytes: u32,
    answer_delay: Time,
    /// How long a place rests.
    rest: Time,
    seed: u64,
}

/// What a controller could be told of a flow that comes.
pub(super) fn any_setup(scenario: &Scenario, wiring: &Wiring, seed: u64) -> Setup {
    Setup {
        line_rate_bps: wiring.ports[0].link.rate_bps as f64,
        min_rate_bps: scenario.hosts.min_rate_bps as f64,
        packet_bytes: scenario.network.packet_bytes,
        base_rtt: crossing(&wiring.longest(), scenario.network.packet_bytes),
        hops: 1,
        expected_flows: EXPECTED_FLOWS,
        seed,
    }
}

impl<C> Open<C> {
    pub fn new(scenario: &Scenario, wiring: Wiring, seed: u64) -> Self {
        let timeout = scenario.hosts.timeout;
        Self {
            factory: None,
            next: None,
            come: 0,
            free: Vec::new(),
            packet_bytes: scenario.network.packet_bytes,
            answer_bytes: scenario.network.answer_bytes,
            answer_delay: answer_delay(scenario, &wiring),
            rest: timeout + timeout + scenario.hosts.reaction,
            seed,
            wiring,
        }
    }
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// Where the controllers of flows that come are from.
    pub(super) fn renew(&mut self, factory: impl FnMut(u32, &Setup) -> C + Send + 'static) {
        if let Some(open) = &mut self.open {
            open.factory = Some(Box::new(factory));
        }
    }

    /// Sees to it that the next flow comes.
    pub(super) fn schedule_arrival(&mut self) {
        let Some(arrival) = self.plan.arrivals.as_mut().and_then(Iterator::next) else {
            return;
        };
        if let Some(open) = &mut self.open {
            open.next = Some(arrival);
            self.schedule(arrival.at, Kind::Arrival, 0, 0);
        }
    }

    /// A flow comes.
    pub(super) fn arrival(&mut self) {
        let Some(open) = &mut self.open else { return };
        let (Some(arrival), Some(factory)) = (open.next.take(), &mut open.factory) else {
            return;
        };
        let number = open.come;
        open.come += 1;
        let Arrival {
            from, to, packets, ..
        } = arrival;
        let path = open.wiring.path(from, to, number);
        let links = path_links(&open.wiring, from, &path);
        let returned = crossing(&open.wiring.links(to, from), open.answer_bytes);
        let back = returned + open.answer_delay;
        let setup = Setup {
            line_rate_bps: links[0].rate_bps as f64,
            min_rate_bps: self.min_rate_bps,
            packet_bytes: open.packet_bytes,
            base_rtt: crossing(&links, open.packet_bytes) + back,
            hops: links.len() as u8,
            expected_flows: EXPECTED_FLOWS,
            seed: Rng::new(open.seed, number).next(),
        };
        let place = open.free.pop().map_or(self.flows.len(), |place| place as usize);
        let controller = factory(place as u32, &setup);
        let first = place * MAX_PORTS;
        let mut flow = Flow::new(first as u32, path.len() as u8, from, packets, back);
        flow.command.rate_bps = setup.line_rate_bps;
        if place == self.flows.len() {
            self.flows.push(flow);
            self.controllers.push(controller);
            self.setups.push(setup);
            self.losses.push(Losses::default());
            self.timers.push([Time::MAX; TIMERS]);
            self.timer_events.push([Time::MAX; TIMERS]);
            self.paths.resize(first + MAX_PORTS, 0);
            if self.needs.telemetry {
                self.answer_telemetry.push([Hop::default(); MAX_HOPS]);
            }
        } else {
            self.flows[place] = flow;
            self.controllers[place] = controller;
            self.setups[place] = setup;
            self.timers[place] = [Time::MAX; TIMERS];
            self.timer_events[place] = [Time::MAX; TIMERS];
        }
        self.paths[first..first + path.len()].copy_from_slice(&path);
        self.meter.offered(place, packets);
        self.start(place);
        self.schedule_arrival();
    }

    /// All of a flow's data has arrived: it goes.
    pub(super) fn gone(&mut self, place: usize) {
        let Some(open) = &self.open else { return };
        let rest = open.rest;
        let flow = &mut self.flows[place];
        // What is sent a second time (go-back-N) is of no use any more.
        flow.next = flow.end;
        flow.repairs = 0;
        flow.dropped = 0;
        flow.missed_from = flow.number;
        self.losses[place].drops.clear();
        self.losses[place].repairs.clear();
        self.timers[place] = [Time::MAX; TIMERS];
        self.schedule(self.now + rest, Kind::Release, place as u32, 0);
    }

    /// The place of a flow that has gone is free, unless its host is so busy that a turn of the
    /// flow is still to come.
    pub(super) fn release(&mut self, place: usize) {
        let Some(open) = &mut self.open else { return };
        if self.flows[place].burst_left > 0 {
            let rest = open.rest;
            self.schedule(self.now + rest, Kind::Release, place as u32, 0);
        } else {
            open.free.push(place as u32);
        }
    }
}
