use crate::Time;
use crate::cc::{Ack, Context, Controller, Loss, Needs, Response, Setup};
use crate::engine::{Event, EventQueue, Heap, Wheel};
use crate::scenario::{Ecn, Recovery, Scenario, Topology, Workload};

use super::test_support::{Constant, Proportional, listed_flows, many_to_one};
use super::{Decision, Simulation};

mod outside;
mod queues;

const LINE: f64 = 100e9;
/// One packet of 1 KiB at 100 Gbit/s: 8192 bit / 100 Gbit/s = 81.92 ns.
const TX: u64 = 81_920;

/// A queue that records the events taken from it.
struct Traced<Q> {
    queue: Q,
    hash: u64,
}

impl<Q: EventQueue> EventQueue for Traced<Q> {
    fn new() -> Self {
        Self {
            queue: Q::new(),
            hash: 0,
        }
    }

    fn push(&mut self, event: Event) {
        self.queue.push(event);
    }

    fn pop_hinting(&mut self, soon: impl FnMut(&Event)) -> Option<Event> {
        let event = self.queue.pop_hinting(soon)?;
        for part in [
            event.time.ps(),
            u64::from(event.what),
            u64::from(event.argument),
        ] {
            self.hash = crate::rng::mix(self.hash ^ part);
        }
        Some(event)
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}

fn trace<Q: EventQueue>(scenario: &Scenario, seed: u64) -> (u64, u64) {
    let mut simulation = Simulation::<_, Traced<Q>>::with_queue(
        scenario,
        |_, setup: &Setup| Proportional::new(setup),
        seed,
    );
    while simulation.handle_next() {}
    (simulation.events.hash, simulation.handled)
}

#[test]
fn heap_and_wheel_give_the_same_trace() {
    for scenario in scenarios() {
        let wheel = trace::<Wheel>(&scenario, 3);
        assert!(wheel.1 > 10_000);
        assert_eq!(wheel, trace::<Heap>(&scenario, 3), "{}", scenario.name);
        assert_ne!(wheel, trace::<Wheel>(&scenario, 4), "{}", scenario.name);
    }
}

/// A scenario of each kind.
fn scenarios() -> Vec<Scenario> {
    let mut incast = many_to_one(64);
    incast.name = "many-to-one".into();
    incast.network.ecn = Some(Ecn {
        min_bytes: 20_000,
        max_bytes: 200_000,
        max_probability: 0.2,
    });
    let mut lossy = many_to_one(200);
    lossy.name = "lossy".into();
    lossy.network.link.queue_bytes = 100_000;
    let mut all = many_to_one(1);
    all.name = "all-to-all".into();
    all.topology = Topology::LeafSpine {
        leaves: 3,
        spines: 2,
        hosts_per_leaf: 3,
    };
    all.hosts.burst_packets = 4;
    all.workload = Workload::AllToAll { flows_per_pair: 2 };
    let mut tree = all.clone();
    tree.name = "fat-tree".into();
    tree.topology = Topology::FatTree { ports: 4 };
    tree.network.fabric.queue_bytes = 200_000;
    let mut short = many_to_one(1);
    short.name = "long-short".into();
    short.workload = Workload::LongShort {
        senders: 8,
        flows: 20,
        burst_bytes: 50_000,
        idle: Time::from_us(500),
        per_host: false,
        together: true,
    };
    vec![incast, lossy, all, tree, short]
}

#[test]
fn two_flows_by_hand() {
    // Hosts 1 and 2 send one packet each to host 0; the second starts 10 ns after the first.
    //   first:  leaves its host at 81.92 ns, arrives at the switch 1 µs later, at 1081.92 ns,
    //           leaves at 1163.84 ns, arrives at 2163.84 ns.
    //   second: arrives at the switch at 1091.92 ns, waits until 1163.84 ns (71.92 ns),
    //           leaves at 1245.76 ns, arrives at 2245.76 ns: 2235.76 ns after its start.
    let scenario = listed_flows(&[
        (1, 0, Some(1), Time::ZERO),
        (2, 0, Some(1), Time::from_ns(10)),
    ]);
    let outcome = Simulation::new(&scenario, |_, _| Constant(LINE), 1).run();
    let times: Vec<f64> = outcome
        .completions
        .iter()
        .map(|completion| completion.time_us)
        .collect();
    assert_eq!(times.len(), 2);
    assert!((times[0] - 2.16384).abs() < 1e-9, "{times:?}");
    assert!((times[1] - 2.23576).abs() < 1e-9, "{times:?}");
    assert!((outcome.queue_latency.max_us - 0.07192).abs() < 1e-9);
    assert!((outcome.queue_latency.mean_us - 0.03596).abs() < 1e-9);
}

#[test]
fn pacing_by_hand() {
    // At 10 Gbit/s a packet may start every 819.2 ns. The last of ten packets starts after 9 ·
    // 819.2 = 7372.8 ns and arrives 2163.84 ns later.
    let one = listed_flows(&[(1, 0, Some(10), Time::ZERO)]);
    let outcome = Simulation::new(&one, |_, _| Constant(LINE / 10.0), 1).run();
    assert!((outcome.completions[0].time_us - 9.53664).abs() < 1e-9);

    // In bursts of five, the second burst starts after 5 · 819.2 = 4096 ns. Its last packet follows
    // after four more packet times of 81.92 ns.
    let mut bursts = one;
    bursts.hosts.burst_packets = 5;
    let outcome = Simulation::new(&bursts, |_, _| Constant(LINE / 10.0), 1).run();
    let expected = 4.096 + 4.0 * 0.08192 + 2.16384;
    assert!((outcome.completions[0].time_us - expected).abs() < 1e-9);
}

#[test]
fn flows_of_a_host_take_turns() {
    // Two flows of one host at line rate, bursts of two packets, six packets each: the host sends
    // AABBAABBAABB. A's last packet is the 10th to leave, B's the 12th. The switch queues none.
    let mut scenario = listed_flows(&[(1, 0, Some(6), Time::ZERO), (1, 0, Some(6), Time::ZERO)]);
    scenario.hosts.burst_packets = 2;
    let outcome = Simulation::new(&scenario, |_, _| Constant(LINE), 1).run();
    let end = |flow: usize| outcome.completions[flow].time_us;
    assert!((end(0) - (10.0 * 0.08192 + 2.08192)).abs() < 1e-9);
    assert!((end(1) - (12.0 * 0.08192 + 2.08192)).abs() < 1e-9);
    assert_eq!(outcome.queue_latency.max_us, 0.0);
}

#[test]
fn probe_sees_the_base_round_trip() {
    #[derive(Clone)]
    struct Watch(Time);
    impl Controller for Watch {
        fn required_signals(&self) -> Needs {
            Needs::PROBES
        }
        fn start_flow(&mut self, setup: &Setup, _: &mut Context<'_>) {
            self.0 = setup.base_rtt;
        }
        fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
            assert_eq!(response.rtt, self.0);
            assert_eq!(context.now, response.sent_at + response.rtt);
            assert_eq!(response.acked_bytes, 1024);
        }
    }
    let scenario = listed_flows(&[(1, 0, Some(1), Time::from_us(7))]);
    let setup = |_: u32, setup: &Setup| {
        assert_eq!(setup.base_rtt, Time::from_us(12));
        assert_eq!(setup.hops, 2);
        Watch(Time::ZERO)
    };
    let outcome = Simulation::new(&scenario, setup, 1).run();
    assert_eq!(outcome.counts.decisions, 1);
}

/// Poisson arrivals at a port: every flow sends one packet at a random moment.
#[test]
fn mean_wait_is_that_of_an_m_d_1_queue() {
    // 64 hosts, each with many flows of one packet that start at independent, uniformly distributed
    // moments. To a very good approximation, arrivals at the port are a Poisson process. Each host
    // sends 1/64 of them, so queueing in hosts hardly matters. Pollaczek and Khinchine: mean wait =
    // ρ/(2(1−ρ)) · service time.
    for load in [0.5, 0.8] {
        let hosts = 64u32;
        let spread = Time::from_us(20_000);
        let packets = (load * spread.ps() as f64 / TX as f64) as u32;
        let mut waits = Vec::new();
        for seed in 0..8 {
            let mut scenario = many_to_one(1);
            scenario.topology = Topology::Star { hosts: hosts + 1 };
            scenario.hosts.start_spread = spread;
            scenario.warmup = Time::from_us(500);
            scenario.duration = spread;
            scenario.workload = Workload::Flows(
                (0..packets)
                    .map(|flow| crate::scenario::FlowPlan {
                        from: 1 + flow % hosts,
                        to: 0,
                        bytes: Some(1024),
                        start: None,
                    })
                    .collect(),
            );
            let outcome = Simulation::new(&scenario, |_, _| Constant(LINE), seed).run();
            waits.push(outcome.queue_latency.mean_us * 1e3);
        }
        let count = waits.len() as f64;
        let mean = waits.iter().sum::<f64>() / count;
        let variance = waits.iter().map(|wait| (wait - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let error = (variance / count).sqrt();
        let expected = load / (2.0 * (1.0 - load)) * TX as f64 * 1e-3;
        // Student's t with 7 degrees of freedom: 5.4 is exceeded once in a thousand. Another 2 %
        // are for arrivals that are smoother than Poisson.
        assert!(
            (mean - expected).abs() < 5.4 * error + 0.02 * expected,
            "load {load}: {mean} ± {error} ns, expected {expected}"
        );
        assert!(error < 0.05 * expected, "too few samples to tell: {error}");
    }
}

#[test]
fn marks_grow_with_the_queue() {
    // Two hosts send 60 Gbit/s each into 100 Gbit/s. The queue grows by 20 Gbit/s, 2500 bytes a µs,
    // up to the limit of 10 MiB after 4.2 ms. From Kmin (1 MB, after 400 µs) to Kmax (5 MB, after
    // 2000 µs) the probability grows linearly from 0 to 0.5; beyond it is 1. Of the packets in the
    // first 2000 µs, 120 Gbit/s · 1600 µs / 8192 = 23,437 are in the ramp. With a mean probability
    // of 0.25 that is 5859 marks, standard deviation below √(23437/4) = 77.
    #[derive(Clone)]
    struct Marks(std::sync::Arc<std::sync::atomic::AtomicU64>);
    impl Controller for Marks {
        fn required_signals(&self) -> Needs {
            Needs {
                acks: true,
                ..Needs::default()
            }
        }
        fn start_flow(&mut self, _: &Setup, context: &mut Context<'_>) {
            context.command.rate_bps = 60e9;
        }
        fn on_ack(&mut self, ack: &Ack<'_>, _: &mut Context<'_>) {
            self.0
                .fetch_add(u64::from(ack.marked), std::sync::atomic::Ordering::Relaxed);
        }
    }
    let mut scenario = listed_flows(&[(1, 0, None, Time::ZERO), (2, 0, None, Time::from_ns(100))]);
    scenario.network.ecn = Some(Ecn {
        min_bytes: 1_000_000,
        max_bytes: 5_000_000,
        max_probability: 0.5,
    });
    scenario.network.base_rtt = None;
    let run = |until_us: u64| {
        let marks = std::sync::Arc::default();
        let shared = std::sync::Arc::clone(&marks);
        let mut scenario = scenario.clone();
        // ACKs of packets that arrived at the port by then: queueing up to 400 µs, way back.
        scenario.duration = Time::from_us(until_us);
        Simulation::new(
            &scenario,
            move |_, _| Marks(std::sync::Arc::clone(&shared)),
            5,
        )
        .run();
        marks.load(std::sync::atomic::Ordering::Relaxed)
    };
    // The packet that finds 1 MB leaves 80 µs later; the one that finds 5 MB, 400 µs later.
    assert_eq!(run(470), 0);
    let ramp = run(2_400);
    assert!(ramp.abs_diff(5_859) < 5 * 77 + 60, "{ramp}");
    // Beyond Kmax all packets are marked. 100 µs of arrivals at Kmax take 120 µs to be
    // acknowledged; at 100 Gbit/s that is 12,207 packets a ms.
    let more = run(2_900) - run(2_500);
    assert!(more.abs_diff(4_883) < 10, "{more}");
}

/// Counts reports of losses by kind.
#[derive(Clone, Default)]
struct Losses {
    heard: std::sync::Arc<std::sync::Mutex<(u32, u32)>>,
    rate_bps: f64,
}

impl Controller for Losses {
    fn required_signals(&self) -> Needs {
        Needs {
            losses: true,
            ..Needs::default()
        }
    }
    fn start_flow(&mut self, _: &Setup, context: &mut Context<'_>) {
        context.command.rate_bps = self.rate_bps;
    }
    fn on_loss(&mut self, loss: Loss, _: &mut Context<'_>) {
        let mut heard = self.heard.lock().unwrap();
        match loss {
            Loss::Gap => heard.0 += 1,
            Loss::Timeout => heard.1 += 1,
        }
    }
}

#[test]
fn what_is_lost_is_repeated() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        for reaction in [Time::ZERO, Time::from_us(5)] {
            // Four senders at different rates into a queue of 20 packets. At equal rates some would
            // always find room and others never.
            let flows: Vec<_> = (1..5)
                .map(|host| (host, 0, Some(500), Time::from_ns(u64::from(host) * 13)))
                .collect();
            let mut scenario = listed_flows(&flows);
            scenario.duration = Time::from_us(200_000);
            scenario.network.link.queue_bytes = 20 * 1024;
            scenario.hosts.recovery = recovery;
            scenario.hosts.reaction = reaction;
            scenario.hosts.timeout = Time::from_us(500);
            let losses = Losses::default();
            let shared = losses.clone();
            let lossy = move |flow: u32, _: &Setup| Losses {
                rate_bps: 40e9 + 7.3e9 * f64::from(flow),
                ..shared.clone()
            };
            let outcome = Simulation::new(&scenario, lossy, 1).run();
            let counts = outcome.counts;
            assert!(counts.dropped_packets > 100, "{recovery:?}");
            assert_eq!(outcome.completions.len(), 4, "{recovery:?}");
            // Each packet arrived exactly once.
            assert_eq!(counts.delivered_packets - counts.wasted_packets, 4 * 500);
            assert_eq!(counts.underway_packets, 0);
            if recovery == Recovery::SelectiveRepeat {
                assert_eq!(counts.wasted_packets, 0);
                assert_eq!(counts.sent_packets, 2_000 + counts.dropped_packets);
            } else {
                assert!(counts.wasted_packets > 0);
            }
            let heard = *losses.heard.lock().unwrap();
            assert!(heard.0 > 0, "{recovery:?}: {heard:?}");
        }
    }
}

/// What it heard of losses with each response to a probe.
type Heard = std::sync::Arc<std::sync::Mutex<Vec<(u64, Time, u64)>>>;

/// A controller that asks for more than it looks at.
struct Curious {
    inner: crate::cc::AnyController,
    seed: u64,
    losses: bool,
    lost_bytes: bool,
    heard: Heard,
}

impl Controller for Curious {
    fn required_signals(&self) -> Needs {
        Needs {
            losses: self.losses,
            lost_bytes: self.lost_bytes,
            ..self.inner.required_signals()
        }
    }
    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.seed = setup.seed;
        self.inner.start_flow(setup, context);
    }
    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let heard = (self.seed, context.now, response.lost_bytes);
        self.heard.lock().unwrap().push(heard);
        self.inner.on_response(response, context);
    }
    fn on_probe_lost(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        self.inner.on_probe_lost(response, context);
    }
    fn on_notification(&mut self, context: &mut Context<'_>) {
        self.inner.on_notification(context);
    }
    fn on_timer(&mut self, timer: usize, context: &mut Context<'_>) {
        self.inner.on_timer(timer, context);
    }
}

/// Where nobody asks for losses, drops of endless flows are forgotten. Only the number of events may
/// differ, and lost bytes that nobody asked for.
#[test]
fn forgotten_drops_change_no_outcome() {
    let mut lost_bytes = 0;
    for (controller, leaves) in [
        ("dcqcn", false),
        ("proportional", false),
        ("proportional", true),
    ] {
        for (seed, timeout) in [(1, 100), (2, 4_000)] {
            let mut scenario = many_to_one(24);
            scenario.network.link.queue_bytes = 100 << 10;
            scenario.network.ecn = Some(Ecn {
                min_bytes: 20_000,
                max_bytes: 80_000,
                max_probability: 0.2,
            });
            scenario.hosts.timeout = Time::from_us(timeout);
            scenario.hosts.start_spread = Time::from_us(100);
            if leaves {
                // Drops at either of three ports, some known before those of earlier packets.
                scenario.topology = Topology::LeafSpine {
                    leaves: 3,
                    spines: 2,
                    hosts_per_leaf: 3,
                };
                scenario.network.fabric.rate_bps /= 4;
                scenario.workload = Workload::AllToAll { flows_per_pair: 1 };
            }
            let spec: crate::cc::Spec = controller.parse().unwrap();
            let run = |losses, lost_bytes| {
                let heard = Heard::default();
                let (shared, spec) = (std::sync::Arc::clone(&heard), spec.clone());
                let factory = move |_: u32, _: &Setup| Curious {
                    inner: spec.build(),
                    seed: 0,
                    losses,
                    lost_bytes,
                    heard: std::sync::Arc::clone(&shared),
                };
                let mut outcome = Simulation::new(&scenario, factory, seed).run();
                let events = std::mem::take(&mut outcome.counts.events);
                let heard = heard.lock().unwrap().clone();
                (outcome, heard, events)
            };
            let (told, all, most) = run(true, true);
            assert!(told.counts.dropped_packets > 10_000, "{controller}");
            let (counted, same, fewer) = run(false, true);
            let (forgotten, none, fewest) = run(false, false);
            assert!(fewer < most && fewest <= fewer, "{controller}");
            assert_eq!(told, counted, "{controller}, seed {seed}");
            assert_eq!(told, forgotten, "{controller}, seed {seed}");
            assert_eq!(all, same, "{controller}, seed {seed}");
            assert!(none.iter().all(|(_, _, lost)| *lost == 0), "{controller}");
            lost_bytes += all.iter().map(|(_, _, lost)| lost).sum::<u64>();
        }
    }
    // Not all times out before a later packet arrives.
    assert!(lost_bytes > 50 * 1024, "{lost_bytes}");
}

#[test]
fn a_lost_tail_times_out() {
    // The second sender's packets arrive 1 ns after those of the first, at a queue of two packets.
    // From the second pair on, the first sender's packet has just filled the queue. So five of the
    // second sender's packets are lost. No later packet shows the gap, and each times out by
    // itself.
    let mut scenario = listed_flows(&[
        (1, 0, Some(6), Time::ZERO),
        (2, 0, Some(6), Time::from_ns(1)),
    ]);
    scenario.network.link.queue_bytes = 2 * 1024;
    scenario.hosts.timeout = Time::from_us(100);
    let losses = Losses {
        rate_bps: LINE,
        ..Losses::default()
    };
    let shared = losses.clone();
    let outcome = Simulation::new(&scenario, move |_, _| shared.clone(), 1).run();
    assert_eq!(outcome.completions.len(), 2);
    // The last packet of the second flow is dropped. It left at 5·81.92 + 1 ns, times out 100 µs
    // later, and arrives 2163.84 ns after that.
    let last = outcome.completions[1];
    assert_eq!(last.flow, 1);
    let expected = 5.0 * 0.08192 + 100.0 + 2.16384;
    assert!((last.time_us - expected).abs() < 1e-6, "{last:?}");
    assert_eq!(*losses.heard.lock().unwrap(), (0, 5));
    assert_eq!(outcome.counts.dropped_packets, 5);
}

/// Records the outcome of its probes: when it was known, and the time it took.
#[derive(Clone, Default)]
struct Probes {
    answered: std::sync::Arc<std::sync::Mutex<Vec<(Time, Time)>>>,
    lost: std::sync::Arc<std::sync::Mutex<Vec<(Time, Time)>>>,
}

impl Controller for Probes {
    fn required_signals(&self) -> Needs {
        Needs::PROBES
    }
    fn start_flow(&mut self, _: &Setup, context: &mut Context<'_>) {
        context.command.rate_bps = LINE;
    }
    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let heard = (context.now, response.rtt);
        self.answered.lock().unwrap().push(heard);
    }
    fn on_probe_lost(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        assert_eq!((response.acked_bytes, response.lost_bytes), (0, 1024));
        self.lost.lock().unwrap().push((context.now, response.rtt));
    }
}

#[test]
fn a_lost_probe_is_heard_of_when_its_loss_is_known() {
    // Both senders' packets arrive at a queue of one packet, the second sender's 1 ns later. The
    // second sender's packets are lost while the first sends. Its probe is its first packet.
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        for (packets, known) in [
            // A seventh packet gets through. It leaves at 6·81.92 + 1 ns. The response, which
            // reports the gap, is back a base round-trip time of 12 µs later.
            (7, Time::from_ps(6 * TX + 12_001_000)),
            // All are lost: a time-out after 100 µs.
            (6, Time::from_ps(100_001_000)),
        ] {
            let mut scenario = listed_flows(&[
                (1, 0, Some(6), Time::ZERO),
                (2, 0, Some(packets), Time::from_ns(1)),
            ]);
            scenario.network.link.queue_bytes = 1024;
            scenario.hosts.recovery = recovery;
            scenario.hosts.timeout = Time::from_us(100);
            let flows = [Probes::default(), Probes::default()];
            let shared = flows.clone();
            let outcome =
                Simulation::new(&scenario, move |flow, _| shared[flow as usize].clone(), 1).run();
            assert_eq!(outcome.completions.len(), 2);
            assert!(flows[0].lost.lock().unwrap().is_empty());
            assert_eq!(flows[0].answered.lock().unwrap().len(), 1);
            let expected = vec![(known, known - Time::from_ns(1))];
            assert_eq!(*flows[1].lost.lock().unwrap(), expected, "{recovery:?}");
        }
    }
}

#[test]
fn windows_limit_what_is_under_way() {
    // A window of 8 packets and a round trip of 12 µs: 8 packets per 12 µs, as all eight leave
    // within it. 8·8192 bit / 12 µs = 5.461 Gbit/s.
    struct Window;
    impl Controller for Window {
        fn required_signals(&self) -> Needs {
            Needs {
                acks: true,
                ..Needs::default()
            }
        }
        fn start_flow(&mut self, _: &Setup, context: &mut Context<'_>) {
            context.command.window_bytes = 8.5 * 1024.0;
        }
        fn on_ack(&mut self, ack: &Ack<'_>, _: &mut Context<'_>) {
            assert!(ack.sent_bytes - ack.ack_bytes <= 7 * 1024);
            assert_eq!(ack.rtt, Time::from_us(12));
        }
    }
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        let mut scenario = listed_flows(&[(1, 0, None, Time::ZERO)]);
        scenario.hosts.recovery = recovery;
        // Later the controller would count what the ACK itself let go.
        scenario.hosts.reaction = Time::ZERO;
        scenario.duration = Time::from_us(1_200);
        let outcome = Simulation::new(&scenario, |_, _| Window, 1).run();
        // 100 rounds of 8; the last round's packets have not arrived.
        let arrived = outcome.counts.delivered_packets;
        assert!((793..=800).contains(&arrived), "{arrived}");
    }
}

#[test]
fn decisions_outside_are_those_inside() {
    for reaction in [Time::ZERO, Time::from_us(1), Time::from_us(40)] {
        for mut scenario in scenarios() {
            scenario.hosts.reaction = reaction;
            let inside = Simulation::new(&scenario, |_, setup| Proportional::new(setup), 9).run();
            let mut policies = Vec::new();
            let mut simulation = Simulation::with_outside_decisions(
                &scenario,
                |_, setup| {
                    policies.push(Proportional::new(setup));
                    setup.line_rate_bps / 20.0
                },
                9,
            );
            let mut pending = Vec::new();
            let (mut batches, mut decided, mut lost) = (0u64, 0u64, 0u64);
            while simulation.advance(&mut pending) {
                assert!(!pending.is_empty());
                batches += 1;
                for decision in &pending {
                    decided += 1;
                    let factor = if decision.probe_lost {
                        lost += 1;
                        Proportional::after_loss(decision.rtt)
                    } else {
                        policies[decision.flow as usize]
                            .rate_multiplier(decision.rtt, decision.rate_bps)
                    };
                    simulation.decide(decision.flow, Decision::Multiply(factor));
                }
            }
            let outside = simulation.outcome_so_far();
            assert_eq!(inside, outside, "{} {reaction}", scenario.name);
            assert!(batches > 10 && decided > batches, "{decided} in {batches}");
            assert!(lost > 10 || scenario.name != "lossy", "{lost} of {decided}");
        }
    }
}

#[test]
fn runs_are_the_same_on_any_number_of_threads() {
    let scenario = many_to_one(64);
    let run = |seed| Simulation::new(&scenario, |_, setup| Proportional::new(setup), seed).run();
    let alone: Vec<_> = (0..4).map(run).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || run(seed))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(alone, together);
    assert_ne!(alone[0].flows, alone[1].flows);
}

#[test]
fn the_fixed_point_is_fair() {
    // At infl·√rate = target all flows have the same rate, as all see the same queue.
    let mut scenario = many_to_one(64);
    scenario.duration = Time::from_us(20_000);
    scenario.warmup = Time::from_us(10_000);
    let outcome = Simulation::new(&scenario, |_, setup| Proportional::new(setup), 1).run();
    assert!(
        outcome.fairness_percent > 85.0,
        "{}",
        outcome.fairness_percent
    );
    assert!(outcome.utilisation_percent > 95.0);
}

#[test]
fn reaction_time_delays_what_is_decided() {
    // A flow doubles its rate with each probe response, from 1 Gbit/s: gaps of 8192 ns. The
    // response to the first packet (left at 0) comes at 12 µs. Without a reaction time, the packet
    // that is due at 8.192 + 8.192 µs is then due at 12.288 µs, 4.096 µs after the second one
    // started. With 4 µs, the command takes effect at 16 µs: the third packet leaves then.
    struct Double;
    impl Controller for Double {
        fn required_signals(&self) -> Needs {
            Needs::PROBES
        }
        fn start_flow(&mut self, _: &Setup, context: &mut Context<'_>) {
            context.command.rate_bps = 1e9;
        }
        fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
            assert_eq!(context.now, response.sent_at + response.rtt);
            context.command.rate_bps *= 2.0;
        }
    }
    for (reaction_us, third_us) in [(0, 12.288), (4, 16.0)] {
        let mut scenario = listed_flows(&[(1, 0, Some(3), Time::ZERO)]);
        scenario.hosts.reaction = Time::from_us(reaction_us);
        let outcome = Simulation::new(&scenario, |_, _| Double, 1).run();
        let found = outcome.completions[0].time_us;
        assert!((found - third_us - 2.16384).abs() < 1e-9, "{found}");
    }
}

#[test]
fn a_late_controller_knows_what_has_been_sent_meanwhile() {
    // 10 Gbit/s, a packet of 8192 bit each 819.2 ns. The packet's ACK comes 12 µs after it left,
    // with 14 more packets behind it; 40 µs later 63 have left.
    struct Paced(u64);
    impl Controller for Paced {
        fn required_signals(&self) -> Needs {
            Needs {
                acks: true,
                ..Needs::default()
            }
        }
        fn start_flow(&mut self, _: &Setup, context: &mut Context<'_>) {
            context.command.rate_bps = 10e9;
        }
        fn on_ack(&mut self, ack: &Ack<'_>, _: &mut Context<'_>) {
            assert_eq!(ack.sent_bytes - ack.ack_bytes, self.0 * 1024);
        }
    }
    for (reaction_us, behind) in [(0, 14), (40, 63)] {
        let mut scenario = listed_flows(&[(1, 0, None, Time::ZERO)]);
        scenario.hosts.reaction = Time::from_us(reaction_us);
        scenario.duration = Time::from_us(1_200);
        let outcome = Simulation::new(&scenario, move |_, _| Paced(behind), 1).run();
        assert!(outcome.counts.delivered_packets > 1_400);
    }
}
