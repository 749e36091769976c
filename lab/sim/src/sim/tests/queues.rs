//! Ports with explicit queues, and pause frames.

use super::*;

#[test]
fn computed_and_listed_queues_agree() {
    for mut scenario in scenarios() {
        if !matches!(scenario.topology, Topology::Star { .. }) {
            // Where several ports are busy all the time, packets of different ports arrive at the
            // same picosecond, in either order. Short flows with random starts still queue behind
            // each other, but such ties are rare.
            let hosts = scenario.topology.hosts() as u32;
            scenario.workload = Workload::Flows(
                (0..3_000)
                    .map(|flow| crate::scenario::FlowPlan {
                        from: flow % hosts,
                        to: (flow + 1 + flow / hosts % (hosts - 1)) % hosts,
                        bytes: Some(4 * 1024),
                        start: None,
                    })
                    .collect(),
            );
            scenario.hosts.start_spread = Time::from_us(4_000);
        }
        for burst in [1, 3] {
            let mut computed = scenario.clone();
            computed.hosts.burst_packets = burst;
            computed.series = Some(Time::from_us(50));
            let mut listed = computed.clone();
            listed.network.explicit_queues = true;
            let run = |scenario: &Scenario| {
                let mut simulation =
                    Simulation::new(scenario, |_, setup| Proportional::new(setup), 11);
                if scenario.name == "lossy" {
                    // Late packets determine later sends. So departures from all hosts end up on
                    // the time grid of the one busy port.
                    untie(&mut simulation);
                }
                let mut outcome = simulation.run();
                outcome.counts.events = 0;
                // Some flows end at the same picosecond, in either order.
                outcome
                    .completions
                    .sort_by_key(|done| (done.flow, done.start_us as u64));
                // Packets that leave a host or a port just before the end are in flight in one run.
                // In the other they are dropped or on the last link. Both add up.
                assert!(outcome.counts.all_packets_accounted());
                (
                    outcome.counts.underway_packets,
                    outcome.counts.dropped_packets,
                ) = (0, 0);
                outcome
            };
            let tree = !matches!(scenario.topology, Topology::Star { .. });
            let (mut computed, mut listed) = (run(&computed), run(&listed));
            assert!(computed.queue_latency.max_us > 0.1);
            assert!(computed.counts.delivered_packets > 5_000);
            if tree {
                // Two packets that arrive at the same time may swap places.
                let mut swapped = 0;
                for (one, other) in computed.completions.iter().zip(&listed.completions) {
                    let apart = (one.time_us - other.time_us).abs();
                    assert_eq!(one.flow, other.flow);
                    assert!(
                        apart < 1e-9 || (apart - 0.08192).abs() < 1e-9,
                        "{one:?} {other:?}"
                    );
                    swapped += u32::from(apart > 1e-9);
                }
                assert!(swapped <= 4, "{swapped}");
                assert_eq!(computed.completions.len(), listed.completions.len());
                // Values derived from their times may swap, too.
                for outcome in [&mut computed, &mut listed] {
                    outcome.completions.clear();
                    outcome.slowdowns.clear();
                    if let Some(series) = &mut outcome.series {
                        series.queue_latency.clear();
                    }
                }
            }
            assert_eq!(computed.flows, listed.flows, "{} {burst}", scenario.name);
            assert_eq!(computed, listed, "{} {burst}", scenario.name);
        }
    }
}

/// Lengthens each link by a time of its own, below a packet's. Packets from one link over different
/// paths then never meet at the same picosecond. Shifts stay valid: they are lower bounds of a
/// packet's time.
fn untie<C, Q>(simulation: &mut Simulation<C, Q>) {
    let mut rng = crate::rng::random_stream(1, 2);
    let ports = simulation
        .fabric
        .ports
        .iter_mut()
        .map(|port| &mut port.delay);
    let hosts = simulation
        .transport
        .hosts
        .iter_mut()
        .map(|host| &mut host.delay);
    for delay in ports.chain(hosts) {
        *delay += Time::from_ps(rng.below(TX));
    }
}

#[test]
fn computed_and_listed_queues_agree_in_full_trees_without_ties() {
    // All ports are busy. With links of equal length, many packets would arrive at the same
    // picosecond, in either order. Without such ties the runs are identical.
    let trees = scenarios()
        .into_iter()
        .filter(|scenario| !matches!(scenario.topology, Topology::Star { .. }));
    let mut compared = 0;
    for scenario in trees {
        for seed in 0..4 {
            let run = |explicit: bool| {
                let mut scenario = scenario.clone();
                scenario.network.explicit_queues = explicit;
                let mut simulation =
                    Simulation::new(&scenario, |_, setup| Proportional::new(setup), seed);
                untie(&mut simulation);
                let mut outcome = simulation.run();
                assert!(outcome.counts.all_packets_accounted());
                // Just before the end, as above.
                outcome.counts.events = 0;
                outcome.counts.underway_packets = 0;
                outcome.counts.dropped_packets = 0;
                outcome
            };
            let (computed, listed) = (run(false), run(true));
            assert!(computed.queue_latency.max_us > 1.0);
            assert_eq!(computed, listed, "{} {seed}", scenario.name);
            compared += computed.counts.delivered_packets;
        }
    }
    assert!(compared > 100_000, "{compared}");
}

#[test]
fn short_flows_begin_again() {
    // The long flow sends a packet at 0 and then nothing for 8.192 ms. Each short flow sends ten
    // packets from 100 µs on. Flow 1 sends one every 819.2 ns; the last arrives after 9 · 819.2 +
    // 2163.84 ns = 9.53664 µs. Flow 2, at half the rate, takes 9 · 1638.4 + 2163.84 ns = 16.90944
    // µs. Where packets meet, flow 1 is first, and the last of flow 2 meets none. Together, both
    // start 100 µs after the slower has ended: every 116.90944 µs, from 100 µs to 100 + 41 ·
    // 116.90944 = 4893.3 µs. Alone, flow 1 starts every 109.53664 µs, to 100 + 44 · 109.53664 =
    // 4919.6 µs.
    let times = [9.53664, 16.90944];
    for (flows, together, period, rounds) in [(3, true, 116.90944, 42), (2, false, 109.53664, 45)] {
        let mut scenario = many_to_one(1);
        scenario.hosts.start_spread = Time::ZERO;
        scenario.workload = Workload::LongShort {
            senders: 3,
            flows,
            burst_bytes: 10 * 1024,
            idle: Time::from_us(100),
            per_host: false,
            together,
        };
        let rates = [1e6, LINE / 10.0, LINE / 20.0];
        let outcome =
            Simulation::new(&scenario, move |flow, _| Constant(rates[flow as usize]), 1).run();
        for flow in 1..flows {
            let done: Vec<_> = outcome
                .completions
                .iter()
                .filter(|done| done.flow == flow)
                .collect();
            assert_eq!(done.len(), rounds, "{flow} {together}");
            for (round, done) in done.into_iter().enumerate() {
                let start = 100.0 + round as f64 * period;
                assert!((done.start_us - start).abs() < 1e-6, "{round}: {done:?}");
                assert!(
                    (done.time_us - times[flow as usize - 1]).abs() < 1e-6,
                    "{done:?}"
                );
            }
        }
        // The long flow never ends, and its packets do not count for the short ones.
        assert!(outcome.completions.iter().all(|done| done.flow > 0));
        assert!(outcome.long_short.is_some());
    }
}

#[test]
fn pauses_prevent_loss() {
    // Eight hosts at line rate into one. Without pauses most packets are lost. With them none is,
    // and the receiver's link is full.
    let flows: Vec<_> = (1..9)
        .map(|host| (host, 0, None, Time::from_ns(u64::from(host) * 17)))
        .collect();
    for topology in [
        Topology::Star { hosts: 9 },
        Topology::LeafSpine {
            leaves: 3,
            spines: 2,
            hosts_per_leaf: 3,
        },
    ] {
        let mut scenario = listed_flows(&flows);
        scenario.topology = topology;
        scenario.network.link.queue_bytes = 1_000_000;
        scenario.network.fabric.queue_bytes = 1_000_000;
        scenario.warmup = Time::from_us(500);
        let lossy = Simulation::new(&scenario, |_, _| Constant(LINE), 1).run();
        assert!(lossy.counts.dropped_packets > 10_000);
        scenario.network.pause = Some(crate::scenario::Pause {
            stop_bytes: 50_000,
            go_bytes: 40_000,
        });
        let lossless = Simulation::new(&scenario, |_, _| Constant(LINE), 1).run();
        assert_eq!(lossless.counts.dropped_packets, 0);
        assert!(lossless.counts.pauses > 10, "{:?}", lossless.counts);
        assert!(lossless.utilisation_percent > 99.9);
    }
}
