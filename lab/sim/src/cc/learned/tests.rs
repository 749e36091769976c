use super::super::testing::{Flow, assert_near, example_setup};
use super::*;
use crate::Time;
use thalweg_rate::models::{Document, FeatureEntry, FloatLayer, Kind, Training};
use thalweg_rate::{Feature, FeatureKind, Node};

/// Content of a file: error and action over two decisions; signal 0.05 beyond 1.
fn content(policy: Policy, kind: Kind) -> ModelFile {
    let document = Document {
        name: "test".into(),
        kind,
        features: vec![entry("action", 1.0), entry("error", 1.0)],
        history: 2,
        target: 0.05,
        offset: 1.0,
        hidden: vec![],
        activation_amax: None,
        training: Training {
            scenarios: vec![],
            seed: 0,
            commit: String::new(),
            base_rtt_ns: 12_000,
            line_rate_bps: 100_000_000_000,
        },
        evaluation: serde_json::Map::new(),
    };
    ModelFile {
        features: document.integer_features().unwrap(),
        document,
        policy,
    }
}

fn entry(name: &str, scale: f64) -> FeatureEntry {
    FeatureEntry {
        name: name.into(),
        scale,
    }
}

/// Options that make the first rate easy to follow.
fn at_line_rate() -> Options {
    Options {
        initial_fraction: 1.0,
        overload: Overload::Decide,
        ..Options::default()
    }
}

/// As a flow begins at the line rate unless told otherwise.
fn restarting() -> Options {
    Options {
        overload: Overload::Restart,
        ..at_line_rate()
    }
}

#[test]
fn starts_at_a_thousandth_of_the_line_unless_told() {
    for (options, gbps, text) in [
        (Options::default(), 0.1, "model=stump"),
        (
            at_line_rate(),
            100.0,
            "model=stump,initial_fraction=1,overload=decide",
        ),
        (restarting(), 100.0, "model=stump,initial_fraction=1"),
    ] {
        let model = Model::new(stump(), Path::new("stump"), options).unwrap();
        assert_eq!(model.to_string(), text);
        assert_near(flow(&Arc::new(model)).rate_gbps(), gbps);
    }
}

/// One layer: the action is tanh of the inputs' weighted sum. The inputs are the older action and
/// error, then the newer ones.
fn linear(weights: [f32; 4]) -> Arc<Model> {
    let layer = FloatLayer::new("layers.0", 4, &weights, &[0.0]).unwrap();
    let float = thalweg_rate::models::Network::new(vec![layer]).unwrap();
    let policy = Policy::Mlp {
        float,
        integer: None,
    };
    let content = content(policy, Kind::Mlp);
    Arc::new(Model::new(content, Path::new("test"), at_line_rate()).unwrap())
}

fn flow(model: &Arc<Model>) -> Flow<Learned> {
    Flow::start_at_zero(Learned::new(Arc::clone(model)), &example_setup())
}

/// Features are Q15 and the signal comes from a root of 24 bits. The relative error of a rate is
/// thus about 0.2 · 2^-15.
#[track_caller]
fn assert_close(found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 2e-5,
        "{found} is not {expected}"
    );
}

#[test]
fn it_sees_two_steps_of_errors() {
    // 24 µs: (2 − 1) · √1, so the error is 0.05 − 1; then 36 µs: 2 · √share.
    let mut newest = flow(&linear([0.0, 0.0, 0.0, 1.0]));
    newest.deliver_response(Time::from_us(24));
    let first = 100.0 / (1.0 + 0.2 * 0.95_f64.tanh());
    assert_close(newest.rate_gbps(), first);
    newest.deliver_response(Time::from_us(36));
    // 0.05 − 2 · √0.87 is below −1, the least value of a feature.
    assert_close(newest.rate_gbps(), first / (1.0 + 0.2 * 1.0_f64.tanh()));

    let mut older = flow(&linear([0.0, 1.0, 0.0, 0.0]));
    older.deliver_response(Time::from_us(24));
    assert_close(older.rate_gbps(), 100.0);
    older.deliver_response(Time::from_us(12));
    assert_close(older.rate_gbps(), first);
}

#[test]
fn it_sees_two_steps_of_its_own_actions() {
    // The action is the error plus half of the newer action and a quarter of the older.
    let mut flow = flow(&linear([0.25, 0.0, 0.5, 1.0]));
    flow.deliver_response(Time::from_us(24));
    let one = -0.95_f64.tanh();
    let mut rate = 100.0 * action_multiplier(one);
    assert_close(flow.rate_gbps(), rate);
    // 12 µs: no signal, the error is the target.
    flow.deliver_response(Time::from_us(12));
    let two = (0.5 * one + 0.05).tanh();
    rate *= action_multiplier(two);
    assert_close(flow.rate_gbps(), rate);
    flow.deliver_response(Time::from_us(12));
    let three = (0.25 * one + 0.5 * two + 0.05).tanh();
    rate *= action_multiplier(three);
    assert_close(flow.rate_gbps(), rate);
}

#[test]
fn a_lost_probe_is_an_error_at_its_limit() {
    // The action is the error: −1 to 2^-15.
    let mut flow = flow(&linear([0.0, 0.0, 0.0, 1.0]));
    flow.lose_probe();
    let step = 1.0 + 0.2 * 1.0_f64.tanh();
    assert_close(flow.rate_gbps(), 100.0 / step);
    // Then it is the older error. 12 µs: the newer one is the target.
    let mut both = self::flow(&linear([0.0, 1.0, 0.0, 1.0]));
    both.lose_probe();
    both.deliver_response(Time::from_us(12));
    assert_close(
        both.rate_gbps(),
        100.0 / step / (1.0 + 0.2 * 0.95_f64.tanh()),
    );
}

#[test]
fn not_below_the_lowest_rate() {
    let mut flow = flow(&linear([0.0, 0.0, 0.0, 1e6]));
    for _ in 0..64 {
        flow.deliver_response(Time::from_us(1_000_000));
    }
    assert_near(flow.command.rate_bps, 1e6);
}

#[test]
fn a_faster_line_is_no_trouble() {
    // 3.2 Tbit/s is beyond the integers' 40 bits. At 24 µs all must be as at 100 Gbit/s.
    let setup = Setup {
        line_rate_bps: 3.2e12,
        ..example_setup()
    };
    let mut flow = Flow::start_at_zero(Learned::new(linear([0.0, 0.0, 0.0, 1.0])), &setup);
    flow.deliver_response(Time::from_us(24));
    assert_close(flow.rate_gbps(), 3200.0 / (1.0 + 0.2 * 0.95_f64.tanh()));
}

/// Left (+0.5) where the newest error is positive, right (−0.5) where it is not.
fn stump() -> ModelFile {
    let node = |left, right, value_q15| Node {
        input: 3,
        threshold_q15: 0,
        left,
        right,
        value_q15,
    };
    let nodes = vec![node(1, 2, 0), node(1, 1, -16384), node(2, 2, 16384)];
    let forest = Forest::new(nodes, vec![0], 4).unwrap();
    let kinds = [FeatureKind::Action, FeatureKind::Error];
    let list = kinds.map(|kind| Feature {
        kind,
        scale_q16: 1 << 16,
    });
    let features = Features::new(list.to_vec(), 2, 838_861, 1 << 16).unwrap();
    let model = thalweg_rate::Model::new(features, Decider::Forest(forest)).unwrap();
    content(Policy::Tree(model), Kind::Tree)
}

#[test]
fn trees_decide_in_integers() {
    let model = Model::new(stump(), Path::new("stump"), at_line_rate()).unwrap();
    assert_eq!(model.inference(), Inference::Tree);
    let mut flow = flow(&Arc::new(model));
    // 1 / 1.1 in Q16 is 65536² / 72090 (0.1 in Q16: 6554 rounded), to the nearest: 59578.
    let mut rate = 1e11_f64;
    for (rtt_us, multiplier_q16) in [(24, 59578.0), (24, 59578.0), (12, 72090.0)] {
        flow.deliver_response(Time::from_us(rtt_us));
        rate = (rate * multiplier_q16 / 65536.0).round();
        assert_eq!(flow.command.rate_bps, rate);
    }
}

#[test]
fn another_target_moves_the_fixed_point() {
    // With √share = 1 and a target of 0.5 the fixed point is an inflation of 1.5.
    let options = Options {
        target: Some(0.5),
        ..at_line_rate()
    };
    let model = Model::new(stump(), Path::new("stump"), options).unwrap();
    assert_eq!(model.features().target_q24(), 1 << 23);
    // The error's scale is a tenth, as the target is ten times the file's.
    assert_eq!(model.features().feature_list()[1].scale_q16, 6554);
    let model = Arc::new(model);
    let mut below = flow(&model);
    below.deliver_response(Time::from_ns(17_900));
    assert_eq!(below.rate_gbps(), 100.0);
    let mut above = flow(&model);
    above.deliver_response(Time::from_ns(18_100));
    assert!(above.rate_gbps() < 95.0);
}

#[test]
fn targets_that_are_equal_in_integers_make_equal_models() {
    // A steep error at a low target: 0.001 is 16,777.2 steps, and the scale has 2 million.
    let mut file = stump();
    file.document.target = 0.001;
    file.document.features[1].scale = 30.0;
    file.features = file.document.integer_features().unwrap();
    let features = |target| {
        let options = Options {
            target,
            ..Options::default()
        };
        let model = Model::new(file.clone(), Path::new("stump"), options).unwrap();
        model.features().clone()
    };
    let rounded = f64::from(file.features.target_q24()) / f64::from(1 << 24);
    assert_ne!(rounded, 0.001);
    assert_eq!(features(Some(rounded)), file.features);
    assert_eq!(features(Some(0.001)), file.features);
    assert_eq!(features(Some(2.0 * rounded)), features(Some(0.002)));
    assert_ne!(features(Some(0.002)), file.features);
}

#[test]
fn what_a_file_cannot_do_is_refused() {
    let asked = |inference, target, initial_fraction| {
        let options = Options {
            inference,
            target,
            initial_fraction,
            ..Options::default()
        };
        let error = Model::new(stump(), Path::new("stump"), options);
        error.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        asked(Some(Inference::Int8), None, 1.0),
        "stump: `inference` is int8; the file has tree"
    );
    assert_eq!(
        asked(None, Some(0.0), 1.0),
        "`target` is 0; a number from 0.000001 to 255 is expected"
    );
    // 10^-6 is 16.8 steps of the target, so 17; 0.05 is 838,861: the error's scale would be 49,345.
    let fault = asked(None, Some(1e-6), 1.0);
    let begin = "stump: with a target of 0.000001: features[1].scale (error): found 49344.";
    assert!(fault.starts_with(begin), "{fault}");
    assert!(
        fault.ends_with("expected 0.0000152587890625 to 4096"),
        "{fault}"
    );
    assert!(asked(None, None, 0.0).starts_with("`initial_fraction` is 0"));
}

/// A flow at the line rate, and what it does at 1 ms, 100 Gbit/s, if a probe is lost then.
fn restarted() -> Flow<Learned> {
    let model = Model::new(stump(), Path::new("stump"), restarting()).unwrap();
    let mut flow = flow(&Arc::new(model));
    flow.advance_time(Time::from_us(1_000));
    flow.lose_probe();
    flow
}

#[test]
fn a_lost_probe_of_the_start_begins_again() {
    let mut flow = restarted();
    assert_near(flow.rate_gbps(), 0.1);
    // Until what was sent before is gone, nothing counts: probes that left before 2 ms.
    flow.advance_time(Time::from_us(2_500));
    flow.lose_probe();
    flow.deliver_response(Time::from_us(600));
    assert_near(flow.rate_gbps(), 0.1);
    flow.advance_time(Time::from_us(3_000));
    flow.lose_probe();
    assert_near(flow.rate_gbps(), 0.05);
    // A full queue is as good as a loss: 16 times 12 µs are 192.
    flow.advance_time(Time::from_us(5_000));
    flow.deliver_response(Time::from_us(193));
    assert_near(flow.rate_gbps(), 0.025);
    flow.advance_time(Time::from_us(6_000));
    flow.deliver_response(Time::from_us(192));
    assert!(
        flow.rate_gbps() < 0.025 && flow.rate_gbps() > 0.02,
        "{}",
        flow.rate_gbps()
    );
}

#[test]
fn after_the_start_the_model_decides_about_lost_probes() {
    let mut flow = restarted();
    flow.advance_time(Time::from_us(3_000));
    for _ in 0..128 {
        flow.deliver_response(Time::from_us(12));
    }
    assert!(flow.controller.memory.is_none());
    let before = flow.rate_gbps();
    flow.lose_probe();
    assert!(
        flow.rate_gbps() > 0.8 * before,
        "{} {before}",
        flow.rate_gbps()
    );
    assert!(flow.rate_gbps() < before, "{} {before}", flow.rate_gbps());
}

#[test]
fn restarts_end_at_the_least_rate() {
    let mut flow = restarted();
    for _ in 0..20 {
        flow.advance_time(flow.now + Time::from_us(5_000));
        flow.lose_probe();
    }
    assert_near(flow.rate_gbps(), 0.001);
}

#[test]
fn a_slow_start_and_the_published_one_leave_all_to_the_model() {
    for options in [Options::default(), at_line_rate()] {
        let model = Model::new(stump(), Path::new("stump"), options).unwrap();
        assert!(flow(&Arc::new(model)).controller.memory.is_none());
    }
}
