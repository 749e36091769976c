//! Exact values of the rule, derived by hand from `docs/reference/learner.md`. Rates are powers of
//! two, latency costs nothing and evidence does not fade, so that most numbers are whole bits.

use thalweg_learner::{
    ArmState, End, Host, Level, ONE_Q16, Outcome, Params, Report, Sample, adopt_wider,
    inherit_group, note_harm, propensities_q16, score, score_group, window,
};

const SYSTEM: Option<usize> = Some(0);
const MAX_ARMS: usize = thalweg_learner::MAX_ARMS;

/// Whole bits in Q16, and parts of one.
fn bits(count: f64) -> u64 {
    (count * f64::from(ONE_Q16)) as u64
}

fn params() -> Params {
    Params {
        latency_weight_q16: 0,
        half_life_ns: 0,
        idle_shift: 31,
        ..Params::default()
    }
}

/// A transfer of full weight that costs so many bits.
fn costing(cost: u32) -> Sample {
    let log_rate = 64 - cost;
    let bytes: u64 = 1 << log_rate.max(20);
    Sample {
        bytes,
        duration_us: 1_000_000 * (bytes >> log_rate),
        rate_delivered_bytes: 0,
        rate_interval_us: 0,
        srtt_us: 0,
        min_rtt_us: 0,
        segs_out: 1000,
        retrans: 0,
        steady_segs: 0,
        steady_retrans: 0,
        loss_srtt_us: 0,
        limited_us: 0,
        busy_time: true,
        end: End::FinLocal,
    }
}

fn take(host: &mut Host, arm: usize, sample: &Sample, params: &Params) {
    let verdict = score(host, arm, SYSTEM, sample, params, 1);
    assert_eq!(verdict.outcome, Outcome::Scored);
}

/// A record after measurements of arms, by their costs.
fn measured(measurements: &[(usize, u32)]) -> Host {
    let mut host = Host::default();
    for &(arm, cost) in measurements {
        take(&mut host, arm, &costing(cost), &params());
    }
    host
}

#[test]
fn estimate_of_two_measurements_is_their_mean() {
    let arm = measured(&[(1, 44), (1, 43)]).arms[1];
    assert_eq!(arm.value, bits(43.5));
    assert_eq!(u64::from(arm.log_rate_q16), bits(20.5));
    assert_eq!(u64::from(arm.deviation_q16), bits(0.5));
    assert_eq!(arm.weight_q16, 2 * ONE_Q16);
    // 3.25 mean deviations over four and the evidence, 1.625 / 6, is between a twentieth and a half.
    assert_eq!(arm.caution_q16, 17_749);
    let quiet = measured(&[(1, 44), (1, 44)]).arms[1];
    assert_eq!(quiet.caution_q16, ONE_Q16 / 20);
}

#[test]
fn retransmissions_cost_three_bits_each_segment() {
    let mut host = Host::default();
    let lossy = Sample {
        retrans: 250,
        ..costing(44)
    };
    take(&mut host, 0, &lossy, &params());
    assert_eq!(host.arms[0].value, bits(44.75));
}

#[test]
fn much_better_second_measurement_replaces_first() {
    let arm = measured(&[(1, 44), (1, 42)]).arms[1];
    assert_eq!((arm.value, arm.deviation_q16), (bits(42.0), 0));
    assert_eq!(arm.weight_q16, ONE_Q16);
}

#[test]
fn measurement_far_off_is_clipped() {
    // As one bit worse, a third of the way; the evidence of three loses a quarter.
    let arm = measured(&[(1, 44), (1, 44), (1, 48)]).arms[1];
    assert_eq!(arm.value, bits(44.0) + 21_845);
    assert_eq!(arm.weight_q16, 9 * ONE_Q16 / 4);
    // As two bits better.
    let arm = measured(&[(1, 44), (1, 44), (1, 40)]).arms[1];
    assert_eq!(arm.value, bits(44.0) - 43_690);
    assert_eq!(arm.weight_q16, 3 * ONE_Q16);
}

#[test]
fn memory_of_noisy_arm_is_longer() {
    let params = Params {
        weight_max_q16: ONE_Q16,
        ..params()
    };
    let mut host = Host::default();
    // No deviation before the second one; half a bit before the third makes it two and a half.
    for (cost, evidence) in [(44, 1), (43, 1), (43, 2)] {
        take(&mut host, 1, &costing(cost), &params);
        assert_eq!(host.arms[1].weight_q16, evidence * ONE_Q16);
    }
}

#[test]
fn measurement_takes_part_of_other_evidence() {
    let mut host = measured(&[(1, 44)]);
    let params = Params {
        idle_shift: 6,
        ..params()
    };
    take(&mut host, 0, &costing(44), &params);
    assert_eq!(host.arms[1].weight_q16, ONE_Q16 - 1024);
}

#[test]
fn queue_is_rtt_over_base_with_jitter() {
    let mut host = Host::default();
    let mut queue = |min_rtt_us, srtt_us| {
        let sample = Sample {
            min_rtt_us,
            srtt_us,
            ..costing(44)
        };
        take(&mut host, 0, &sample, &params());
        u64::from(host.queue_q16)
    };
    // 12.384 ms and 4 ms of jitter are 2^14 us; 2^14 us of queue make it twice that.
    assert_eq!(queue(12_384, 28_768), bits(1.0));
    // A quarter of the way to none.
    assert_eq!(queue(12_384, 12_384), bits(0.75));
    // 1 ms and a half of jitter count as 3 ms.
    assert_eq!(queue(1_000, 4_000), bits(0.75) + bits(0.25) / 4);
}

#[test]
fn gain_at_full_bottleneck_is_taken_from_others() {
    let quarter = ONE_Q16 / 4;
    let harmful = |retrans: u32, queue_q16| {
        let mut host = Host {
            queue_q16,
            ..Host::default()
        };
        let gains = [0, quarter, quarter + 1, 6 * quarter, 6 * quarter + 1];
        for (arm, gain_q16) in host.arms.iter_mut().zip(gains) {
            arm.weight_q16 = ONE_Q16;
            arm.log_rate_q16 = 20 * ONE_Q16 + gain_q16;
        }
        (host.arms[0].segs, host.arms[0].retrans) = (1000, retrans);
        note_harm(&mut host, SYSTEM, &params());
        host.harmful
    };
    // The system's arm loses a little: four segments of 1000.
    assert_eq!(harmful(4, quarter + 1), 0b11100);
    assert_eq!(harmful(4, quarter), 0b01100);
    // It loses nothing to speak of: only a deep queue counts.
    assert_eq!(harmful(3, 2 * quarter), 0);
    assert_eq!(harmful(3, 2 * quarter + 1), 0b11100);
    // It loses more than one in 64: random losses.
    assert_eq!(harmful(16, 2 * quarter), 0);
}

#[test]
fn credit_is_earned_and_charged() {
    let earned = 2_621;
    let credit = |arm, cost| u64::from(measured(&[(0, 44), (arm, cost)]).credit_q16);
    // A twenty-fifth of a bit each.
    assert_eq!(credit(0, 44), 2 * earned);
    // One bit better, less a quarter; six count as four; a bit worse is more than there is.
    assert_eq!(credit(1, 43), 2 * earned + bits(0.75));
    assert_eq!(credit(1, 38), 2 * earned + bits(3.0));
    assert_eq!(credit(1, 45), 0);
}

#[test]
fn arm_that_is_slow_too_often_is_unsteady() {
    // Five bits above the system's mean count twice: 1 of (2 * 2 - 3) by 9, more than 4 by 2.
    let slow = measured(&[(0, 44), (0, 44), (1, 44), (1, 49)]);
    assert_eq!((slow.arms[1].slow, slow.arms[1].counted), (2, 2));
    assert_eq!(slow.unsteady, 0b10);
    // One more measurement: not more than 4 by 3.
    let steady = measured(&[(0, 44), (0, 44), (1, 44), (1, 44), (1, 49)]);
    assert_eq!((steady.arms[1].slow, steady.unsteady), (2, 0));
    // Two and a half bits are not slow, three are, once.
    for (cost, slow) in [(46, 0), (47, 1), (48, 1)] {
        let host = measured(&[(0, 44), (0, 44), (1, 44), (1, cost)]);
        assert_eq!(host.arms[1].slow, slow, "{cost}");
    }
}

/// The system's arm 0 is 1 bit behind arm 1; arms 2 and 3 were never tried.
fn half_tried() -> Host {
    let mut host = Host {
        scored: 4,
        credit_q16: 5 * ONE_Q16,
        ..Host::default()
    };
    for (arm, value) in host.arms.iter_mut().zip([44, 43]) {
        arm.value = bits(f64::from(value));
        (arm.weight_q16, arm.scored) = (8 * ONE_Q16, 4);
    }
    host
}

fn shares(host: &Host) -> [u32; 4] {
    let params = Params {
        rescue_arm: Some(3),
        ..params()
    };
    let shares = propensities_q16(host, SYSTEM, 0b1111, &params, 1);
    std::array::from_fn(|arm| shares[arm])
}

#[test]
fn first_trials_share_half_and_default_keeps_its_part() {
    let mut host = half_tried();
    // One in six for the default after four measurements; a quarter for each of two first trials.
    assert_eq!(shares(&host), [10_922, 21_846, 16_384, 16_384]);
    // Eight trials without a measurement halve an arm's part.
    host.arms[2].chosen = 8;
    assert_eq!(shares(&host)[2..], [8_192, 16_384]);
    // A fifth of a bit pays a first trial.
    host.credit_q16 = ONE_Q16 / 5 - 1;
    assert_eq!(shares(&host), [10_922, 54_614, 0, 0]);
}

#[test]
fn rescue_arm_on_lossy_path_comes_first_without_credit() {
    let mut host = half_tried();
    host.credit_q16 = 0;
    // 17 of 1000 are more than one in 64.
    (host.arms[0].segs, host.arms[0].retrans) = (1000, 17);
    assert_eq!(shares(&host), [10_922, 21_846, 0, 32_768]);
}

fn group(level: Level, known: [(f64, u32); 2]) -> Host {
    let mut group = Host {
        level,
        ..Host::default()
    };
    for (arm, (value, evidence)) in group.arms.iter_mut().zip(known) {
        *arm = ArmState {
            value: bits(value),
            own_q16: bits(value) as u32,
            weight_q16: evidence * ONE_Q16,
            own_weight_q16: evidence * ONE_Q16,
            ..ArmState::default()
        };
    }
    group
}

#[test]
fn group_compares_with_default_of_same_host() {
    let mut record = group(Level::Prefix, [(0.0, 0); 2]);
    let mut tell = |arm, cost, system| {
        let report = Report {
            cost_q16: bits(cost) as u32,
            log_rate_q16: 20 * ONE_Q16,
            weight_q16: ONE_Q16,
            system_q16: bits(system) as u32,
            system_log_rate_q16: 20 * ONE_Q16,
            queue_q16: 0,
        };
        score_group(
            &mut record,
            arm,
            SYSTEM,
            &report,
            &costing(44),
            &params(),
            1,
        );
        (record.arms[arm].own_q16, record.arms[arm].own_weight_q16)
    };
    assert_eq!(tell(1, 43.0, 44.0), (31 * ONE_Q16, ONE_Q16));
    // A new host is compared with the usual cost, at half the weight.
    assert_eq!(tell(0, 40.0, 0.0), (32 * ONE_Q16, ONE_Q16 / 2));
}

#[test]
fn narrow_group_adopts_wide_by_worth() {
    let mut narrow = group(Level::Prefix, [(32.0, 8), (31.0, 2)]);
    let wide = group(Level::Namespace, [(32.0, 8), (32.0, 8)]);
    adopt_wider(&mut narrow, &wide, SYSTEM, &[2 * ONE_Q16; MAX_ARMS]);
    assert_eq!(narrow.arms[1].value, bits(31.5));
    assert_eq!(narrow.arms[1].weight_q16, 4 * ONE_Q16);
}

#[test]
fn new_record_inherits_distances_by_worth() {
    let mut host = measured(&[(0, 44)]);
    let known = group(Level::Prefix, [(32.0, 8), (31.0, 5)]);
    inherit_group(&mut host, &known, 0, SYSTEM, &[3 * ONE_Q16; MAX_ARMS]);
    assert_eq!(host.arms[1].value, bits(43.0));
    assert_eq!(host.arms[1].weight_q16, 3 * ONE_Q16);
    assert_eq!(host.arms[0].weight_q16, 4 * ONE_Q16);
}

#[test]
fn window_report_counts_rounds_of_slow_start() {
    // 30 segments are two rounds of ten and twenty; they took just two times 2^14 us.
    let sample = Sample {
        bytes: 30 * 1448,
        duration_us: 1 << 15,
        min_rtt_us: 1 << 14,
        segs_out: 30,
        ..costing(44)
    };
    let (report, _) = window::window_report(&sample).unwrap();
    assert_eq!(u64::from(report.system_q16), bits(47.0));
    assert_eq!(report.cost_q16, report.system_q16);
    // Ten retransmissions of 40 segments cost three quarters of a bit.
    let lossy = Sample {
        segs_out: 40,
        retrans: 10,
        ..sample
    };
    let (report, counts) = window::window_report(&lossy).unwrap();
    assert_eq!(u64::from(report.cost_q16), bits(47.75));
    assert_eq!((counts.steady_segs, counts.steady_retrans), (40, 10));
}

#[test]
fn window_with_losses_beyond_chance_is_left() {
    let step = |retrans| {
        let mut record = group(Level::WindowPrefix, [(32.0, 8), (31.0, 8)]);
        (record.step, record.scored, record.step_scored) = (1, 500, 400);
        (record.arms[0].segs, record.arms[0].retrans) = (10_000, 9);
        (record.arms[1].segs, record.arms[1].retrans) = (10_000, retrans);
        window::step_window(&mut record, 0b11);
        record.step
    };
    // Ten are expected, 30 are allowed, and nine more are above the root of 80.
    assert_eq!((step(48), step(49)), (1, 0));
}

#[test]
fn window_grows_after_its_measurements() {
    let step = |scored, step_scored| {
        let mut record = group(Level::WindowPrefix, [(32.0, 8), (0.0, 0)]);
        (record.scored, record.step_scored) = (scored, step_scored);
        window::step_window(&mut record, 0b11);
        record.step
    };
    assert_eq!((step(127, 0), step(128, 0)), (0, 1));
    assert_eq!((step(1099, 100), step(1100, 100)), (0, 1));
}
