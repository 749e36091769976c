//! The learned rate controller's arithmetic with any accepted model and any measurement. Nothing in
//! C is undefined, the C header agrees with the Rust reference, and actions and rates stay within
//! their limits.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use thalweg_rate::{
    Decider, Feature, FeatureKind, Features, Forest, Layer, MAX_BIAS, MAX_INPUTS, MAX_LEAF,
    MAX_RATE, Measurement, Model, Network, Node, SHIFTS, Scale,
};
use thalweg_tests::network::{
    CheckedSide, CoreRunner, HeaderRunner, Runner, checked, checked_shift,
};

/// Largest effect of an action: 1.2 and its inverse, and half a unit of rounding either way.
const MOST: f64 = 1.2;

/// Any number, with the ends of its range far more often than by chance.
fn any_of(least: i64, most: i64) -> impl Strategy<Value = i64> {
    prop_oneof![
        1 => Just(least),
        1 => Just(most),
        4 => least..=most,
        // Small numbers, which ranges of many bits hardly ever produce.
        2 => (0u32..63, any::<bool>()).prop_map(move |(bits, negative)| {
            let size = 1i64 << bits;
            (if negative { -size } else { size }).clamp(least, most)
        }),
    ]
}

fn any_u64() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        1 => Just(u64::MAX),
        4 => (any::<u64>(), 0u32..64).prop_map(|(number, shift)| number >> shift),
    ]
}

fn many(least: i64, most: i64, count: usize) -> impl Strategy<Value = Vec<i64>> {
    prop_oneof![
        3 => prop::collection::vec(any_of(least, most), count),
        // All equal: the largest sums.
        1 => any_of(least, most).prop_map(move |number| vec![number; count]),
    ]
}

fn layer(columns: usize, rows: usize) -> impl Strategy<Value = Layer> {
    (
        many(-127, 127, rows * columns),
        many(-i64::from(MAX_BIAS), i64::from(MAX_BIAS), rows),
        many(0, i64::from(i32::MAX), rows),
        SHIFTS,
    )
        .prop_map(move |(weights, bias, multipliers, shift)| {
            let weights: Vec<i8> = weights.iter().map(|&weight| weight as i8).collect();
            let bias: Vec<i32> = bias.iter().map(|&bias| bias as i32).collect();
            let multipliers: Vec<u32> = multipliers.iter().map(|&factor| factor as u32).collect();
            Layer::new("layer", columns, &weights, &bias, &multipliers, shift).expect("in range")
        })
}

fn network(inputs: usize) -> impl Strategy<Value = Decider> {
    let widths = prop::collection::vec(1usize..=32, 0..=2);
    (any_of(0, i64::from(i32::MAX)), SHIFTS, widths).prop_flat_map(
        move |(multiplier, shift, hidden)| {
            let widths: Vec<usize> = [&[inputs], &hidden[..], &[1]].concat();
            let layers: Vec<_> = widths
                .windows(2)
                .map(|pair| layer(pair[0], pair[1]))
                .collect();
            layers.prop_map(move |layers| {
                let scale = Scale {
                    multiplier: multiplier as u32,
                    shift,
                };
                Decider::Network(Network::new(scale, layers).expect("in range"))
            })
        },
    )
}

/// Trees in one row of nodes: each inner node leads left to the next one and right to any later
/// one.
fn forest(inputs: usize) -> impl Strategy<Value = Decider> {
    let node = (
        0..inputs,
        any_of(i64::from(i16::MIN), i64::from(i16::MAX)),
        any_of(-i64::from(MAX_LEAF), i64::from(MAX_LEAF)),
        any::<(u8, u8, bool)>(),
    );
    let roots = prop::collection::vec(any::<prop::sample::Index>(), 1..=128);
    (prop::collection::vec(node, 1..=40), roots).prop_map(move |(drawn, roots)| {
        let count = drawn.len();
        let mut depths = vec![0; count];
        let mut nodes = Vec::new();
        for (number, (input, threshold, value, (left, right, leaf))) in
            drawn.into_iter().enumerate().rev()
        {
            let child = |draw: u8| number + 1 + usize::from(draw) % (count - number - 1).max(1);
            let mut children = [left, right].map(child);
            let deep = |children: &[usize; 2]| children.iter().map(|&at| depths[at]).max();
            if leaf || number + 1 == count || deep(&children).is_some_and(|depth| depth >= 16) {
                children = [number; 2];
            } else {
                depths[number] = 1 + deep(&children).expect("two");
            }
            nodes.push(Node {
                input: input as u8,
                threshold_q15: threshold as i16,
                left: children[0] as u16,
                right: children[1] as u16,
                value_q15: value as i32,
            });
        }
        nodes.reverse();
        let roots = roots.iter().map(|root| root.index(count) as u16).collect();
        Decider::Forest(Forest::new(nodes, roots, inputs).expect("in range"))
    })
}

fn model() -> impl Strategy<Value = Model> {
    let features = prop::collection::vec((0..FeatureKind::ALL.len(), any_of(1, 1 << 28)), 1..=4);
    let limits = (any_of(1, u32::MAX.into()), any_of(0, u32::MAX.into()));
    (features, 1usize..=4, limits).prop_flat_map(|(list, history, (target, offset))| {
        let list: Vec<Feature> = list
            .into_iter()
            .map(|(kind, scale)| {
                let kind = FeatureKind::ALL[kind];
                let scale_q16 = match kind {
                    FeatureKind::Action => 1 << 16,
                    _ => scale as u32,
                };
                Feature { kind, scale_q16 }
            })
            .collect();
        let features = Features::new(list, history, target as u32, offset as u32);
        let features = features.expect("in range");
        let decider = prop_oneof![
            3 => network(features.input_count()).boxed(),
            1 => forest(features.input_count()).boxed(),
        ];
        decider.prop_map(move |decider| Model::new(features.clone(), decider).expect("fits"))
    })
}

/// A measurement, floor and cap.
fn step() -> impl Strategy<Value = (Measurement, u64, u64)> {
    let measurement = (any_u64(), any_u64(), any_u64(), any_u64());
    (measurement, any_u64(), any_u64()).prop_map(
        |((rtt_ns, base_rtt_ns, rate, line_rate), floor, cap)| {
            let measurement = Measurement {
                rtt_ns,
                base_rtt_ns,
                rate,
                line_rate,
            };
            // As in the kernel.
            (measurement, floor.min(MAX_RATE), cap.min(MAX_RATE))
        },
    )
}

fn check(
    header: &mut HeaderRunner<CheckedSide>,
    model: &Model,
    steps: &[(Measurement, u64, u64)],
) -> Result<(), TestCaseError> {
    let mut core = CoreRunner::default();
    let fail = |why: String| TestCaseError::fail(why);
    core.begin(model).map_err(fail)?;
    header.begin(model).map_err(fail)?;
    for (measurement, floor, cap) in steps {
        let expected = core.step(*measurement, *floor, *cap).map_err(fail)?;
        let found = header.step(*measurement, *floor, *cap).map_err(fail)?;
        prop_assert_eq!(&found, &expected);
        prop_assert!(
            found.inputs.iter().all(|&input| input >= -32767),
            "{:?}",
            found
        );
        prop_assert!((-32767..=32767).contains(&found.action_q15), "{:?}", found);
        prop_assert!(
            (*floor..=(*cap).max(*floor)).contains(&found.next_rate),
            "{:?} out of {} to {}",
            found,
            floor,
            cap
        );
        // The same action without limits.
        let rate = measurement.rate.min(MAX_RATE);
        let free = header
            .next_rate(rate, found.action_q15 as i16, 0, u64::MAX)
            .map_err(fail)? as f64;
        // The multiplier has a resolution of 2^-16.
        let slack = 0.5 + rate as f64 / 65536.0;
        let (least, most) = (rate as f64 / MOST - slack, rate as f64 * MOST + slack);
        prop_assert!(
            (least..=most).contains(&free),
            "{} of {}: {:?}",
            free,
            rate,
            found
        );
    }
    Ok(())
}

fn run(cases: u32) {
    // Cases come in order and are the same each time, so a failure recurs. The failing case is
    // printed, shrunk.
    let config = Config {
        cases,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        ..Config::default()
    };
    let mut header = checked();
    let header = std::cell::RefCell::new(&mut header);
    let case = (model(), prop::collection::vec(step(), 1..=8));
    TestRunner::new(config)
        .run(&case, |(model, steps)| {
            check(&mut header.borrow_mut(), &model, &steps)
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn any_model_keeps_its_limits_and_nothing_is_undefined() {
    run(2_000);
}

#[test]
#[ignore = "slow: a minute or two"]
fn many_models_keep_their_limits_and_nothing_is_undefined() {
    run(100_000);
}

/// The build finds undefined behaviour.
#[test]
fn what_is_undefined_is_found() {
    assert_eq!(checked_shift(4), Ok(16));
    assert_eq!(
        checked_shift(40),
        Err("undefined in C: shift_out_of_bounds".into())
    );
}

/// Features of one flow are stored up to the model's end.
#[test]
fn the_largest_history_fits() {
    let features = Features::new(
        vec![Feature {
            kind: FeatureKind::Error,
            scale_q16: 1 << 28,
        }],
        MAX_INPUTS,
        1,
        0,
    )
    .expect("in range");
    let leaf = Node {
        input: 0,
        threshold_q15: 0,
        left: 0,
        right: 0,
        value_q15: MAX_LEAF,
    };
    let forest = Forest::new(vec![leaf], vec![0; 128], MAX_INPUTS).expect("in range");
    let model = Model::new(features, Decider::Forest(forest)).expect("fits");
    let measurement = Measurement {
        rtt_ns: u64::MAX,
        base_rtt_ns: 1,
        rate: u64::MAX,
        line_rate: 1,
    };
    let steps = vec![(measurement, 0, MAX_RATE); 40];
    check(&mut checked(), &model, &steps).expect("agrees");
}
