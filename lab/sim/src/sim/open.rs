//! Flows that come and go.
//!
//! A flow has a slot in the arrays, with its path through the network. When all its data has
//! arrived, the slot rests until nothing of the flow can be in flight: ACKs, reports, time-outs.
//! Then the next new flow may use it. So memory grows with the number of concurrent flows, not with
//! all flows ever.

use crate::Time;
use crate::cc::{Controller, Setup, TIMERS};
use crate::engine::EventQueue;
use crate::rng::random_stream;
use crate::scenario::Scenario;
use crate::topology::{Wiring, crossing_time};
use crate::workload::Arrival;

use super::state::{Flow, MAX_HOPS};
use super::transport::answer_delay;
use super::{EventKind, Simulation};

/// Ports of the longest path.
const MAX_PORTS: usize = MAX_HOPS - 1;

/// Number of flows on the narrowest link that each flow is told to expect. HPCC sets its additive
/// increase for the largest likely number of competing flows (Li et al. 2019, §3.3). With links of
/// 100 Gbit/s at servers that is about a hundred (§5.1, 80 bytes a round trip).
pub(super) const EXPECTED_FLOWS: u32 = 100;

type Factory<C> = Box<dyn FnMut(u32, &Setup) -> C + Send + Sync>;

/// State for flows that arrive during the run.
pub(super) struct Open<C> {
    wiring: Wiring,
    factory: Option<Factory<C>>,
    /// The next flow to arrive.
    next: Option<Arrival>,
    /// Number of flows that have arrived; input of the path's hash.
    come: u64,
    /// Slots of ended flows.
    free: Vec<u32>,
    answer_bytes: u32,
    answer_delay: Time,
    /// Time that a slot rests.
    rest: Time,
    seed: u64,
}

impl<C> Open<C> {
    pub fn new(scenario: &Scenario, wiring: Wiring, seed: u64) -> Self {
        let timeout = scenario.hosts.timeout;
        let delayed = (scenario.hosts.linux.as_ref()).map_or(Time::ZERO, |linux| linux.delayed_ack);
        Self {
            factory: None,
            next: None,
            come: 0,
            free: Vec::new(),
            answer_bytes: scenario.network.answer_bytes,
            answer_delay: answer_delay(scenario, &wiring),
            rest: timeout + timeout + scenario.hosts.reaction + delayed,
            seed,
            wiring,
        }
    }
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// Makes the controllers of later flows with this factory.
    pub(super) fn replace_factory(
        &mut self,
        factory: impl FnMut(u32, &Setup) -> C + Send + Sync + 'static,
    ) {
        if let Some(open) = &mut self.open {
            open.factory = Some(Box::new(factory));
        }
    }

    /// Schedules the arrival of the next flow.
    pub(super) fn schedule_arrival(&mut self) {
        let Some(arrival) = self.plan.arrivals.as_mut().and_then(Iterator::next) else {
            return;
        };
        if let Some(open) = &mut self.open {
            open.next = Some(arrival);
            self.schedule_event(arrival.at, EventKind::Arrival, 0, 0);
        }
    }

    /// A flow arrives.
    pub(super) fn admit_arrival(&mut self) {
        let Some(open) = &mut self.open else { return };
        let (Some(arrival), Some(factory)) = (open.next.take(), &mut open.factory) else {
            return;
        };
        let number = open.come;
        open.come += 1;
        let Arrival {
            from, to, packets, ..
        } = arrival;
        let path = open.wiring.flow_path(from, to, number);
        let links = open.wiring.links_of(from, &path);
        let returned = crossing_time(&open.wiring.path_links(to, from), open.answer_bytes);
        let back = returned + open.answer_delay;
        let seed = random_stream(open.seed, number).u64();
        let setup = self.set.flow_setup(&links, back, EXPECTED_FLOWS, seed);
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
        self.transport.admit_flow(place, flow);
        self.control.admit_flow(place, controller, setup);
        self.fabric.paths[first..first + path.len()].copy_from_slice(&path);
        self.meter.flow_offered(place, packets);
        self.start_sending(place);
        self.schedule_arrival();
    }

    /// All data of a flow has arrived: the flow ends.
    pub(super) fn end_flow(&mut self, place: usize) {
        let Some(open) = &self.open else { return };
        let rest = open.rest;
        let flow = &mut self.transport.flows[place];
        // Retransmissions (go-back-N) have no use any more.
        flow.next = flow.end;
        flow.repairs = 0;
        flow.missed_from = flow.number;
        self.transport.losses[place].drops.clear();
        self.transport.losses[place].repairs.clear();
        self.control.timers[place] = [Time::MAX; TIMERS];
        self.schedule_event(self.now + rest, EventKind::Release, place as u32, 0);
    }

    /// Frees the slot of an ended flow, unless a turn of the flow is still due on its busy host.
    pub(super) fn release_slot(&mut self, place: usize) {
        // The last responses may have set timers again.
        self.control.timers[place] = [Time::MAX; TIMERS];
        let Some(open) = &mut self.open else { return };
        if self.transport.flows[place].burst_left > 0 {
            let rest = open.rest;
            self.schedule_event(self.now + rest, EventKind::Release, place as u32, 0);
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

    /// 16 hosts at one switch with queues small enough to overflow.
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

    /// Start, duration and size of all flows, in order.
    fn ended(completions: &[Completion]) -> Vec<(f64, f64, u64)> {
        let mut all: Vec<_> = (completions.iter())
            .map(|one| (one.start_us, one.time_us, one.bytes))
            .collect();
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
        all
    }

    /// A reused slot must be as good as a new one. The same flows as a list, each with its own
    /// slot, must have the same outcome.
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
                workload::plan_flows(&open, 3)
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
                assert!(wheel.counts.all_packets_accounted());
                assert!(
                    wheel.counts.dropped_packets > 100,
                    "{controller} {recovery:?}"
                );
                // Nine of ten flows are smaller than 120 kB: they have ended, whatever is lost.
                let offered = wheel.offered.unwrap();
                assert!(
                    offered.unfinished * 10 < offered.flows,
                    "{controller}: {offered:?}"
                );
            }
        }
    }

    /// The arrivals match the requested load. Flows are a Poisson process: their number has the
    /// standard deviation √n. The deviation of a flow's size is 5.6 times its mean (by hand from
    /// the points of the distribution). So the bytes of n flows deviate by 5.7/√n.
    #[test]
    fn the_load_is_what_was_asked_for() {
        let (mut flows, mut bytes) = (0.0, 0.0);
        let seeds = 20;
        for seed in 1..=seeds {
            for arrival in workload::plan_flows(&scenario(0.5), seed).arrivals.unwrap() {
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

    /// At line rate in an empty network a flow has a slowdown of 1; at half the rate a long flow
    /// has 2.
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
        // Rates are rounded to whole picoseconds a packet.
        assert!((full.p50 - 1.0).abs() < 1e-6, "{full:?}");
        let half = run(&scenario, "fixed:fraction=0.5", 1);
        let long = half
            .slowdowns
            .iter()
            .find(|one| one.above_bytes == 1_000_000);
        assert!((long.unwrap().p50 - 2.0).abs() < 0.02, "{long:?}");
    }
}
