use proptest::prelude::*;

use super::*;

fn feature(kind: FeatureKind, scale: f64) -> Feature {
    Feature {
        kind,
        scale_q16: (scale * 65536.0) as u32,
    }
}

/// Checks each feature against its formula in floating point, at rates and times of all sizes.
#[test]
fn features_are_those_of_the_formulas() {
    let kinds = FeatureKind::ALL.map(|kind| feature(kind, 1.0));
    let features = Features::new(kinds.to_vec(), 1, 1 << 23, 1 << 15).unwrap();
    for (rtt_ns, base_rtt_ns) in [(1_000, 1_000), (13_000, 12_000), (9_000, 12_000)] {
        for stretch in [1, 1000, 100_000] {
            for share in [1.0f64, 0.3, 1e-3, 1e-6] {
                let measurement = Measurement {
                    rtt_ns: rtt_ns * stretch,
                    base_rtt_ns: base_rtt_ns * stretch,
                    rate: (8e11 * share) as u64,
                    line_rate: 800_000_000_000,
                };
                let mut flow = Flow::default();
                flow.store_action(-1234);
                let found = features.observe(&mut flow, &measurement);
                let inflation = rtt_ns as f64 / base_rtt_ns as f64;
                let signal = (inflation - 0.5).max(0.0) * share.sqrt();
                let expected = [
                    -1234.0 / 32768.0,
                    0.5 - signal,
                    share.log2() / 16.0,
                    inflation - 1.0,
                    0.0,
                ];
                for (found, expected) in found.iter().zip(expected) {
                    let found = f64::from(*found) / 32768.0;
                    let expected = expected.clamp(-1.0, 1.0);
                    assert!((found - expected).abs() < 7e-4, "{found} {expected}");
                }
            }
        }
    }
}

#[test]
fn the_history_is_oldest_first() {
    let list = vec![
        feature(FeatureKind::Action, 1.0),
        feature(FeatureKind::ErrorChange, 1.0),
    ];
    let features = Features::new(list, 2, 1 << 24, 0).unwrap();
    let mut flow = Flow::default();
    let mut measurement = Measurement {
        rtt_ns: 2_000,
        base_rtt_ns: 1_000,
        rate: 100,
        line_rate: 400,
    };
    assert_eq!(features.observe(&mut flow, &measurement), [0, 0, 0, 0]);
    flow.store_action(7);
    // The signal falls from 2 * 0.5 to 1.5 * 0.5.
    measurement.rtt_ns = 1_500;
    assert_eq!(features.observe(&mut flow, &measurement), [0, 0, 7, 8192]);
    flow.store_action(8);
    assert_eq!(features.observe(&mut flow, &measurement), [7, 8192, 8, 0]);
}

/// Action, error, log_rate, queue and error_change: after a response, a loss, and a response.
#[test]
fn a_loss_is_at_the_limits_and_leaves_no_signal() {
    let kinds = FeatureKind::ALL.map(|kind| feature(kind, 1.0));
    let features = Features::new(kinds.to_vec(), 3, 1 << 24, 1 << 16).unwrap();
    let mut flow = Flow::default();
    // A sixteenth of the line rate: log2 is -4, over 16 -0.25. Inflation 1.5: queue 0.5, signal 0.5
    // * 0.25 = 0.125, error 0.875.
    let mut measurement = Measurement {
        rtt_ns: 1_500,
        base_rtt_ns: 1_000,
        rate: 100,
        line_rate: 1_600,
    };
    features.observe(&mut flow, &measurement);
    flow.store_action(5);
    features.observe_loss(&mut flow, 100, 1_600);
    flow.store_action(-6);
    // Inflation 2: signal 0.25. The previous signal is unknown, and so is the change.
    measurement.rtt_ns = 2_000;
    let expected = [
        [0, 28_672, -8_192, 16_384, 0],
        [5, -32_767, -8_192, 32_767, 0],
        [-6, 24_576, -8_192, 32_767, 0],
    ];
    assert_eq!(
        features.observe(&mut flow, &measurement),
        expected.as_flattened()
    );
}

#[test]
fn absurd_measurements_give_features_all_the_same() {
    let list = FeatureKind::ALL.map(|kind| {
        feature(
            kind,
            if kind == FeatureKind::Action {
                1.0
            } else {
                4096.0
            },
        )
    });
    let features = Features::new(list.to_vec(), 3, u32::MAX, 0).unwrap();
    let extremes = [0, 1, MAX_RATE, u64::MAX];
    let mut flow = Flow::default();
    for rtt_ns in extremes {
        for base_rtt_ns in extremes {
            for rate in extremes {
                for line_rate in extremes {
                    let inputs = features.observe(
                        &mut flow,
                        &Measurement {
                            rtt_ns,
                            base_rtt_ns,
                            rate,
                            line_rate,
                        },
                    );
                    assert!(inputs.iter().all(|input| *input != i16::MIN));
                }
            }
        }
    }
}

/// Numbers below `bits` bits: of all sizes, and next to powers of two.
fn numbers(bits: u32) -> impl Strategy<Value = u64> {
    let most = (1u64 << bits) - 1;
    prop_oneof![
        (0..=bits, any::<u64>()).prop_map(move |(bits, any)| any & ((1 << bits) - 1)),
        (0..bits, 0..3u64).prop_map(move |(bit, add)| ((1 << bit) - 1 + add).min(most)),
    ]
}

/// The quotient and the root of docs/reference/model.md in 128 bits, without floating point.
fn by_the_formulas(measurement: &Measurement) -> (u64, u64) {
    let of = |value: u64, least, most| u128::from(value).clamp(least, most);
    let longest = u128::from(MAX_RTT_NS);
    let base = of(measurement.base_rtt_ns, 1, longest);
    let inflation = (of(measurement.rtt_ns, 1, longest) << 16) / base;
    let line = of(measurement.line_rate, 1, u128::from(MAX_RATE));
    let share = (of(measurement.rate, 1, line) << 48) / line;
    let root = (0..25).rev().fold(0u128, |root, bit| {
        let next = root | 1 << bit;
        if next * next <= share { next } else { root }
    });
    (inflation.min(0xffff_ffff) as u64, root as u64)
}

fn assert_exact(measurement: &Measurement) {
    let found = (inflation_q16(measurement), root_share_q24(measurement));
    assert_eq!(found, by_the_formulas(measurement), "{measurement:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn floating_point_is_exact(
        rtt_ns in numbers(36),
        base_rtt_ns in numbers(36),
        rate in numbers(42),
        line_rate in numbers(42),
    ) {
        assert_exact(&Measurement { rtt_ns, base_rtt_ns, rate, line_rate });
    }

    /// Quotients and roots that are whole numbers, or as close to one as possible.
    #[test]
    fn floating_point_is_exact_next_to_whole_numbers(
        base_rtt_ns in numbers(34),
        inflation_q16 in numbers(34),
        root_q24 in 1..=1u64 << 24,
        line_rate in numbers(40),
        miss in -1..2i64,
    ) {
        let product = u128::from(base_rtt_ns) * u128::from(inflation_q16);
        let rtt_ns = (product >> 16).min(1 << 40) as i64 + miss;
        let line = u128::from(line_rate.max(1));
        let rate = (u128::from(root_q24 * root_q24) * line).div_ceil(1 << 48) as i64 + miss;
        assert_exact(&Measurement {
            rtt_ns: rtt_ns.max(0) as u64,
            base_rtt_ns,
            rate: rate.max(0) as u64,
            line_rate,
        });
    }

    /// Histories of every shape against a list that only grows.
    #[test]
    fn histories_of_all_shapes_are_kept(
        features in 1..=4usize,
        history in 1..=4usize,
        actions in proptest::collection::vec(-32767..=32767i16, 1..12),
    ) {
        let kinds = [
            FeatureKind::Queue,
            FeatureKind::Action,
            FeatureKind::LogRate,
            FeatureKind::Error,
        ];
        let list = kinds[..features].iter().map(|kind| feature(*kind, 1.0)).collect();
        let model = Features::new(list, history, 1 << 22, 1 << 15).unwrap();
        let mut flow = Flow::default();
        let mut seen = vec![0; features * (history - 1)];
        for (step, action) in actions.iter().enumerate() {
            let measurement = Measurement {
                rtt_ns: 12_000 + 777 * step as u64,
                base_rtt_ns: 12_000,
                rate: 1 + 3_000_000_000 * step as u64,
                line_rate: 100_000_000_000,
            };
            let (inflation, root) = by_the_formulas(&measurement);
            let signal = ((inflation - (1 << 15)) * root) >> 16;
            let log = i64::from(log2_q16(share_q48(measurement.rate, measurement.line_rate))) - (48 << 16);
            let newest = [
                (inflation as i64 - 65536 + 1).div_euclid(2),
                i64::from(flow.action_q15),
                (log + 16).div_euclid(32),
                ((1 << 22) - signal as i64 + 256).div_euclid(512),
            ];
            let newest = newest.map(|one| one.clamp(-32767, 32767) as i16);
            seen.extend(&newest[..features]);
            let expected = &seen[seen.len() - features * history..];
            prop_assert_eq!(model.observe(&mut flow, &measurement), expected);
            flow.store_action(*action);
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let action = feature(FeatureKind::Action, 1.0);
    let error = feature(FeatureKind::Error, 2.0);
    let refused = |list: &[Feature], history, target| {
        Features::new(list.to_vec(), history, target, 0)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&[], 2, 1).starts_with("features: found 0 over 2"));
    assert!(refused(&[action, error], 9, 1).contains("1 to 16 inputs"));
    assert!(refused(&[action], usize::MAX, 1).contains("1 to 16 inputs"));
    assert!(refused(&[error], 1, 0).starts_with("target"));
    let action = feature(FeatureKind::Action, 2.0);
    assert!(refused(&[action], 1, 1).contains("features[0].scale (action): found 2"));
    let error = feature(FeatureKind::Error, 4097.0);
    assert!(refused(&[error], 1, 1).contains("2^-16 to 4096"));
}
