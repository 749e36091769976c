//! Values computed by hand from the C.

use super::*;
use crate::{Decider, Feature, FeatureKind, Features, Forest, Model, Node};

/// A model with this action, whatever it sees; its target is a signal of 0.1.
fn model(action_q15: i32) -> Model {
    let feature = Feature {
        kind: FeatureKind::Error,
        scale_q16: 65_536,
    };
    let features = Features::new(vec![feature], 1, (0.1 * f64::from(1 << 24)) as u32, 1 << 16);
    let leaf = Node {
        input: 0,
        threshold_q15: 0,
        left: 0,
        right: 0,
        value_q15: action_q15,
    };
    let forest = Forest::new(vec![leaf], vec![0], 1).unwrap();
    Model::new(features.unwrap(), Decider::Forest(forest)).unwrap()
}

/// 1448 bytes a segment, a handshake of 2 ms, 10 segments at first.
struct Socket<'a> {
    ca: Rate,
    tp: TcpSock,
    set: Settings<'a>,
    tai_ns: u64,
}

impl<'a> Socket<'a> {
    fn new(model: &'a Model) -> Self {
        let mut tp = TcpSock {
            tcp_mstamp: 1_000_000,
            delivered: 1,
            delivered_ce: 0,
            lost: 0,
            mss_cache: 1448,
            srtt_us: 2_000 << 3,
            snd_cwnd: 10,
            snd_cwnd_clamp: u32::MAX,
            snd_ssthresh: u32::MAX,
            sk_pacing_rate: 0,
            sk_max_pacing_rate: u64::MAX,
            sk_pacing_needed: false,
            is_in_loss: false,
        };
        let set = Settings {
            reference_rate: THALWEG_RATE_DEFAULT_REFERENCE,
            reference_rtt_us: THALWEG_RATE_DEFAULT_REFERENCE_RTT_US,
            model,
        };
        let tai_ns = 1_000_000_000;
        let ca = rate_init(&mut tp, &set, tai_ns);
        Self {
            ca,
            tp,
            set,
            tai_ns,
        }
    }

    /// An ACK, `us` later, of `segments`; the newest was sent after `prior` were delivered.
    fn ack_of(&mut self, us: u64, segments: u32, prior: u32, rtt_us: u32) {
        self.tp.tcp_mstamp += us;
        self.tp.delivered += segments;
        let sample = RateSample {
            prior_delivered: Some(prior),
            rtt_us: Some(rtt_us),
            is_ack_delayed: false,
            is_app_limited: false,
            acked_sacked: segments,
        };
        rate_control(&mut self.ca, &mut self.tp, &self.set, &sample, self.tai_ns);
    }

    /// An ACK of something sent in this round.
    fn ack(&mut self, us: u64, segments: u32, rtt_us: u32) {
        self.ack_of(us, segments, self.ca.round_delivered, rtt_us);
    }

    /// On to STEADY at this rate, bytes/s, with a round of that rate behind it.
    fn steady(&mut self, rate: u64) {
        self.ca.phase = Phase::Steady;
        self.ca.rate = rate;
        self.ca.last_rtt_us = 2_000;
        self.ca.last_delivered = (rate >> 10) as u32;
    }
}

#[test]
fn the_first_rate_is_the_first_window_in_a_round_trip() {
    let model = model(0);
    let socket = Socket::new(&model);
    // 10 · 1448 bytes in 2 ms; twice that in flight and 3, made even: 22 segments.
    assert_eq!(socket.ca.rate, 7_240_000);
    assert_eq!(
        (socket.ca.window, socket.tp.sk_pacing_rate),
        (22, 7_240_000)
    );
    assert!(socket.tp.sk_pacing_needed);
}

#[test]
fn startup_doubles_once_a_round() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    // Too early, then something sent before the round.
    socket.ack(1_999, 4, 2_000);
    assert_eq!(socket.ca.rate, 7_240_000);
    socket.ack_of(1, 3, 0, 2_000);
    assert_eq!(socket.ca.rate, 7_240_000);
    socket.ack(0, 3, 2_000);
    assert_eq!(socket.ca.rate, 14_480_000);
    assert_eq!(socket.tp.snd_cwnd, 42, "2 · 20 segments and 3, made even");
    // Not beyond twice the delivery rate and a burst: 2 · 0.724 MB/s and 64 KiB in 2 ms.
    socket.ca.last_delivered = 0;
    socket.ack(2_000, 1, 2_000);
    assert_eq!(socket.ca.rate, 28_960_000);
    socket.ca.last_delivered = 0;
    socket.ack(2_000, 1, 2_000);
    assert_eq!(socket.ca.rate, 2 * 724_000 + 65_536 * 500);
}

#[test]
fn startup_ends_full_and_probes() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    for _ in 0..4 {
        assert_eq!(socket.ca.phase, Phase::Startup);
        socket.ack(2_000, 10, 2_000);
    }
    // The first round set the maximum, three more did not exceed it by a quarter.
    assert_eq!(socket.ca.phase, Phase::ProbeRtt);
    assert_eq!(
        (socket.ca.resumed, socket.ca.rate),
        (Phase::Steady, 7_240_000)
    );
    assert_eq!(socket.tp.sk_pacing_rate, 3_620_000);
    // 2 · 2 ms, 2 · 2 ms of queue as last seen, 20 ms. Then the probe's minimum holds.
    socket.ack(27_999, 10, 2_100);
    assert_eq!(socket.ca.phase, Phase::ProbeRtt);
    socket.ack(1, 10, 2_200);
    assert_eq!(
        (socket.ca.phase, socket.ca.min_rtt_us),
        (Phase::Steady, 2_100)
    );
    assert_eq!(socket.tp.sk_pacing_rate, 7_240_000);
}

#[test]
fn startup_ends_at_the_target() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    // Signal: queue / 2 ms · √(7.24 MB/s / 1.25 GB/s = 0.0761) = 0.1 at 2628 µs of queue.
    socket.ack(2_000, 10, 4_620);
    assert_eq!(socket.ca.phase, Phase::Startup);
    socket.ca.rate = 7_240_000;
    socket.ca.last_rtt_us = 4_640;
    socket.ack(2_000, 10, 4_640);
    assert_eq!(
        (socket.ca.phase, socket.ca.rate),
        (Phase::Steady, 7_240_000)
    );
}

#[test]
fn a_queue_counts_once_it_stood_for_two_rounds() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    let set = socket.set;
    socket.steady(20_000_000);
    let mut seen = |rtt_us| {
        socket.ca.round_rtt_us = rtt_us;
        measure(&mut socket.ca, &socket.tp, &set, 2_000).rtt_us
    };
    assert_eq!(seen(3_000), 2_000);
    assert_eq!(seen(3_500), 3_000);
    assert_eq!(seen(2_400), 2_400);
    assert_eq!(seen(0), 2_400, "all ACKs were delayed");
}

#[test]
fn a_coarse_flow_waits_for_two_measurements() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    // 16384 bytes in 2 ms are 8.192 MB/s.
    socket.steady(8_191_999);
    assert!(is_coarse(&socket.ca, 2_000));
    socket.ack(2_000, 10, 2_500);
    assert_eq!(socket.ca.round_us, 1_000_000, "one measurement");
    socket.ack(100, 10, 2_600);
    assert_eq!(socket.ca.round_us, 1_002_100);
    // The shorter of both counts, though it is longer than that of the round before.
    assert_eq!(socket.ca.last_rtt_us, 2_500);
    // In vain: four base round trips.
    socket.ack(7_999, 10, 2_500);
    assert_eq!(socket.ca.round_us, 1_002_100);
    socket.ca.flags.several = false;
    socket.ca.round_rtt_us = 0;
    socket.ack(1, 10, 2_500);
    assert_eq!(socket.ca.round_us, 1_010_100);
    socket.steady(8_192_000);
    assert!(!is_coarse(&socket.ca, 2_000));
}

#[test]
fn the_model_moves_the_rate_within_floor_and_cap() {
    // The largest step up.
    let up = model(32_767);
    let mut socket = Socket::new(&up);
    socket.steady(20_000_000);
    socket.ca.window = 58;
    socket.ack(2_000, 28, 2_000);
    // 28 · 1448 bytes in 2 ms are 20.272 MB/s: the cap is far above. The multiplier is
    // (65536 + 13107) / 65536.
    assert_eq!(socket.ca.rate, 23_999_939);
    // The largest step down, but to 15/16 of the delivery rate where no queue is seen.
    let down = model(-32_767);
    let mut socket = Socket::new(&down);
    socket.steady(20_000_000);
    socket.ack(2_000, 28, 2_000);
    assert_eq!(socket.ca.rate, 20_272_000 - 20_272_000 / 16);
    // At the target (1 ms of queue at 20 MB/s is 0.063; 2 ms are 0.126): 9/8 of what arrives.
    let mut socket = Socket::new(&up);
    socket.steady(20_000_000);
    socket.ca.last_rtt_us = 4_000;
    socket.ca.last_delivered = 0;
    socket.ack(2_000, 20, 4_000);
    assert_eq!(socket.ca.rate, 14_480_000 * 9 / 8);
}

#[test]
fn losses_and_marks_cut_every_other_round() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    socket.steady(20_000_000);
    // 10 % lost: 90 % remain.
    socket.tp.lost += 3;
    socket.ack(2_000, 27, 2_000);
    assert_eq!(socket.ca.rate, 20_000_000 * (65_536 - 6_553) / 65_536);
    let rate = socket.ca.rate;
    socket.tp.lost += 3;
    socket.ack(2_000, 27, 2_000);
    assert_eq!(socket.ca.rate, rate);
    // One of 51 is random loss. All marked: a fifth.
    socket.tp.lost += 1;
    socket.ack(2_000, 50, 2_000);
    assert_eq!(socket.ca.rate, rate);
    socket.tp.delivered_ce += 27;
    socket.ack(2_000, 27, 2_000);
    assert_eq!(socket.ca.rate, rate * (65_536 - 13_107) / 65_536);
}

#[test]
fn all_flows_probe_when_the_clock_turns() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    socket.steady(20_000_000);
    socket.tai_ns = 4_999_999_999;
    socket.ack(2_000, 28, 2_000);
    assert_eq!(socket.ca.phase, Phase::Steady);
    socket.tai_ns = 5_000_000_000;
    socket.ack(2_000, 28, 2_000);
    assert_eq!(socket.ca.phase, Phase::ProbeRtt);
    assert!(socket.ca.flags.sure);
    assert_eq!(socket.tp.sk_pacing_rate, 10_000_000);
}

#[test]
fn a_time_out_halves_and_a_pause_starts_over() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    rate_cwnd_event(&mut socket.ca, &mut socket.tp, &socket.set, CwndEvent::Loss);
    assert_eq!(
        (socket.ca.phase, socket.ca.rate),
        (Phase::Steady, 3_620_000)
    );
    // As much enters as leaves.
    socket.tp.is_in_loss = true;
    socket.tp.snd_cwnd = 1;
    socket.ack(100, 2, 2_000);
    assert_eq!(socket.tp.snd_cwnd, 3);
    socket.tp.tcp_mstamp += 2_500_000;
    rate_cwnd_event(
        &mut socket.ca,
        &mut socket.tp,
        &socket.set,
        CwndEvent::TxStart,
    );
    assert_eq!((socket.ca.phase, socket.ca.rate), (Phase::Startup, 905_000));
}
