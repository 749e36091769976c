//! Each mechanism alone, with values computed by hand.

use std::sync::{Arc, Mutex};

use super::*;
use crate::cc::tcp::{Event, Sample, Socket};
use crate::cc::thalweg_rl::ThalwegRl;
use crate::cc::{Context, Needs, Spec};
use crate::metrics::Outcome;
use crate::scenario::{Pacing, Rounds, RttSample, Topology, Workload};
use crate::sim::test_support;

/// What the controller saw: the time, µs, and the sample.
type Log = Arc<Mutex<Vec<(u64, Sample, Socket)>>>;

/// A fixed rate and window; keeps a log.
#[derive(Debug, Clone)]
struct Logging {
    /// Bytes of payload a second; 0: no pacing.
    rate: u64,
    window: u32,
    log: Log,
}

impl Controller for Logging {
    fn required_signals(&self) -> Needs {
        Needs::TCP
    }

    fn start_flow(&mut self, _: &Setup, _: &mut Context<'_>) {}

    fn on_tcp(&mut self, event: &Event, socket: &mut Socket) {
        if let Event::Ack(sample) = event {
            let mut log = self.log.lock().unwrap();
            log.push((socket.tcp_mstamp, *sample, socket.clone()));
        }
        socket.snd_cwnd = self.window;
        socket.sk_pacing_needed = self.rate > 0;
        socket.sk_pacing_rate = self.rate;
    }
}

/// One flow over 1 Gbit/s and 2 ms, with packets of 1514 bytes.
fn scenario(options: Linux) -> Scenario {
    let mut scenario = test_support::many_to_one(1);
    scenario.topology = Topology::Star { hosts: 2 };
    scenario.workload = Workload::ManyToOne {
        senders: 1,
        flows: 1,
    };
    scenario.warmup = Time::ZERO;
    scenario.duration = Time::from_us(400_000);
    scenario.network.packet_bytes = 1514;
    scenario.network.link.rate_bps = 1_000_000_000;
    scenario.network.link.delay = Time::from_us(500);
    scenario.network.fabric = scenario.network.link;
    scenario.network.base_rtt = Some(Time::from_us(2_100));
    scenario.hosts.start_spread = Time::ZERO;
    scenario.hosts.timeout = Time::from_us(200_000);
    scenario.hosts.linux = Some(options);
    scenario
}

/// As an interface with no limit, and nothing else of Linux.
fn plain() -> Linux {
    Linux {
        offload: false,
        gro: Time::ZERO,
        delayed_ack: Time::ZERO,
        rtt: RttSample::Packet,
        rounds: Rounds::Timed,
        window: false,
        pacing: Pacing::Exact,
        nic_bps: Some(1_000_000_000_000),
        ..Linux::default()
    }
}

fn run(scenario: &Scenario, rate: u64, window: u32) -> (Outcome, Vec<(u64, Sample, Socket)>) {
    let log = Log::default();
    let factory = {
        let log = Arc::clone(&log);
        move |_, _: &Setup| Logging {
            rate,
            window,
            log: Arc::clone(&log),
        }
    };
    let outcome = Simulation::new(scenario, factory, 1).run();
    assert!(outcome.counts.all_packets_accounted());
    let log = std::mem::take(&mut *log.lock().unwrap());
    (outcome, log)
}

/// Segments of each ACK in steady state, the times between ACKs, and the round-trip times, µs.
fn steady(log: &[(u64, Sample, Socket)]) -> (Vec<u32>, Vec<u64>, Vec<Option<u32>>) {
    let log = &log[40..60];
    (
        log.iter().map(|entry| entry.1.acked_sacked).collect(),
        log.windows(2).map(|pair| pair[1].0 - pair[0].0).collect(),
        log.iter().map(|entry| entry.1.rtt_us).collect(),
    )
}

#[test]
fn sizes_of_bursts() {
    let options = Linux::default();
    let mut connection = Connection::default();
    let mut segs = |rate_bps: u64, min_rtt_us| {
        connection.socket.mss_cache = 1448;
        connection.socket.sk_pacing_rate = rate_bps / 8;
        connection.socket.min_rtt_us = min_rtt_us;
        connection.tso_segs(&options)
    };
    // 1 Gbit/s / 1024 are 122 kB: 65,215 bytes at most, or 45 segments.
    assert_eq!(segs(1_000_000_000, 2_000), 45);
    // 100 Mbit/s / 1024 are 12,207 bytes. 2 ms add 65,215 / 2^3 = 8,151: 14 segments.
    assert_eq!(segs(100_000_000, 2_000), 14);
    // At 20 ms 2^39 divides them to nothing: 8 segments.
    assert_eq!(segs(100_000_000, 20_000), 8);
    assert_eq!(segs(1_000_000, 20_000), 2);
    let off = Linux {
        offload: false,
        ..options
    };
    assert_eq!(connection.tso_segs(&off), 1);
}

#[test]
fn half_the_window_is_kept_for_the_next_burst() {
    let mut connection = Connection::default();
    connection.socket.snd_cwnd = 20;
    assert_eq!(connection.cwnd_test(), 10);
    connection.socket.packets_out = 13;
    assert_eq!(connection.cwnd_test(), 7);
    connection.socket.packets_out = 20;
    assert_eq!(connection.cwnd_test(), 0);
    connection.socket.snd_cwnd = 1;
    connection.socket.packets_out = 0;
    assert_eq!(connection.cwnd_test(), 1);
}

#[test]
fn a_small_burst_waits_for_an_ack() {
    let mut connection = Connection::default();
    connection.socket.snd_cwnd = 30;
    connection.socket.packets_out = 25;
    connection.socket.srtt_us = 2_000 << 3;
    // 5 of 30 segments are less than a third and less than a burst; the ACK comes in 500 µs.
    assert!(connection.tso_should_defer(10, Some(1_500), 100, false));
    assert!(!connection.tso_should_defer(5, Some(1_500), 100, false));
    assert!(
        !connection.tso_should_defer(10, Some(900), 100, false),
        "too late"
    );
    assert!(
        !connection.tso_should_defer(10, None, 100, false),
        "none comes"
    );
    assert!(
        !connection.tso_should_defer(10, Some(1_500), 1_001, false),
        "a pause"
    );
    assert!(
        !connection.tso_should_defer(10, Some(1_500), 100, true),
        "recovery"
    );
    connection.socket.packets_out = 20;
    assert!(
        !connection.tso_should_defer(11, Some(1_500), 100, false),
        "a third"
    );
}

#[test]
fn pacing_makes_up_for_half_a_gap() {
    let mut connection = Connection::default();
    connection.socket.mss_cache = 1_000;
    connection.socket.sk_pacing_rate = 1_000_000;
    connection.socket.sk_pacing_needed = true;
    let us = Time::from_us;
    let mut send = |at, segs, pacing| {
        let stamp = connection.update_after_send(us(at), segs, pacing);
        (stamp, connection.wstamp)
    };
    // The first nine segments are not paced.
    assert_eq!(send(0, 9, Pacing::Internal), (us(0), us(0)));
    // Four segments take 4 ms.
    assert_eq!(send(0, 4, Pacing::Internal), (us(0), us(4_000)));
    // 1 ms late: 3 ms.
    assert_eq!(send(5_000, 4, Pacing::Internal), (us(5_000), us(8_000)));
    // 10 ms late: 2 ms.
    assert_eq!(send(18_000, 4, Pacing::Internal), (us(18_000), us(20_000)));
    assert_eq!(send(21_000, 4, Pacing::Exact), (us(21_000), us(25_000)));
}

/// 100 Mbit/s of payload and 2.1 ms: (12,207 + 65,215 / 2^4) / 1448 = 11 segments a burst. With
/// everything on, one ACK for each.
#[test]
fn bursts_are_acknowledged_as_one() {
    let options = Linux {
        nic_bps: Some(1_000_000_000_000),
        ..Linux::default()
    };
    let (_, log) = run(&scenario(options.clone()), 12_500_000, 1_000);
    let (segments, gaps, rtts) = steady(&log);
    assert!(segments.iter().all(|count| *count == 11), "{segments:?}");
    // 11 · 1448 / 12.5 MB/s = 1274.24 µs.
    assert!(
        gaps.iter().all(|gap| [1274, 1275].contains(gap)),
        "{gaps:?}"
    );
    // The last packet of a burst has waited for 10 others of 12.112 µs.
    let expected = 2_100 + 121;
    assert!(
        rtts.iter().all(|rtt| rtt.unwrap().abs_diff(expected) <= 1),
        "{rtts:?}"
    );
    // A sample per packet is that of the same packet.
    let own = Linux {
        rtt: RttSample::Packet,
        ..options.clone()
    };
    let (_, log) = run(&scenario(own), 12_500_000, 1_000);
    let (_, _, own) = steady(&log);
    assert!(
        own.iter().all(|rtt| rtt.unwrap().abs_diff(expected) <= 1),
        "{own:?}"
    );
    // Without receive offload each packet is received alone: an ACK for each second one.
    let alone = Linux {
        gro: Time::ZERO,
        ..options.clone()
    };
    let (_, log) = run(&scenario(alone.clone()), 12_500_000, 1_000);
    assert!(steady(&log).0.iter().all(|count| *count == 2));
    let each = Linux {
        delayed_ack: Time::ZERO,
        ..alone
    };
    let (_, log) = run(&scenario(each), 12_500_000, 1_000);
    assert!(steady(&log).0.iter().all(|count| *count == 1));
    // Without segmentation offload and with the rest on: a packet each 115.84 µs, each second
    // one acknowledged.
    let single = Linux {
        offload: false,
        ..options
    };
    let (_, log) = run(&scenario(single), 12_500_000, 1_000);
    let (segments, gaps, rtts) = steady(&log);
    assert!(segments.iter().all(|count| *count == 2));
    assert!(gaps.iter().all(|gap| [231, 232].contains(gap)), "{gaps:?}");
    // GRO waits 20 µs for another packet before TCP sees the last one.
    assert!(
        rtts.iter().all(|rtt| rtt.unwrap().abs_diff(2_120) <= 1),
        "{rtts:?}"
    );
}

/// A window of one segment: the first 16 are acknowledged at once, the others by the timer.
#[test]
fn a_lone_segment_is_acknowledged_late() {
    for flag_delayed in [false, true] {
        let options = Linux {
            offload: false,
            gro: Time::ZERO,
            flag_delayed,
            nic_bps: Some(1_000_000_000_000),
            ..Linux::default()
        };
        let (_, log) = run(&scenario(options), 0, 1);
        let rtts: Vec<u32> = log.iter().map(|entry| entry.1.rtt_us.unwrap()).collect();
        assert!(
            rtts[..16].iter().all(|rtt| rtt.abs_diff(2_100) <= 1),
            "{rtts:?}"
        );
        assert!(
            rtts[16..].iter().all(|rtt| rtt.abs_diff(42_100) <= 1),
            "{rtts:?}"
        );
        assert!(rtts.len() > 20);
        let flags = log.iter().filter(|entry| entry.1.is_ack_delayed).count();
        assert_eq!(flags, if flag_delayed { rtts.len() - 16 } else { 0 });
    }
}

#[test]
fn the_newest_burst_gives_the_sample() {
    let burst = |first, last, us, delivered| Burst {
        first,
        last,
        stamp: Time::from_us(us),
        delivered,
        is_app_limited: false,
        is_retransmission: false,
    };
    let mut connection = Connection::default();
    (connection.bursts).extend([
        burst(0, 9, 100, 1),
        burst(10, 19, 200, 5),
        burst(20, 29, 300, 9),
    ]);
    // All of the first and a part of the second.
    let acked = connection.clean_rtx_queue(14).unwrap();
    assert_eq!(
        (acked.oldest, acked.newest),
        (Time::from_us(100), Time::from_us(200))
    );
    assert_eq!(acked.delivered, 5);
    // The rest of the second.
    let acked = connection.clean_rtx_queue(19).unwrap();
    assert_eq!(
        (acked.oldest, acked.newest),
        (Time::from_us(200), Time::from_us(200))
    );
    assert_eq!(connection.clean_rtx_queue(19), None);
    assert_eq!(
        acked.rtts_us(Time::from_us(2_300), false),
        Some((2_100, 2_100))
    );
    // A retransmission of 0.3 ms, acknowledged at 2.9 ms, by the clock of time stamps.
    connection.bursts[0].is_retransmission = true;
    let acked = connection.clean_rtx_queue(29).unwrap();
    assert_eq!(
        acked.rtts_us(Time::from_us(2_900), true),
        Some((2_000, 2_000))
    );
    assert_eq!(
        acked.rtts_us(Time::from_us(900), true),
        Some((1_000, 1_000))
    );
    assert_eq!(acked.rtts_us(Time::from_us(2_900), false), None);
}

/// A round ends with an ACK of what was sent in it: what was delivered before it is one round trip
/// of segments. Timed rounds see the present.
#[test]
fn rounds_look_back_a_round_trip() {
    for (rounds, behind) in [(Rounds::Acked, 18), (Rounds::Timed, 0)] {
        let options = Linux { rounds, ..plain() };
        let (_, log) = run(&scenario(options), 12_500_000, 1_000);
        // 2100 µs hold 18.1 packets of 115.84 µs; the ACK's own one is delivered, too.
        for (_, sample, socket) in &log[40..60] {
            let found = socket.delivered - sample.prior_delivered;
            assert!(found.abs_diff(behind) <= 1, "{rounds:?} {found}");
        }
    }
}

#[test]
fn the_window_holds_beside_the_rate() {
    // 10 segments in 2.1 ms are 55 Mbit/s on the wire; the rate would allow 500.
    for (window, expected) in [(true, 5.77), (false, 52.3)] {
        let options = Linux { window, ..plain() };
        let (outcome, _) = run(&scenario(options), 62_500_000, 10);
        let found = outcome.utilisation_percent;
        assert!((found - expected).abs() < 0.6, "{window} {found}");
    }
}

#[test]
fn a_late_timer_slows_exact_pacing_only() {
    let late = |pacing| {
        let options = Linux {
            pacing,
            timer_slack: Time::from_us(100),
            ..plain()
        };
        run(&scenario(options), 12_500_000, 1_000)
            .0
            .utilisation_percent
    };
    // A packet each 115.84 µs would be 10.45 %. Up to 100 µs late, unless an ACK comes first, it is
    // 9.18 % (a simulation of this queue alone, 3400 packets).
    let exact = late(Pacing::Exact);
    assert!((exact - 9.18).abs() < 0.15, "{exact}");
    // The next gap is shorter by the lateness, up to half of it: 10.41 %.
    let internal = late(Pacing::Internal);
    assert!((internal - 10.41).abs() < 0.1, "{internal}");
}

/// A queue of 20 packets overflows again and again: every loss is repaired.
#[test]
fn losses_are_repaired() {
    for text in ["cubic", "cubic:hystart=false", "dctcp"] {
        let spec: Spec = text.parse().unwrap();
        let mut scenario = scenario(Linux {
            nic_bps: Some(1_000_000_000_000),
            ..Linux::default()
        });
        scenario.network.link.queue_bytes = 30_000;
        scenario.workload = Workload::Flows(
            (0..4)
                .map(|_| crate::scenario::FlowPlan {
                    from: 1,
                    to: 0,
                    bytes: Some(3_000_000),
                    start: Some(Time::ZERO),
                })
                .collect(),
        );
        scenario.duration = Time::from_us(4_000_000);
        let outcome = Simulation::new(&scenario, move |_, _| spec.build(), 1).run();
        assert!(outcome.counts.all_packets_accounted());
        assert!(
            outcome.counts.dropped_packets > 50,
            "{text}: {:?}",
            outcome.counts
        );
        // 12 MB at 1 Gbit/s take 0.1 s.
        assert_eq!(outcome.completions.len(), 4, "{text}: {:?}", outcome.counts);
    }
}

/// A shaper with a bucket of 20 packets passes a burst of 11 at once.
#[test]
fn a_bucket_hides_bursts() {
    let mut scenario = scenario(Linux {
        nic_bps: Some(1_000_000_000_000),
        ..Linux::default()
    });
    scenario.network.link.bucket_bytes = 20 * 1514;
    let (outcome, log) = run(&scenario, 12_500_000, 1_000);
    let (_, _, rtts) = steady(&log);
    // The packet's own time on the bottleneck is saved, too: 12.1 µs.
    assert!(
        rtts.iter().all(|rtt| rtt.unwrap().abs_diff(2_088) <= 1),
        "{rtts:?}"
    );
    assert_eq!(outcome.queue_latency.max_us, 0.0);
}

#[test]
fn runs_repeat_and_seeds_differ() {
    let model = format!(
        "thalweg-rl:model={}/../../models/adpg-plus.safetensors",
        env!("CARGO_MANIFEST_DIR")
    );
    for text in ["cubic", "dctcp", &model] {
        let spec: Spec = text.parse().unwrap();
        let mut scenario = scenario(Linux {
            timer_slack: Time::from_us(20),
            ..Linux::default()
        });
        scenario.workload = Workload::ManyToOne {
            senders: 1,
            flows: 8,
        };
        scenario.hosts.start_spread = Time::from_us(10_000);
        let run = |seed| {
            let spec = spec.clone();
            Simulation::new(&scenario, move |_, _| spec.build(), seed).run()
        };
        assert_eq!(run(1), run(1), "{text}");
        assert_ne!(run(1).flows, run(2).flows, "{text}");
        let delay = run(1).smoothed_delay.unwrap();
        assert!(
            delay.p50_us > 0.0 && delay.p50_us <= delay.p95_us,
            "{text}: {delay:?}"
        );
    }
}

fn path(min_rtt_us: u32) -> Path {
    Path {
        min_rtt_us,
        epoch: 0,
    }
}

/// A flow's number and what its host knew of the path at its start.
type Known = Arc<Mutex<Vec<(u32, Option<Path>)>>>;

/// A controller that logs what its host knows of the path. If that is nothing, it tells 1 ms and its
/// number.
#[derive(Debug, Clone)]
struct Telling {
    flow: u32,
    known: Known,
}

impl Controller for Telling {
    fn required_signals(&self) -> Needs {
        Needs::TCP
    }

    fn start_flow(&mut self, _: &Setup, _: &mut Context<'_>) {}

    fn on_tcp(&mut self, event: &Event, socket: &mut Socket) {
        if *event == Event::Init {
            self.known.lock().unwrap().push((self.flow, socket.path));
            socket.path = socket.path.or(Some(path(1_000 + self.flow)));
        }
    }
}

/// Flows 0 and 2 go from host 1 to host 0, flow 1 from 2 to 0, flows 3 and 4 from 1 to 2.
#[test]
fn connections_between_two_hosts_share_what_they_know() {
    let mut scenario = scenario(plain());
    scenario.topology = Topology::Star { hosts: 3 };
    scenario.duration = Time::from_us(20_000);
    scenario.workload = Workload::Flows(
        ([(1, 0), (2, 0), (1, 0), (1, 2), (1, 2)]
            .into_iter()
            .zip(0..))
        .map(|((from, to), place)| crate::scenario::FlowPlan {
            from,
            to,
            bytes: None,
            start: Some(Time::from_us(1_000 * place)),
        })
        .collect(),
    );
    // Twice: a simulation knows nothing of the one before.
    for _ in 0..2 {
        let known = Known::default();
        let factory = {
            let known = Arc::clone(&known);
            move |flow, _: &Setup| Telling {
                flow,
                known: Arc::clone(&known),
            }
        };
        Simulation::new(&scenario, factory, 1).run();
        let found = std::mem::take(&mut *known.lock().unwrap());
        let expected = [
            (0, None),
            (1, None),
            (2, Some(path(1_000))),
            (3, None),
            (4, Some(path(1_003))),
        ];
        assert_eq!(found, expected);
    }
}

/// Seeds share a program, and run side by side. None hears of another's paths.
#[test]
fn seeds_in_one_process_equal_runs_alone() {
    let text = format!(
        "thalweg-rl:model={}/../../models/adpg-plus.safetensors",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut scenario = scenario(Linux::default());
    scenario.workload = Workload::ManyToOne {
        senders: 1,
        flows: 4,
    };
    // The later flows start in the queue of the earlier ones.
    scenario.hosts.start_spread = Time::from_us(200_000);
    scenario.duration = Time::from_us(600_000);
    let shared: Spec = text.parse().unwrap();
    let together: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=4)
            .map(|seed| {
                let (spec, scenario) = (shared.clone(), &scenario);
                scope.spawn(move || Simulation::new(scenario, move |_, _| spec.build(), seed).run())
            })
            .collect();
        (threads.into_iter())
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for (seed, outcome) in (1..).zip(together) {
        let alone: Spec = text.parse().unwrap();
        let alone = Simulation::new(&scenario, move |_, _| alone.build(), seed).run();
        assert_eq!(outcome, alone, "seed {seed}");
    }
}

/// The rules, watched: the handshake of each flow and the path that it goes by, µs.
#[derive(Debug, Clone)]
struct Watched {
    flow: u32,
    controller: ThalwegRl,
    seen: Arc<Mutex<Vec<(u32, u32, u32)>>>,
}

impl Controller for Watched {
    fn required_signals(&self) -> Needs {
        self.controller.required_signals()
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.controller.start_flow(setup, context);
    }

    fn on_tcp(&mut self, event: &Event, socket: &mut Socket) {
        self.controller.on_tcp(event, socket);
        if *event == Event::Init {
            let min_rtt_us = self.controller.state().min_rtt_us();
            let entry = (self.flow, socket.srtt_us >> 3, min_rtt_us);
            self.seen.lock().unwrap().push(entry);
        }
    }
}

/// A flow that starts in the queue of seven others goes by the path without the queue.
#[test]
fn a_late_flow_knows_the_path_without_the_queue() {
    let spec: Spec = format!(
        "thalweg-rl:model={}/../../models/adpg-plus.safetensors",
        env!("CARGO_MANIFEST_DIR")
    )
    .parse()
    .unwrap();
    let Spec::ThalwegRl(program) = spec else {
        panic!("{spec}");
    };
    let mut scenario = scenario(Linux::default());
    let plan = |place: u64| crate::scenario::FlowPlan {
        from: 1,
        to: 0,
        bytes: None,
        start: Some(Time::from_us(if place < 7 {
            100 * place
        } else {
            1_000_000
        })),
    };
    scenario.workload = Workload::Flows((0..8).map(plan).collect());
    scenario.duration = Time::from_us(2_000_000);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let factory = {
        let seen = Arc::clone(&seen);
        move |flow, _: &Setup| Watched {
            flow,
            controller: ThalwegRl::new(Arc::clone(&program)),
            seen: Arc::clone(&seen),
        }
    };
    Simulation::new(&scenario, factory, 1).run();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let late = seen.iter().find(|(flow, ..)| *flow == 7).unwrap();
    let (_, handshake_us, known_us) = *late;
    // 2.1 ms and a queue in the handshake.
    assert!(handshake_us > 2_300, "{handshake_us}");
    assert!(known_us.abs_diff(2_100) < 100, "{known_us}");
}

#[test]
fn heap_and_wheel_agree() {
    let spec: Spec = "cubic".parse().unwrap();
    let mut scenario = scenario(Linux::default());
    scenario.network.link.queue_bytes = 100_000;
    let wheel = {
        let spec = spec.clone();
        Simulation::new(&scenario, move |_, _| spec.build(), 3).run()
    };
    let heap: Simulation<_, crate::engine::Heap> =
        Simulation::with_queue(&scenario, move |_, _| spec.build(), 3);
    assert_eq!(wheel, heap.run());
}

/// Decisions of a caller by the kernel's model give the kernel's run.
#[test]
fn decisions_outside_are_those_of_the_model() {
    let file = format!(
        "{}/../../models/adpg-plus.safetensors",
        env!("CARGO_MANIFEST_DIR")
    );
    let read = thalweg_rate::models::ModelFile::read(file.as_ref()).unwrap();
    let model = read.policy.integer_model().unwrap();
    let mut scenario = scenario(Linux::default());
    scenario.workload = Workload::ManyToOne {
        senders: 1,
        flows: 4,
    };
    scenario.hosts.start_spread = Time::from_us(20_000);
    scenario.network.link.bucket_bytes = 125_000;
    // Long enough for a common probe, short enough a queue for losses.
    scenario.duration = Time::from_us(6_000_000);
    scenario.network.link.queue_bytes = 200_000;
    let spec: Spec = format!("thalweg-rl:model={file}").parse().unwrap();
    let inside = Simulation::new(&scenario, move |_, _| spec.build(), 3).run();
    for keep in [false, true] {
        let mut flows = vec![thalweg_rate::Flow::default(); 4];
        let mut simulation = Simulation::by_rules(&scenario, model.features(), None, 3);
        let (mut pending, mut count, mut acked) = (Vec::new(), 0u32, 0);
        while simulation.advance(&mut pending) {
            assert_eq!(pending.len(), 1);
            let one = pending[0];
            acked += one.acked_bytes;
            count += 1;
            let measurement = thalweg_rate::Measurement {
                rtt_ns: one.rtt.ps() / 1000,
                base_rtt_ns: one.base_rtt.unwrap().ps() / 1000,
                rate: (one.rate_bps / 8.0) as u64,
                line_rate: 1_250_000_000,
            };
            let action = model.decide_action(&mut flows[one.flow as usize], &measurement);
            let u = f64::from(action) / 32768.0;
            let factor = if u >= 0.0 {
                1.0 + 0.2 * u
            } else {
                1.0 / (1.0 - 0.2 * u)
            };
            if !keep {
                simulation.decide(one.flow, crate::Decision::Multiply(factor));
            }
        }
        let outside = simulation.outcome_so_far();
        assert_eq!(outside == inside, !keep);
        assert!(keep || count > 4_000, "{count}");
        let all = outside.counts.delivered_packets * 1514;
        assert!((all / 10 * 9..=all).contains(&acked), "{acked} of {all}");
    }
}

/// Beside another controller the caller decides for flow 0 alone.
#[test]
fn decisions_outside_beside_another_controller() {
    let mut scenario = scenario(Linux::default());
    scenario.workload = Workload::ManyToOne {
        senders: 1,
        flows: 2,
    };
    let features = thalweg_rate::Features::new(
        vec![thalweg_rate::Feature {
            kind: thalweg_rate::FeatureKind::Error,
            scale_q16: 1,
        }],
        1,
        1 << 19,
        1 << 16,
    );
    let others: Spec = "cubic".parse().unwrap();
    let mut simulation = Simulation::by_rules(&scenario, &features.unwrap(), Some(&others), 1);
    let (mut pending, mut count) = (Vec::new(), 0);
    while simulation.advance(&mut pending) {
        assert_eq!(pending[0].flow, 0);
        count += 1;
    }
    assert!(count > 20, "{count}");
    let outcome = simulation.outcome_so_far();
    assert!(outcome.flows.iter().all(|flow| flow.gbps > 0.01));
}
