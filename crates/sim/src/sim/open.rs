//! Flows that come and go.
//!
//! A flow has a place in the arrays, with its way through the network. When all its data has
//! arrived the place rests until nothing of the flow can still be under way: acknowledgements,
//! reports, time-outs. Then the next flow that comes may have it, so memory follows the flows
//! that are there at a time, not those that ever were.

use crate::Time;
use crate::cc::{Controller, Setup, TIMERS};
use crate::engine::EventQueue;
use crate::rng::stream;
use crate::scenario::Scenario;
use crate::topology::{Wiring, crossing};
use crate::workload::Arrival;

use super::state::{Flow, MAX_HOPS};
use super::transport::answer_delay;
use super::{Kind, Simulation};

/// Ports of the longest way.
const MAX_PORTS: usize = MAX_HOPS - 1;

/// Flows that are told to expect so many on the narrowest link. HPCC sets its additive increase
/// for the most flows that are likely to compete (Li et al. 2019, §3.3): about a hundred where
/// servers have links of 100 Gbit/s (§5.1, 80 bytes a round trip).
pub(super) const EXPECTED_FLOWS: u32 = 100;

type Factory<C> = Box<dyn FnMut(u32, &Setup) -> C + Send + Sync>;

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
    answer_bytes: u32,
    answer_delay: Time,
    /// How long a place rests.
    rest: Time,
    seed: u64,
}

impl<C> Open<C> {
    pub fn new(scenario: &Scenario, wiring: Wiring, seed: u64) -> Self {
        let timeout = scenario.hosts.timeout;
        Self {
            factory: None,
            next: None,
            come: 0,
            free: Vec::new(),
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
    pub(super) fn renew(&mut self, factory: impl FnMut(u32, &Setup) -> C + Send + Sync + 'static) {
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
        let links = open.wiring.links_of(from, &path);
        let returned = crossing(&open.wiring.links(to, from), open.answer_bytes);
        let back = returned + open.answer_delay;
        let seed = stream(open.seed, number).u64();
        let setup = self.set.setup(&links, back, EXPECTED_FLOWS, seed);
        let place = open
            .free
            .pop()
            .map_or(self.transport.flows.len(), |place| place as usize);
        let controller = factory(place as u32, &setup);
        let first = place * MAX_PORTS;
        let mut flow = Flow::new(first as u32, path.len() as u8, from, packets, back);
        flow.command.rate_bps = setup.line_rate_bps;
        if place == self.transport.flows.len() {
            self.fabric.paths.resize(first + MAX_PORTS, 0);
            if self.set.needs.telemetry {
                self.transport.answer_telemetry.push(Default::default());
            }
        }
        self.transport.admit(place, flow);
        self.control.admit(place, controller, setup);
        self.fabric.paths[first..first + path.len()].copy_from_slice(&path);
        self.meter.offered(place, packets);
        self.start(place);
        self.schedule_arrival();
    }

    /// All of a flow's data has arrived: it goes.
    pub(super) fn gone(&mut self, place: usize) {
        let Some(open) = &self.open else { return };
        let rest = open.rest;
        let flow = &mut self.transport.flows[place];
        // What is sent a second time (go-back-N) is of no use any more.
        flow.next = flow.end;
        flow.repairs = 0;
        flow.missed_from = flow.number;
        self.transport.losses[place].drops.clear();
        self.transport.losses[place].repairs.clear();
        self.control.timers[place] = [Time::MAX; TIMERS];
        self.schedule(self.now + rest, Kind::Release, place as u32, 0);
    }

    /// The place of a flow that has gone is free, unless its host is so busy that a turn of the
    /// flow is still to come.
    pub(super) fn release(&mut self, place: usize) {
        // The last answers may have set timers again.
        self.control.timers[place] = [Time::MAX; TIMERS];
        let Some(open) = &mut self.open else { return };
        if self.transport.flows[place].burst_left > 0 {
            let rest = open.rest;
            self.schedule(self.now + rest, Kind::Release, place as u32, 0);
        } else {
            open.free.push(place as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::Spec;
    use crate::engine::Heap;
    use crate::metrics::{Completion, Outcome};
    use crate::scenario::{FlowPlan, Recovery, Sizes, Topology, Workload};
    use crate::sim::test_support::many_to_one;
    use crate::workload;

    /// 16 hosts at one switch whose queues are small enough to lose.
    fn scenario(load: f64) -> Scenario {
        let mut scenario = many_to_one(1);
        scenario.topology = Topology::Star { hosts: 16 };
        scenario.warmup = Time::ZERO;
        scenario.duration = Time::from_us(12_000);
        scenario.network.link.queue_bytes = 100 << 10;
        scenario.network.base_rtt = None;
        scenario.hosts.timeout = Time::from_us(50);
        scenario.workload = Workload::Poisson {
            sizes: Sizes::Hadoop,
            load,
            until: Time::from_us(10_000),
        };
        scenario
    }

    fn run(scenario: &Scenario, controller: &str, seed: u64) -> Outcome {
        let spec: Spec = controller.parse().unwrap();
        Simulation::new(scenario, move |_, _| spec.build(), seed).run()
    }

    /// Begin, duration and size of all flows, in order.
    fn ended(completions: &[Completion]) -> Vec<(f64, f64, u64)> {
        let mut all: Vec<_> = (completions.iter())
            .map(|one| (one.start_us, one.time_us, one.bytes))
            .collect();
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
        all
    }

    /// A place that another flow had must be as good as a new one: the same flows as a list, each
    /// with a place of its own, fare the same.
    #[test]
    fn a_used_place_is_as_good_as_new() {
        for controller in ["swift", "dcqcn", "dctcp", "timely"] {
            let open = scenario(0.6);
            let outcome = run(&open, controller, 3);
            let offered = outcome.offered.unwrap();
            assert!(
                offered.places * 4 < offered.flows,
                "{controller}: {offered:?}"
            );
            let mut listed = open.clone();
            listed.workload = Workload::Flows(
                workload::plan(&open, 3)
                    .arrivals
                    .unwrap()
                    .map(|arrival| FlowPlan {
                        from: arrival.from,
                        to: arrival.to,
                        bytes: Some(u64::from(arrival.packets) * 1024),
                        start: Some(arrival.at),
                    })
                    .collect(),
            );
            let alone = run(&listed, controller, 3);
            assert_eq!(alone.flows.len() as u64, offered.flows);
            assert_eq!(outcome.counts.dropped_packets, alone.counts.dropped_packets);
            let (used, new) = (ended(&outcome.completions), ended(&alone.completions));
            assert_eq!(used.len(), new.len(), "{controller}");
            for (used, new) in used.iter().zip(&new) {
                assert_eq!(used, new, "{controller}");
            }
        }
    }

    #[test]
    fn heap_and_wheel_agree_with_losses() {
        for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
            for controller in ["hpcc", "dcqcn", "dctcp"] {
                let mut scenario = scenario(0.8);
                scenario.hosts.recovery = recovery;
                let spec: Spec = controller.parse().unwrap();
                let wheel = run(&scenario, controller, 5);
                let heap: Simulation<_, Heap> =
                    Simulation::with_queue(&scenario, move |_, _| spec.build(), 5);
                assert_eq!(wheel, heap.run(), "{controller} {recovery:?}");
                assert!(wheel.counts.conserved());
                assert!(
                    wheel.counts.dropped_packets > 100,
                    "{controller} {recovery:?}"
                );
                // Nine of ten flows are of less than 120 kB: they have ended, whatever is lost.
                let offered = wheel.offered.unwrap();
                assert!(
                    offered.unfinished * 10 < offered.flows,
                    "{controller}: {offered:?}"
                );
            }
        }
    }

    /// What comes is what the load says. Flows are a Poisson process: their number has the
    /// standard deviation √n. A flow's size has 5.6 times its mean (by hand from the points of
    /// the distribution), so the bytes of n flows have 5.7/√n of theirs.
    #[test]
    fn the_load_is_what_was_asked_for() {
        let (mut flows, mut bytes) = (0.0, 0.0);
        let seeds = 20;
        for seed in 1..=seeds {
            for arrival in workload::plan(&scenario(0.5), seed).arrivals.unwrap() {
                flows += 1.0;
                bytes += f64::from(arrival.packets) * 1024.0;
                assert!(arrival.from != arrival.to && arrival.from.max(arrival.to) < 16);
            }
        }
        // 16 hosts, half of 12.5 GB/s each, 10 ms, 20 times.
        let expected = 16.0 * 0.5 * 12.5e9 * 10e-3 * seeds as f64;
        let spread = 5.7 / f64::sqrt(flows);
        assert!(
            (bytes / expected - 1.0).abs() < 4.0 * spread,
            "{bytes} of {expected}"
        );
        let mean = Sizes::Hadoop.mean_packets(1024) * 1024.0;
        let expected = expected / mean;
        assert!(
            (flows - expected).abs() < 4.0 * expected.sqrt(),
            "{flows} of {expected}"
        );
    }

    /// At line rate in an empty network a flow takes what it takes alone; at half the rate a
    /// long one takes twice that.
    #[test]
    fn slowdowns_of_flows_alone() {
        let mut scenario = scenario(0.0005);
        scenario.duration = Time::from_us(400_000);
        scenario.workload = Workload::Poisson {
            sizes: Sizes::Websearch,
            load: 0.0005,
            until: Time::from_us(390_000),
        };
        let all = |controller| *run(&scenario, controller, 1).slowdowns.last().unwrap();
        let full = all("fixed:fraction=1");
        assert!(full.flows > 10, "{full:?}");
        // Steps of the rate are whole picoseconds a packet.
        assert!((full.p50 - 1.0).abs() < 1e-6, "{full:?}");
        let half = run(&scenario, "fixed:fraction=0.5", 1);
        let long = half
            .slowdowns
            .iter()
            .find(|one| one.above_bytes == 1_000_000);
        assert!((long.unwrap().p50 - 2.0).abs() < 0.02, "{long:?}");
    }
}
