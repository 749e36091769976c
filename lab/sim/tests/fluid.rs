//! Controllers against a fluid model: flows share one bottleneck, whose queue is a number of bytes.
//!
//! It has neither packets nor bursts. So it shows where controllers settle, not how well they do on
//! a network.

use thalweg_sim::Time;
use thalweg_sim::cc::{
    Ack, AnyController, Command, Context, Controller, Hop, Response, Setup, Spec, TIMERS,
};

const LINE_BPS: f64 = 100e9;
const BASE_US: f64 = 12.0;
const PACKET_BYTES: u32 = 1_000;
/// Size of the queue; more is lost.
const LIMIT_BYTES: f64 = 10.0 * 1024.0 * 1024.0;
/// A quarter of the base round-trip time.
const STEP_US: f64 = 3.0;

struct Flow {
    controller: AnyController,
    command: Command,
    timers: [Time; TIMERS],
    start_us: f64,
    started: bool,
    next_response_us: f64,
    last_notification_us: f64,
    /// Delivered and not yet acknowledged, less than a packet.
    pending_bytes: f64,
    ack_bytes: u64,
    delivered_bytes: f64,
}

impl Flow {
    fn call(&mut self, us: f64, event: impl FnOnce(&mut AnyController, &mut Context<'_>)) {
        event(
            &mut self.controller,
            &mut Context {
                now: Time::from_secs(us * 1e-6),
                command: &mut self.command,
                timers: &mut self.timers,
            },
        );
    }

    fn rate_bps(&self, rtt_us: f64) -> f64 {
        let window = self.command.window_bytes.max(PACKET_BYTES.into());
        self.command.rate_bps.min(window * 8.0 / (rtt_us * 1e-6))
    }
}

/// How flows shared the bottleneck, on average after `settle_us`.
#[derive(Debug)]
struct Outcome {
    utilisation: f64,
    /// Mean queueing delay, microseconds.
    queue_us: f64,
    /// Min/max fairness.
    fairness: f64,
}

/// Flows start over 1 ms, so the first have had the link to themselves. Marks start at `mark_bytes`
/// and rise to a fifth of all packets at four times that.
fn run(spec: &str, flows: u32, mark_bytes: f64, settle_us: f64, total_us: f64) -> Outcome {
    let spec: Spec = spec.parse().expect("a controller of the list");
    let mut random = 1_u64;
    let mut random = move || {
        // Knuth's multiplier; the upper bits are random enough.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 11) as f64 / (1_u64 << 53) as f64
    };
    let setup = Setup {
        line_rate_bps: LINE_BPS,
        min_rate_bps: 1e6,
        packet_bytes: PACKET_BYTES,
        base_rtt: Time::from_secs(BASE_US * 1e-6),
        hops: 2,
        expected_flows: flows,
        seed: 1,
    };
    let mut all: Vec<Flow> = (0..flows)
        .map(|index| {
            let start_us = 1e3 * f64::from(index) / f64::from(flows);
            Flow {
                controller: spec.build(),
                command: Command {
                    rate_bps: 0.0,
                    window_bytes: 0.0,
                },
                timers: [Time::MAX; TIMERS],
                start_us,
                started: false,
                next_response_us: start_us + BASE_US,
                last_notification_us: f64::NEG_INFINITY,
                pending_bytes: 0.0,
                ack_bytes: 0,
                delivered_bytes: 0.0,
            }
        })
        .collect();
    let needs = all[0].controller.required_signals();

    let line_bytes = LINE_BPS / 8.0 * STEP_US * 1e-6;
    let (mut queue_bytes, mut sent_bytes, mut rtt_us) = (0.0, 0.0, BASE_US);
    let (mut busy_bytes, mut waited_us, mut steps) = (0.0, 0.0, 0.0);
    let mut us = 0.0;
    while us < total_us {
        let offered: f64 = all.iter().map(|flow| flow.rate_bps(rtt_us)).sum();
        let offered = offered / 8.0 * STEP_US * 1e-6;
        let served = f64::min(queue_bytes + offered, line_bytes);
        let waiting = queue_bytes + offered - served;
        // Bytes that came in have left or are queued; the rest is lost.
        let lost = (waiting - LIMIT_BYTES).max(0.0);
        let share = 1.0 - lost / offered.max(1.0);
        queue_bytes = waiting - lost;
        sent_bytes += served;
        us += STEP_US;
        let now = Time::from_secs(us * 1e-6);
        let marks = match queue_bytes / mark_bytes {
            level if level < 1.0 => 0.0,
            level if level < 4.0 => 0.2 * (level - 1.0) / 3.0,
            _ => 1.0,
        };
        let measured = us >= settle_us;
        for flow in &mut all {
            if us < flow.start_us {
                continue;
            }
            if !flow.started {
                flow.started = true;
                flow.call(us, |controller, context| {
                    controller.start_flow(&setup, context)
                });
                continue;
            }
            for timer in 0..TIMERS {
                if flow.timers[timer] <= now {
                    flow.timers[timer] = Time::MAX;
                    flow.call(us, |controller, context| {
                        controller.on_timer(timer, context)
                    });
                }
            }
            let rate = flow.rate_bps(rtt_us);
            let bytes = rate / 8.0 * STEP_US * 1e-6 * share;
            if measured {
                flow.delivered_bytes += bytes;
            }
            flow.pending_bytes += bytes;
            let packets = (flow.pending_bytes / f64::from(PACKET_BYTES)).floor();
            flow.pending_bytes -= packets * f64::from(PACKET_BYTES);
            let marked = packets > 0.0 && random() > (1.0 - marks).powf(packets);
            if needs.sent {
                flow.call(us, |controller, context| {
                    controller.on_sent(bytes as u32, context)
                });
            }
            if let Some(interval) = needs.notifications
                && marked
                && us - flow.last_notification_us >= interval.us()
            {
                flow.last_notification_us = us;
                flow.call(us, |controller, context| {
                    controller.on_notification(context)
                });
            }
            if needs.acks && packets > 0.0 {
                let acked_bytes = packets as u64 * u64::from(PACKET_BYTES);
                flow.ack_bytes += acked_bytes;
                let hop = Hop {
                    queue_bytes: queue_bytes as u64,
                    sent_bytes: sent_bytes as u64,
                    at: now,
                    rate_bps: LINE_BPS,
                };
                let ack = Ack {
                    rtt: Time::from_secs(rtt_us * 1e-6),
                    acked_bytes,
                    marked,
                    ack_bytes: flow.ack_bytes,
                    sent_bytes: flow.ack_bytes + (rate / 8.0 * rtt_us * 1e-6) as u64,
                    hops: &[hop],
                };
                flow.call(us, |controller, context| controller.on_ack(&ack, context));
            }
            if needs.probes && us >= flow.next_response_us {
                respond(flow, us, rtt_us);
                // A probe rides on a packet, so there are no more probes than packets.
                let packet_us = f64::from(PACKET_BYTES) * 8e6 / flow.rate_bps(rtt_us);
                flow.next_response_us = us + f64::max(rtt_us, packet_us);
            }
        }
        // Packets that leave now see this a step later.
        rtt_us = BASE_US + queue_bytes * 8e6 / LINE_BPS;
        if measured {
            busy_bytes += served;
            waited_us += rtt_us - BASE_US;
            steps += 1.0;
        }
    }
    let delivered = || all.iter().map(|flow| flow.delivered_bytes);
    Outcome {
        utilisation: busy_bytes / (steps * line_bytes),
        queue_us: waited_us / steps,
        fairness: delivered().fold(f64::MAX, f64::min) / delivered().fold(0.0, f64::max),
    }
}

fn respond(flow: &mut Flow, us: f64, rtt_us: f64) {
    let response = Response {
        rtt: Time::from_secs(rtt_us * 1e-6),
        sent_at: Time::from_secs((us - rtt_us) * 1e-6),
        acked_bytes: PACKET_BYTES.into(),
        marked_bytes: 0,
        lost_bytes: 0,
        hops: &[],
    };
    flow.call(us, |controller, context| {
        controller.on_response(&response, context)
    });
}

/// Marks of DCQCN's switches at 100 Gbit/s start at 400 KB.
const MARK_BYTES: f64 = 400e3;

#[test]
fn proportional_finds_equal_shares_from_unequal_starts() {
    for flows in [2, 16, 128, 1024] {
        let outcome = run("proportional", flows, MARK_BYTES, 50e3, 60e3);
        println!("{flows}: {outcome:?}");
        assert!(outcome.fairness > 0.85, "{flows}: {outcome:?}");
        assert!(outcome.utilisation > 0.95, "{flows}: {outcome:?}");
        // The fixed point: the queueing delay is target · √N base round-trip times, 0.05 · 12 · √N
        // µs.
        let expected_us = 0.6 * f64::from(flows).sqrt();
        let ratio = outcome.queue_us / expected_us;
        assert!((0.75..1.25).contains(&ratio), "{flows}: {outcome:?}");
    }
}

#[test]
fn queues_of_swift_follow_its_target() {
    // 16 flows: the target T = 22 + 32.655/√w − 3.2655 µs with w = T · 12.5/16 packets is 25.98 µs,
    // of which 12 are no queueing delay. 64 flows: T = 32.02 µs.
    for (flows, expected_us) in [(16, 13.98), (64, 20.02)] {
        let outcome = run("swift", flows, MARK_BYTES, 20e3, 40e3);
        println!("{flows}: {outcome:?}");
        let ratio = outcome.queue_us / expected_us;
        assert!((0.9..1.1).contains(&ratio), "{flows}: {outcome:?}");
        assert!(outcome.fairness > 0.9, "{flows}: {outcome:?}");
        assert!(outcome.utilisation > 0.95, "{flows}: {outcome:?}");
    }
}

#[test]
fn hpcc_fills_the_link_without_a_queue() {
    // Windows settle at W = W·η/U + W_AI. N flows with W_AI = W_init (1−η)/N give U = 1. Where the
    // scenario's N is ten times the real one, U = 0.95 + 0.05/10.
    let outcome = run("hpcc", 16, MARK_BYTES, 20e3, 40e3);
    println!("{outcome:?}");
    assert!(outcome.utilisation > 0.98, "{outcome:?}");
    assert!(outcome.queue_us < 0.5, "{outcome:?}");
    assert!(outcome.fairness > 0.9, "{outcome:?}");
    let outcome = run("hpcc:flows=160,max_stage=0", 16, MARK_BYTES, 20e3, 40e3);
    println!("{outcome:?}");
    assert!((outcome.utilisation - 0.955).abs() < 0.005, "{outcome:?}");
}

#[test]
fn marks_keep_the_link_busy_and_the_queue_bounded() {
    for spec in ["dcqcn", "dcqcn-paper", "dctcp"] {
        for flows in [4, 16, 64] {
            let outcome = run(spec, flows, MARK_BYTES, 20e3, 40e3);
            println!("{spec} {flows}: {outcome:?}");
            assert!(outcome.utilisation > 0.85, "{spec} {flows}: {outcome:?}");
            // From 1600 KB on, 128 µs, all packets are marked.
            assert!(outcome.queue_us < 128.0, "{spec} {flows}: {outcome:?}");
        }
    }
}

#[test]
fn without_control_the_queue_is_full_and_the_rest_is_lost() {
    // The fluid model shows a difference: 10 MiB are 839 µs.
    let outcome = run("fixed", 4, MARK_BYTES, 20e3, 40e3);
    assert!((outcome.queue_us - 838.9).abs() < 1.0, "{outcome:?}");
    // At a quarter each, nothing is queued.
    let outcome = run("fixed:fraction=0.25", 4, MARK_BYTES, 20e3, 40e3);
    assert!(
        outcome.queue_us < 1e-6 && outcome.utilisation > 0.999,
        "{outcome:?}"
    );
}
