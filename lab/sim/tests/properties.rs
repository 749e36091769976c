//! Invariants of every simulation, whatever the network, the traffic and the controller.

use proptest::prelude::*;
use thalweg_sim::cc::{Ack, Context, Controller, Loss, Needs, Response, Setup};
use thalweg_sim::engine::{EventQueue, Heap, Wheel};
use thalweg_sim::scenario::{
    Ecn, FlowPlan, Hosts, Link, Network, Pause, Recovery, Topology, Workload,
};
use thalweg_sim::{Outcome, Scenario, Simulation, Time};

/// Acts at random at every call.
#[derive(Debug, Clone)]
struct Erratic {
    needs: Needs,
    line: f64,
    state: u64,
}

impl Erratic {
    fn act(&mut self, context: &mut Context<'_>) {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let part = (self.state >> 40) as f64 / (1u64 << 24) as f64;
        match self.state >> 33 & 7 {
            0..4 => context.command.rate_bps = self.line * part * part,
            4 if self.needs.acks => context.command.window_bytes = part * 50_000.0,
            5 => context.timers[0] = context.now + Time::from_ps((part * 3e7) as u64),
            6 => context.timers[2] = Time::MAX,
            _ => {}
        }
    }
}

impl Controller for Erratic {
    fn required_signals(&self) -> Needs {
        self.needs
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.line = setup.line_rate_bps;
        self.state = setup.seed;
        self.act(context);
    }

    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        assert_eq!(context.now, response.sent_at + response.rtt);
        assert!(response.marked_bytes <= response.acked_bytes);
        for pair in response.hops.windows(2) {
            assert!(pair[0].at < pair[1].at);
        }
        self.act(context);
    }

    fn on_probe_lost(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        assert_eq!(context.now, response.sent_at + response.rtt);
        assert!(response.hops.is_empty());
        self.act(context);
    }

    fn on_ack(&mut self, ack: &Ack<'_>, context: &mut Context<'_>) {
        assert!(ack.ack_bytes <= ack.sent_bytes);
        self.act(context);
    }

    fn on_notification(&mut self, context: &mut Context<'_>) {
        self.act(context);
    }

    fn on_loss(&mut self, _: Loss, context: &mut Context<'_>) {
        self.act(context);
    }

    fn on_timer(&mut self, timer: usize, context: &mut Context<'_>) {
        assert_eq!(context.timers[timer], Time::MAX);
        self.act(context);
    }

    fn on_sent(&mut self, _: u32, context: &mut Context<'_>) {
        self.act(context);
    }
}

fn topologies() -> impl Strategy<Value = Topology> {
    prop_oneof![
        (2u32..12).prop_map(|hosts| Topology::Star { hosts }),
        (1u32..4, 1u32..4, 2u32..4).prop_map(|(leaves, spines, hosts_per_leaf)| {
            Topology::LeafSpine {
                leaves,
                spines,
                hosts_per_leaf,
            }
        }),
        Just(Topology::FatTree { ports: 4 }),
    ]
}

fn links() -> impl Strategy<Value = Link> {
    let rates = prop_oneof![Just(10u64), Just(25), Just(100), Just(400), 1u64..1_000];
    (rates, 0u64..3_000, 2_000u64..300_000).prop_map(|(gbps, delay_ns, queue_bytes)| Link {
        rate_bps: gbps * 1_000_000_000,
        delay: Time::from_ns(delay_ns),
        queue_bytes,
        bucket_bytes: 0,
    })
}

fn flows(hosts: u32) -> impl Strategy<Value = Vec<FlowPlan>> {
    let flow = (
        0..hosts,
        1..hosts,
        proptest::option::weighted(0.6, 1u64..200_000),
        proptest::option::of(0u64..300),
    );
    proptest::collection::vec(flow, 1..40).prop_map(move |flows| {
        flows
            .into_iter()
            .map(|(from, step, bytes, start_us)| FlowPlan {
                from,
                to: (from + step) % hosts,
                bytes,
                start: start_us.map(Time::from_us),
            })
            .collect()
    })
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let networks = (
        topologies(),
        links(),
        links(),
        512u32..2_000,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    let hosts = (1u32..6, 0u64..20, any::<bool>());
    (networks, hosts).prop_flat_map(|(network, hosts)| {
        let (topology, link, fabric, packet_bytes, ecn, pause, explicit_queues) = network;
        let (burst_packets, reaction_us, go_back) = hosts;
        flows(topology.hosts() as u32).prop_map(move |flows| Scenario {
            name: "random".into(),
            description: String::new(),
            duration: Time::from_us(1_000),
            warmup: Time::from_us(100),
            topology,
            network: Network {
                link,
                fabric,
                packet_bytes,
                answer_bytes: 64,
                base_rtt: None,
                ecn: ecn.then_some(Ecn {
                    min_bytes: 3_000,
                    max_bytes: 30_000,
                    max_probability: 0.5,
                }),
                pause: pause.then_some(Pause {
                    stop_bytes: 20_000,
                    go_bytes: 10_000,
                }),
                explicit_queues,
            },
            hosts: Hosts {
                burst_packets,
                start_spread: Time::from_us(200),
                reaction: Time::from_us(reaction_us),
                min_rate_bps: 1_000_000,
                recovery: if go_back {
                    Recovery::GoBackN
                } else {
                    Recovery::SelectiveRepeat
                },
                timeout: Time::from_us(200),
                linux: None,
            },
            workload: Workload::Flows(flows),
            series: Some(Time::from_us(100)),
            expect: Vec::new(),
            only_bounds_harm: false,
        })
    })
}

fn needs() -> impl Strategy<Value = Needs> {
    (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<[bool; 2]>(),
        proptest::option::of(1u64..60),
    )
        .prop_map(
            |(probes, acks, telemetry, sent, [losses, lost_bytes], notify_us)| Needs {
                probes,
                acks,
                telemetry,
                sent,
                losses,
                lost_bytes,
                notifications: notify_us.map(Time::from_us),
                ..Needs::default()
            },
        )
}

fn run<Q: EventQueue>(scenario: &Scenario, needs: Needs, seed: u64) -> Outcome {
    let factory = move |_: u32, _: &Setup| Erratic {
        needs,
        line: 0.0,
        state: 0,
    };
    Simulation::<_, Q>::with_queue(scenario, factory, seed).run()
}

fn check(scenario: &Scenario, outcome: &Outcome) {
    let counts = outcome.counts;
    assert!(counts.all_packets_accounted(), "{counts:?}");
    assert!(counts.wasted_packets <= counts.delivered_packets);
    let Workload::Flows(flows) = &scenario.workload else {
        panic!("another workload");
    };
    // Each flow ends at most once, and no sooner than its bits can cross.
    let mut ended: Vec<u32> = outcome.completions.iter().map(|done| done.flow).collect();
    ended.sort_unstable();
    ended.dedup();
    assert_eq!(ended.len(), outcome.completions.len());
    let link = scenario.network.link;
    for done in &outcome.completions {
        let bits = flows[done.flow as usize].bytes.expect("it has ended") as f64 * 8.0;
        let least = bits / link.rate_bps as f64 + 2.0 * link.delay.secs();
        assert!(done.time_us * 1e-6 >= least * (1.0 - 1e-6), "{done:?}");
    }
    for queue in &outcome.series.as_ref().expect("asked for").queues {
        assert!(queue.bytes.iter().all(|bytes| *bytes <= link.queue_bytes));
    }
    for port in &outcome.ports {
        // The first packet may have started to leave before the measured time. One packet of at
        // most 2000 bytes at 1 Gbit/s or more takes 16 µs of 900.
        assert!(port.utilisation_percent < 101.8, "{port:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_is_lost_without_a_trace(scenario in scenarios(), needs in needs(), seed: u64) {
        let outcome = run::<Wheel>(&scenario, needs, seed);
        check(&scenario, &outcome);
        let (heap, elsewhere) = std::thread::scope(|scope| {
            let heap = scope.spawn(|| run::<Heap>(&scenario, needs, seed));
            let again = scope.spawn(|| run::<Wheel>(&scenario, needs, seed));
            (heap.join().expect("no panic"), again.join().expect("no panic"))
        });
        prop_assert_eq!(&outcome, &heap);
        prop_assert_eq!(&outcome, &elsewhere);
    }
}
