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
            path: None,
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

    /// An ACK in a round that the application limits.
    fn limited_ack(&mut self, us: u64, segments: u32, rtt_us: u32) {
        self.ca.flags.limited = true;
        self.ack(us, segments, rtt_us);
    }

    /// The first packet after a pause.
    fn pause(&mut self, us: u64) {
        self.tp.tcp_mstamp += us;
        rate_cwnd_event(&mut self.ca, &mut self.tp, &self.set, CwndEvent::TxStart);
    }

    /// On to STEADY at this rate, bytes/s, with a round of that rate behind it.
    fn steady(&mut self, rate: u64) {
        self.ca.phase = Phase::Steady;
        self.ca.rate = rate;
        self.ca.mean_rtt = 2_000 << MEAN_SHIFT;
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
    // 2 · 2 ms, 20 ms, and twice the mean, first of 2.1 ms, then of 2.15.
    socket.ack(28_199, 10, 2_100);
    assert_eq!(socket.ca.phase, Phase::ProbeRtt);
    socket.ack(100, 10, 2_200);
    assert_eq!(socket.ca.phase, Phase::ProbeRtt);
    socket.ack(1, 10, 2_150);
    // It probed alone: what it told at the end of STARTUP is shorter.
    assert_eq!(
        (socket.ca.phase, socket.ca.min_rtt_us),
        (Phase::Steady, 2_000)
    );
    assert_eq!(socket.tp.sk_pacing_rate, 7_240_000);
}

#[test]
fn startup_limited_rounds_tell_nothing_of_the_path() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    // A small write, then the first window: the rate is held, and nothing counts.
    for segments in [1, 1, 10, 10] {
        socket.limited_ack(2_000, segments, 2_000);
        assert_eq!((socket.ca.rate, socket.ca.last_delivered), (7_240_000, 0));
    }
    // Two rounds deliver what was sent at the held rate, the third twice as much.
    for (segments, rate) in [(10, 14_480_000), (10, 28_960_000), (20, 57_920_000)] {
        socket.ack(2_000, segments, 2_000);
        assert_eq!((socket.ca.phase, socket.ca.rate), (Phase::Startup, rate));
    }
    // Limited rounds between full ones begin the count anew.
    for limited in [false, false, true, false, false] {
        socket.ca.flags.limited = limited;
        socket.ack(2_000, 20, 2_000);
        assert_eq!(socket.ca.phase, Phase::Startup);
    }
    socket.ack(2_000, 20, 2_000);
    assert_eq!(socket.ca.resumed, Phase::Steady);
}

#[test]
fn startup_after_a_pause_is_that_of_a_new_connection() {
    let model = model(0);
    for seconds in 2..6 {
        let mut socket = Socket::new(&model);
        socket.steady(90_000_000);
        socket.ca.counter = 40;
        socket.pause(seconds * 1_000_000);
        // Half for each second, not below 10 segments in a round trip; what the last round before
        // the pause delivered, and decisions in a row, do not end it.
        let rate = (90_000_000 >> seconds.min(4)).max(7_240_000);
        for _ in 0..2 {
            assert_eq!((socket.ca.phase, socket.ca.rate), (Phase::Startup, rate));
            socket.limited_ack(2_000, 10, 2_000);
        }
        for _ in 0..3 {
            socket.ack(2_000, 10, 2_000);
            assert_eq!(socket.ca.phase, Phase::Startup);
        }
    }
    // A rate below that of the first window is kept.
    let mut socket = Socket::new(&model);
    socket.steady(1_000_000);
    socket.pause(9_000_000);
    assert_eq!(
        (socket.ca.phase, socket.ca.rate),
        (Phase::Startup, 1_000_000)
    );
}

#[test]
fn startup_ends_at_the_target() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    // Signal: queue / 2 ms · √(7.24 MB/s / 1.25 GB/s = 0.0761) = 0.1 at 2628 µs of queue.
    socket.ack(2_000, 10, 4_620);
    assert_eq!(socket.ca.phase, Phase::Startup);
    socket.ca.rate = 7_240_000;
    socket.ack(2_000, 10, 4_640);
    assert_eq!(
        (socket.ca.phase, socket.ca.rate),
        (Phase::Steady, 7_240_000)
    );
}

/// What this round shows, in us / 16.
fn mean_after(socket: &mut Socket<'_>, rtts_us: &[u32]) -> u32 {
    start_round(&mut socket.ca, &socket.tp);
    for rtt_us in rtts_us {
        measure_rtt(&mut socket.ca, *rtt_us, false, 2_000);
    }
    socket.ca.mean_rtt
}

#[test]
fn the_queue_is_the_mean_of_a_round() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    socket.steady(20_000_000);
    assert_eq!(
        mean_after(&mut socket, &[2_100, 2_900, 2_500]),
        2_500 << MEAN_SHIFT
    );
    let round = measure_round(&mut socket.ca, &socket.tp, &socket.set, 2_000);
    assert_eq!(round.rtt_us, 2_500);
    // A round without round-trip times goes by the one before.
    start_round(&mut socket.ca, &socket.tp);
    let round = measure_round(&mut socket.ca, &socket.tp, &socket.set, 2_000);
    assert_eq!(round.rtt_us, 2_500);
    // A new round forgets it with its first round-trip time.
    assert_eq!(mean_after(&mut socket, &[2_200]), 2_200 << MEAN_SHIFT);
    // The shortest one is newer than the mean: no queue.
    socket.ca.min_rtt_us = 2_300;
    let round = measure_round(&mut socket.ca, &socket.tp, &socket.set, 2_300);
    assert_eq!(round.rtt_us, 2_300);
}

/// A queue that swings from 0 to 1 ms: a slow flow measures it twice in a round, a fast one 64 times.
#[test]
fn fast_and_slow_flows_see_the_same_queue() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    let swing = [2_000, 3_000];
    for count in [1, 4, 32] {
        let found = mean_after(&mut socket, &swing.repeat(count));
        // Each step is rounded, by less than a sixteenth of a microsecond.
        let off = found.abs_diff(2_500 << MEAN_SHIFT);
        assert!(off <= 2 * count as u32, "{count}: {found}");
    }
    // Beyond SAMPLES_MAX a round-trip time weighs as the last of them.
    mean_after(&mut socket, &[2_000].repeat(2_000));
    assert_eq!(socket.ca.samples, SAMPLES_MAX);
    measure_rtt(&mut socket.ca, 3_024, false, 2_000);
    assert_eq!(socket.ca.mean_rtt, 2_001 << MEAN_SHIFT);
}

/// A segment alone is acknowledged 40 ms late: it counts as the mean and a base round trip.
#[test]
fn a_late_ack_weighs_little() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    mean_after(&mut socket, &[2_400, 2_400]);
    assert_eq!(mean_after(&mut socket, &[42_000]), 4_400 << MEAN_SHIFT);
    mean_after(&mut socket, &[2_400]);
    // The second of a round: half of what it is longer.
    assert_eq!(
        mean_after(&mut socket, &[2_400, 42_000]),
        3_400 << MEAN_SHIFT
    );
    // The base is that of the longer path.
    mean_after(&mut socket, &[2_400]);
    start_round(&mut socket.ca, &socket.tp);
    measure_rtt(&mut socket.ca, 42_000, false, 10_000);
    assert_eq!(socket.ca.mean_rtt, 12_400 << MEAN_SHIFT);
    // Marked as delayed, it does not count at all.
    measure_rtt(&mut socket.ca, 42_000, true, 10_000);
    assert_eq!(
        (socket.ca.mean_rtt, socket.ca.samples),
        (12_400 << MEAN_SHIFT, 1)
    );
    // The first of all has no mean before it.
    socket.ca.mean_rtt = 0;
    assert_eq!(mean_after(&mut socket, &[42_000]), 42_000 << MEAN_SHIFT);
}

#[test]
fn a_coarse_flow_waits_for_two_round_trip_times() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    // 16384 bytes in 2 ms are 8.192 MB/s.
    socket.steady(8_191_999);
    assert!(is_coarse(&socket.ca, 2_000));
    socket.ack(2_000, 10, 2_500);
    assert_eq!(socket.ca.round_us, 1_000_000, "one round-trip time");
    socket.ack(100, 10, 2_700);
    assert_eq!(socket.ca.round_us, 1_002_100);
    assert_eq!(socket.ca.mean_rtt, 2_600 << MEAN_SHIFT);
    // In vain: four base round trips.
    socket.ack(7_999, 10, 2_500);
    assert_eq!(socket.ca.round_us, 1_002_100);
    start_round(&mut socket.ca, &socket.tp);
    socket.ack(8_000, 10, 2_500);
    assert_eq!(socket.ca.round_us, 1_018_099);
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
    socket.ca.last_delivered = 0;
    socket.ack(2_000, 20, 4_000);
    assert_eq!(socket.ca.rate, 14_480_000 * 9 / 8);
}

#[test]
fn losses_and_marks_cut_every_other_round() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    socket.steady(20_000_000);
    // A queue of 0.5 ms is a signal of 0.032, over a quarter of the target. 10 % lost: 90 % remain.
    socket.tp.lost += 3;
    socket.ack(2_000, 27, 2_500);
    assert_eq!(socket.ca.rate, 20_000_000 * (65_536 - 6_553) / 65_536);
    let rate = socket.ca.rate;
    socket.tp.lost += 3;
    socket.ack(2_000, 27, 2_500);
    assert_eq!(socket.ca.rate, rate);
    // One of 51 is random loss. All marked: a fifth.
    socket.tp.lost += 1;
    socket.ack(2_000, 50, 2_500);
    assert_eq!(socket.ca.rate, rate);
    socket.tp.delivered_ce += 27;
    socket.ack(2_000, 27, 2_000);
    assert_eq!(socket.ca.rate, rate * (65_536 - 13_107) / 65_536);
}

#[test]
fn without_a_queue_losses_are_random_up_to_a_tenth_and_two() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    socket.steady(20_000_000);
    // Four of 30 are two and less than a tenth.
    socket.tp.lost += 4;
    socket.ack(2_000, 26, 2_000);
    assert_eq!(socket.ca.rate, 20_000_000);
    socket.tp.lost += 5;
    socket.ack(2_000, 25, 2_000);
    assert_eq!(socket.ca.rate, 20_000_000 * (65_536 - 10_922) / 65_536);
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
fn startup_limited_by_the_application_skips_the_common_probe() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    socket.tai_ns = 5_000_000_000;
    socket.limited_ack(2_000, 1, 2_000);
    assert_eq!(socket.ca.phase, Phase::Startup);
    socket.ack(2_000, 10, 2_000);
    assert_eq!(socket.ca.phase, Phase::Startup, "it is not made up for");
    socket.tai_ns = 10_000_000_000;
    socket.ack(2_000, 10, 2_000);
    assert_eq!(socket.ca.phase, Phase::ProbeRtt);
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
    socket.ca.rate = 72_400_000;
    socket.pause(2_500_000);
    let restarted = (socket.ca.phase, socket.ca.rate);
    assert_eq!(restarted, (Phase::Startup, 18_100_000));
}

/// Ends of a probe: `common` or alone, when the shortest round-trip time was `rtt_us`.
fn probe(socket: &mut Socket<'_>, common: bool, rtt_us: u32) {
    socket.steady(20_000_000);
    if common {
        socket.tai_ns += PROBE_PERIOD_NS;
    } else {
        socket.ca.counter = FALLING_MAX;
    }
    socket.ack(socket.ca.min_rtt_us.into(), 28, socket.ca.min_rtt_us);
    assert_eq!(socket.ca.phase, Phase::ProbeRtt);
    assert_eq!(socket.ca.flags.sure, common);
    socket.ack(100_000, 28, rtt_us);
    assert_eq!(socket.ca.phase, Phase::Steady);
}

#[test]
fn a_common_probe_tells_the_path_and_a_lone_one_asks() {
    let down = model(-1);
    let mut socket = Socket::new(&down);
    // Alone it finds the others' queue, and keeps that to itself.
    probe(&mut socket, false, 2_600);
    assert_eq!((socket.ca.min_rtt_us, socket.tp.path), (2_600, None));
    probe(&mut socket, true, 2_300);
    let told = |min_rtt_us, epoch| Some(Path { min_rtt_us, epoch });
    assert_eq!(socket.tp.path, told(2_300, 1));
    // Alone again: what the common probe found is shorter.
    probe(&mut socket, false, 2_600);
    assert_eq!(
        (socket.ca.min_rtt_us, socket.tp.path),
        (2_300, told(2_300, 1))
    );
    // The next period has its own: the path became longer.
    probe(&mut socket, true, 2_500);
    assert_eq!(socket.tp.path, told(2_500, 2));
    // In one period the shortest counts.
    socket.ca.min_rtt_us = 2_600;
    tell_path(&socket.ca, &mut socket.tp, 2, true);
    assert_eq!(socket.tp.path, told(2_500, 2));
    socket.ca.min_rtt_us = 2_400;
    tell_path(&socket.ca, &mut socket.tp, 2, true);
    assert_eq!(socket.tp.path, told(2_400, 2));
    // Nor does a flow that has its value from there renew it: it expires.
    tell_path(&socket.ca, &mut socket.tp, 5, false);
    assert_eq!(socket.tp.path, told(2_400, 2));
    tell_path(&socket.ca, &mut socket.tp, 6, false);
    assert_eq!(socket.tp.path, told(2_400, 6));
    // A flow without any round-trip time has nothing to tell.
    socket.ca.min_rtt_us = 0;
    tell_path(&socket.ca, &mut socket.tp, 7, true);
    assert_eq!(socket.tp.path, told(2_400, 6));
}

#[test]
fn a_late_flow_takes_the_shorter_path() {
    let model = model(0);
    for (epoch, clock, expected) in [
        (7, 7, 2_100),
        (7, 10, 2_100),
        // Four periods later it is forgotten.
        (7, 11, 2_900),
        // The counter of periods wraps.
        (65_534, 65_536 + 1, 2_100),
        (65_534, 65_536 + 2, 2_900),
        // Not from the future.
        (8, 7, 2_900),
    ] {
        let mut socket = Socket::new(&model);
        socket.tp.srtt_us = 2_900 << 3;
        socket.tp.path = Some(Path {
            min_rtt_us: 2_100,
            epoch,
        });
        socket.ca = rate_init(&mut socket.tp, &socket.set, clock * PROBE_PERIOD_NS);
        assert_eq!(socket.ca.min_rtt_us, expected, "{epoch} {clock}");
    }
    // A longer one is of no use.
    let mut socket = Socket::new(&model);
    socket.tp.path = Some(Path {
        min_rtt_us: 2_100,
        epoch: 0,
    });
    socket.ca = rate_init(&mut socket.tp, &socket.set, 0);
    assert_eq!(socket.ca.min_rtt_us, 2_000);
}

#[test]
fn startup_ends_with_the_shortest_path() {
    let model = model(0);
    // STARTUP ends full, as above.
    let end = |socket: &mut Socket<'_>| {
        for _ in 0..4 {
            assert_eq!(socket.ca.phase, Phase::Startup);
            socket.ack(2_000, 10, 2_000);
        }
    };
    let mut first = Socket::new(&model);
    end(&mut first);
    let told = Some(Path {
        min_rtt_us: 2_000,
        epoch: 0,
    });
    assert_eq!(first.tp.path, told);
    // Another one started at the same time, in a queue.
    let mut second = Socket::new(&model);
    second.ca.min_rtt_us = 1_900;
    second.tp.path = Some(Path {
        min_rtt_us: 1_800,
        epoch: 0,
    });
    end(&mut second);
    assert_eq!(second.ca.min_rtt_us, 1_800);
    assert_eq!(second.ca.counter, 1_800, "what the probe begins with");
}

/// A common probe of a flow in `STEADY` or `COMPETE`, with a mean of 42 ms before it; something
/// sent at its end had `rtt_us`.
fn probe_beside_others(socket: &mut Socket<'_>, rtt_us: u32) {
    socket.tai_ns += PROBE_PERIOD_NS;
    socket.ca.mean_rtt = 42_000 << MEAN_SHIFT;
    socket.ack(50_000, 28, 42_000);
    assert_eq!(socket.ca.phase, Phase::ProbeRtt);
    assert_eq!(socket.ca.prior_mean_us, 42_000);
    // 2 · 2 ms, two queues and 20 ms.
    socket.ack(110_000, 28, rtt_us);
    assert_ne!(socket.ca.phase, Phase::ProbeRtt);
}

#[test]
fn a_flow_competes_after_two_probes_that_leave_a_queue() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    socket.steady(20_000_000);
    probe_beside_others(&mut socket, 22_000);
    assert!(socket.ca.flags.suspect);
    assert_eq!(
        (socket.ca.phase, socket.ca.min_rtt_us),
        (Phase::Steady, 2_000)
    );
    // One that drains it between them counts anew: a quarter of 40 ms is left at most.
    probe_beside_others(&mut socket, 12_000);
    assert!(!socket.ca.flags.suspect);
    assert_eq!(socket.ca.min_rtt_us, 12_000);
    socket.ca.min_rtt_us = 2_000;
    probe_beside_others(&mut socket, 22_000);
    let rate = socket.ca.rate;
    probe_beside_others(&mut socket, 22_000);
    assert_eq!(
        (socket.ca.phase, socket.ca.min_rtt_us),
        (Phase::Compete, 2_000)
    );
    // The window of its rate: no more than the last decision's, at least 10 segments.
    let window = (socket.ca.rate * 42_000 / US_PER_S) / 1_448;
    assert!(socket.ca.rate <= rate, "{rate}");
    assert_eq!(u64::from(socket.ca.window), window.max(10));
    assert_eq!(socket.tp.sk_pacing_rate, 2 * socket.ca.rate);
}

#[test]
fn a_competing_window_is_that_of_rfc_9438() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    socket.steady(1_000_000);
    socket.ca.phase = Phase::Compete;
    socket.ca.fair_window = 100 << 10;
    socket.ca.flags.ramp = true;
    let ack = |socket: &mut Socket<'_>, rtt_us| {
        socket.ca.mean_rtt = rtt_us << MEAN_SHIFT;
        socket.ack(50_000, 28, rtt_us);
    };
    // Half as much again until the first loss; then 0.7.
    ack(&mut socket, 50_000);
    assert_eq!((socket.ca.fair_window, socket.ca.window), (150 << 10, 150));
    // 150 · 1448 bytes in 50 ms, whatever the model says.
    assert_eq!(socket.ca.rate, 4_344_000);
    socket.tp.lost += 1;
    ack(&mut socket, 50_000);
    assert_eq!(socket.ca.fair_window, 107_519, "153600 · 45875 / 65536");
    assert_eq!(socket.ca.window, 104);
    assert_eq!(
        socket.tp.sk_pacing_rate,
        socket.ca.rate + socket.ca.rate / 4
    );
    // The round after a cut is not cut; a round without a loss adds 0.53 segments.
    let cut = socket.ca.fair_window;
    socket.tp.lost += 1;
    ack(&mut socket, 50_000);
    assert_eq!(socket.ca.fair_window, cut + 542);
    ack(&mut socket, 50_000);
    assert_eq!(socket.ca.fair_window, cut + 2 * 542);
    // A time-out halves it.
    rate_cwnd_event(&mut socket.ca, &mut socket.tp, &socket.set, CwndEvent::Loss);
    assert_eq!(socket.ca.phase, Phase::Compete);
    assert_eq!(socket.ca.fair_window, (cut + 2 * 542) / 2);
    // After a pause it starts over, and earlier probes count no longer.
    (socket.ca.flags.suspect, socket.ca.undrained) = (true, 3);
    socket.tp.tcp_mstamp += 2_000_000;
    rate_cwnd_event(
        &mut socket.ca,
        &mut socket.tp,
        &socket.set,
        CwndEvent::TxStart,
    );
    assert_eq!(socket.ca.phase, Phase::Startup);
    assert_eq!((socket.ca.flags.suspect, socket.ca.undrained), (false, 0));
}

#[test]
fn a_flow_stops_competing_when_the_queue_drains_or_the_path_is_longer() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    let compete = |socket: &mut Socket<'_>| {
        socket.steady(1_000_000);
        socket.ca.phase = Phase::Compete;
        socket.ca.fair_window = 100 << 10;
        socket.ca.min_rtt_us = 2_000;
    };
    compete(&mut socket);
    probe_beside_others(&mut socket, 22_000);
    assert_eq!((socket.ca.phase, socket.ca.window), (Phase::Compete, 100));
    probe_beside_others(&mut socket, 2_500);
    assert_eq!(
        (socket.ca.phase, socket.ca.min_rtt_us),
        (Phase::Steady, 2_500)
    );
    assert_eq!(socket.ca.last_delivered, 0, "not the window");
    // Four that find the same queue: that is the path.
    compete(&mut socket);
    for _ in 0..4 {
        probe_beside_others(&mut socket, 22_000);
        assert_eq!(socket.ca.phase, Phase::Compete);
    }
    probe_beside_others(&mut socket, 22_000);
    assert_eq!(
        (socket.ca.phase, socket.ca.min_rtt_us),
        (Phase::Steady, 22_000)
    );
}

#[test]
fn starved_flows_probe_each_second() {
    let model = model(-1);
    let mut socket = Socket::new(&model);
    // 49 ms of queue at 50 kB/s are a signal of 0.155.
    let round = |socket: &mut Socket<'_>, rate, falls| {
        socket.steady(rate);
        socket.ca.mean_rtt = 51_000 << MEAN_SHIFT;
        socket.ca.counter = falls;
        socket.ack(50_000, 2, 51_000);
        socket.ca.samples = 2;
        socket.ack(50_000, 2, 51_000);
        socket.ca.phase
    };
    assert_eq!(round(&mut socket, 50_000, 0), Phase::Steady);
    socket.tai_ns += STARVED_PERIOD_NS;
    assert_eq!(round(&mut socket, 50_000, 0), Phase::ProbeRtt);
    assert!(socket.ca.flags.sure && socket.ca.flags.starved);
    // Faster flows only after twelve decisions that reduced the rate, at four times the target.
    socket.tai_ns += STARVED_PERIOD_NS;
    assert_eq!(round(&mut socket, 400_000, 11), Phase::Steady);
    socket.tai_ns += STARVED_PERIOD_NS;
    assert_eq!(round(&mut socket, 300_000, 12), Phase::Steady);
    socket.tai_ns += STARVED_PERIOD_NS;
    assert_eq!(round(&mut socket, 400_000, 12), Phase::ProbeRtt);
}

#[test]
fn a_probe_waits_for_something_sent_late_in_it() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    socket.steady(20_000_000);
    socket.tai_ns += PROBE_PERIOD_NS;
    socket.ack(2_000, 28, 2_000);
    assert_eq!(socket.ca.phase, Phase::ProbeRtt);
    // 2 · 2 ms, two means of 4 ms and 20 ms: 32 ms. This was sent in the first half.
    socket.ack(33_000, 2, 20_000);
    assert_eq!(socket.ca.phase, Phase::ProbeRtt);
    socket.ack(1_000, 2, 10_000);
    assert_eq!(socket.ca.phase, Phase::Steady);
}

#[test]
fn a_short_queue_is_that_of_others_for_starved_flows_only() {
    let model = model(0);
    let mut socket = Socket::new(&model);
    socket.ca.flags.sure = true;
    socket.ca.flags.late = true;
    socket.ca.prior_mean_us = 14_000;
    let mut is_left = |starved, rtt_us| {
        socket.ca.flags.starved = starved;
        socket.ca.round_rtt_us = rtt_us;
        is_undrained(&socket.ca, 2_000, 2_000)
    };
    assert_eq!(
        (is_left(false, 10_000), is_left(false, 10_001)),
        (false, true)
    );
    // A quarter of the 12 ms before.
    assert_eq!((is_left(true, 5_000), is_left(true, 5_001)), (false, true));
    socket.ca.prior_mean_us = 3_500;
    socket.ca.flags.starved = true;
    socket.ca.round_rtt_us = 3_000;
    assert!(!is_undrained(&socket.ca, 2_000, 2_000), "half of the base");
}
