//! Model files: valid, faulty and random ones.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use thalweg_rate::MAX_NODES;
use thalweg_rate::models::{LstmState, ModelFile, Policy};

/// A file in parts, so that a test can corrupt one.
#[derive(Clone)]
struct Parts {
    version: Option<&'static str>,
    document: Value,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

/// A function that corrupts a part, and a text that the message must contain.
type Fault<'a, T> = (&'a dyn Fn(&mut T), &'a str);

/// For closures without a result.
fn ignore<T>(_: T) {}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

fn words(numbers: &[i32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

fn shorts(numbers: &[i16]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

impl Parts {
    fn new(kind: &str, hidden: &[usize]) -> Self {
        let document = json!({
            "name": "a model",
            "kind": kind,
            "features": [{ "name": "action" }, { "name": "error", "scale": 4.0 }],
            "history": 1,
            "target": 0.5,
            "offset": 1.0,
            "hidden": hidden,
            "training": {
                "scenarios": ["2-to-1"], "seed": 1, "commit": "none",
                "base_rtt_ns": 12000, "line_rate_bps": 100_000_000_000u64,
            },
        });
        Self {
            version: Some("1"),
            document,
            tensors: BTreeMap::new(),
        }
    }

    fn set(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> &mut Self {
        self.tensors
            .insert(name.into(), (dtype, shape.into(), bytes));
        self
    }

    fn set_floats(&mut self, name: &str, shape: &[usize], numbers: &[f32]) -> &mut Self {
        self.set(name, Dtype::F32, shape, floats(numbers))
    }

    fn bytes(&self) -> Vec<u8> {
        let mut metadata = HashMap::from([("thalweg".to_owned(), self.document.to_string())]);
        if let Some(version) = self.version {
            metadata.insert("format_version".into(), version.into());
        }
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize(views, Some(metadata)).unwrap()
    }

    fn read(&self) -> ModelFile {
        ModelFile::parse(&self.bytes(), Path::new("m.safetensors")).unwrap()
    }

    /// The message after the file's name, with which it must begin.
    fn refused(&self) -> String {
        let error = ModelFile::parse(&self.bytes(), Path::new("m.safetensors")).unwrap_err();
        let message = error.to_string();
        message.strip_prefix("m.safetensors: ").unwrap().to_owned()
    }
}

/// 2-2-1. Scales by hand: inputs are limited to 1, hidden values to 2. The weights are whole steps
/// of 1/64 and 1/32.
fn mlp() -> Parts {
    let mut parts = Parts::new("mlp", &[2]);
    let step = 1.0 / 64.0;
    parts
        .set_floats(
            "layers.0.weight",
            &[2, 2],
            &[127.0 * step, -64.0 * step, 2.0 * step, 127.0 * step],
        )
        .set_floats("layers.1.weight", &[1, 2], &[127.0 / 32.0, -1.0])
        .set_floats("layers.1.bias", &[1], &[0.25]);
    parts
}

/// A positive factor as its fixed point. The largest factor of a file comes first.
fn multiplier(factor: f64, shift: u32) -> i32 {
    (factor * (1u64 << shift) as f64).round() as i32
}

fn quantised() -> Parts {
    let mut parts = mlp();
    parts.document["activation_amax"] = json!([1.0, 2.0]);
    let (step_in, step_hidden, step_out) = (1.0 / 127.0, 2.0 / 127.0, 1.0 / 4096.0);
    let first = multiplier(step_in / 64.0 / step_hidden, 37);
    let second = multiplier(step_hidden / 32.0 / step_out, 29);
    let bias = (0.25f64 / (step_hidden / 32.0)).round() as i32;
    parts
        .set(
            "input.multiplier",
            Dtype::I32,
            &[1],
            words(&[multiplier(127.0 / 32768.0, 38)]),
        )
        .set("input.shift", Dtype::I32, &[1], words(&[38]))
        .set(
            "layers.0.weight_q",
            Dtype::I8,
            &[2, 2],
            vec![127, -64i8 as u8, 2, 127],
        )
        .set("layers.0.bias_q", Dtype::I32, &[2], words(&[0, 0]))
        .set_floats("layers.0.scale", &[2], &[1.0 / 64.0; 2])
        .set("layers.0.multiplier", Dtype::I32, &[2], words(&[first; 2]))
        .set("layers.0.shift", Dtype::I32, &[1], words(&[37]))
        .set(
            "layers.1.weight_q",
            Dtype::I8,
            &[1, 2],
            vec![127, -32i8 as u8],
        )
        .set("layers.1.bias_q", Dtype::I32, &[1], words(&[bias]))
        .set_floats("layers.1.scale", &[1], &[1.0 / 32.0])
        .set("layers.1.multiplier", Dtype::I32, &[1], words(&[second]))
        .set("layers.1.shift", Dtype::I32, &[1], words(&[29]));
    parts
}

fn tree() -> Parts {
    let mut parts = Parts::new("tree", &[]);
    let links = |numbers: &[u16]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    parts
        .set("tree.feature", Dtype::U8, &[3], vec![1, 0, 0])
        .set("tree.threshold", Dtype::I16, &[3], shorts(&[100, 0, 0]))
        .set("tree.left", Dtype::U16, &[3], links(&[1, 1, 2]))
        .set("tree.right", Dtype::U16, &[3], links(&[2, 1, 2]))
        .set("tree.value", Dtype::I32, &[3], words(&[0, -5, 700]))
        .set("tree.root", Dtype::U16, &[1], links(&[0]));
    parts
}

fn lstm() -> Parts {
    let mut parts = Parts::new("lstm", &[]);
    parts
        .set_floats("fc.weight", &[16, 2], &[0.5; 32])
        .set_floats("fc.bias", &[16], &[0.0; 16])
        .set_floats("lstm.weight_input", &[64, 16], &[0.1; 1024])
        .set_floats("lstm.weight_hidden", &[64, 16], &[0.1; 1024])
        .set_floats("lstm.bias", &[64], &[0.0; 64])
        .set_floats("output.weight", &[1, 16], &[0.1; 16]);
    parts
}

#[test]
fn an_mlp_is_read() {
    let file = mlp().read();
    let Policy::Mlp {
        float,
        integer: None,
    } = &file.policy
    else {
        panic!("{file:?}");
    };
    // 127/64 * 0.5 + 64/64 * 0.25, and 2/64 * 0.5 - 127/64 * 0.25 < 0.
    let hidden = 127.0 / 128.0 + 0.25;
    let exact = (127.0 / 32.0 * hidden + 0.25f64).tanh();
    assert!((f64::from(float.infer(&[0.5, -0.25])) - exact).abs() < 1e-6);
    assert_eq!(file.features.target_q24(), 1 << 23);
    assert_eq!(file.features.offset_q16(), 1 << 16);
    assert_eq!(file.features.feature_list()[1].scale_q16, 4 << 16);
}

#[test]
fn a_quantised_mlp_does_nearly_the_same_in_integers() {
    let file = quantised().read();
    let Policy::Mlp {
        float,
        integer: Some(integer),
    } = &file.policy
    else {
        panic!("{file:?}");
    };
    for inputs in [[0.1f32, 0.1], [0.02, -0.05], [-0.1, 0.05], [0.0, 0.0]] {
        let exact = float.infer(&inputs);
        let fixed = inputs.map(|input| (input * 32768.0) as i16);
        let found = f32::from(integer.decider().infer(&fixed)) / 32768.0;
        assert!((found - exact).abs() < 0.03, "{inputs:?}: {found}, {exact}");
    }
}

#[test]
fn trees_and_recurrent_networks_are_read() {
    let file = tree().read();
    let model = file.policy.integer_model().unwrap();
    assert_eq!(model.decider().infer(&[0, 100]), -5);
    assert_eq!(model.decider().infer(&[0, 101]), 700);
    let file = lstm().read();
    assert!(file.policy.integer_model().is_none());
    let Policy::Lstm(lstm) = &file.policy else {
        panic!("{file:?}");
    };
    let mut state = LstmState::default();
    let first = lstm.infer(&[0.5, 0.5], &mut state);
    assert!(
        first > 0.0 && lstm.infer(&[0.5, 0.5], &mut state) > first,
        "it remembers"
    );
}

/// `python/tests/sample.py` wrote the file with the expected results in it.
#[test]
fn a_file_of_the_python_package_does_what_it_does_there() {
    #[derive(serde::Deserialize)]
    struct Expected {
        inputs_q15: Vec<[i16; 4]>,
        actions_q15: Vec<i16>,
        actions: Vec<f32>,
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mlp-4-12-12-1.safetensors");
    let file = ModelFile::read(&path).unwrap();
    let Policy::Mlp {
        float,
        integer: Some(integer),
    } = &file.policy
    else {
        panic!("{file:?}");
    };
    let evaluation = Value::Object(file.document.evaluation.clone());
    let expected: Expected = serde_json::from_value(evaluation).unwrap();
    assert_eq!(expected.inputs_q15.len(), 100);
    for (number, inputs) in expected.inputs_q15.iter().enumerate() {
        let action_q15 = integer.decider().infer(inputs);
        assert_eq!(action_q15, expected.actions_q15[number], "{inputs:?}");
        let action = float.infer(&inputs.map(|input| f32::from(input) / 32768.0));
        let exact = expected.actions[number];
        assert!((action - exact).abs() < 1e-5, "{action}, {exact}");
    }
}

/// An entry of `evaluation.runs`.
fn run() -> Value {
    json!({
        "scenario": "s", "inference": "float", "initial_fraction": 0.001, "duration_s": 0.2,
        "warmup_s": 0.1, "seeds": 3, "utilisation_percent": 99.5, "fairness_percent": 98.0,
        "queue_us": 7.25, "dropped_percent": 0.0,
    })
}

/// A run that differs in one field.
fn with(field: &str, value: Value) -> Value {
    let mut run = run();
    run[field] = value;
    run
}

#[test]
fn what_a_model_did_is_read() {
    let mut parts = mlp();
    parts.document["evaluation"] = json!({ "runs": [run()], "note": "any" });
    let runs = parts.read().document.evaluation_runs().unwrap();
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].queue_us, runs[0].seeds), (7.25, 3));
    assert_eq!(mlp().read().document.evaluation_runs().unwrap(), []);
}

#[test]
fn faults_of_the_document_are_named() {
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut parts = mlp();
        change(&mut parts.document);
        parts.refused()
    };
    let all: [Fault<'_, Value>; 21] = [
        (
            &|d| d["name"] = json!(""),
            "name: found \"\", expected 1 to 64",
        ),
        (&|d| d["kind"] = json!("gru"), "metadata `thalweg`:1:"),
        (&|d| d["extra"] = json!(1), "unknown field `extra`"),
        (
            &|d| ignore(d.as_object_mut().unwrap().remove("target")),
            "missing field `target`",
        ),
        (
            &|d| d["target"] = json!(0.0),
            "target: found 0, expected 0.000001 to 255",
        ),
        (&|d| d["target"] = json!(null), "metadata `thalweg`:1:"),
        (
            &|d| d["offset"] = json!(-1.0),
            "offset: found -1, expected 0 to 65535",
        ),
        (
            &|d| d["history"] = json!(0),
            "features: found 2 over 0 decisions",
        ),
        (
            &|d| d["history"] = json!(9),
            "expected 1 to 16 inputs in all",
        ),
        (
            &|d| d["history"] = json!(u64::MAX),
            "expected 1 to 16 inputs in all",
        ),
        (
            &|d| d["features"][0]["name"] = json!("speed"),
            "features[0].name: found \"speed\", expected one of action, error, log_rate, queue, error_change",
        ),
        (
            &|d| d["features"][1]["scale"] = json!(5000.0),
            "features[1].scale (error): found 5000",
        ),
        (
            &|d| d["features"][0]["scale"] = json!(2.0),
            "expected 1 for an action",
        ),
        (
            &|d| d["hidden"] = json!([2, 2, 2]),
            "hidden: found [2, 2, 2], expected two",
        ),
        (
            &|d| d["hidden"] = json!([33]),
            "hidden: found [33], expected widths of 1 to 32",
        ),
        (
            &|d| d["activation_amax"] = json!([1.0]),
            "activation_amax: found [1.0], expected 2 numbers",
        ),
        (
            &|d| d["evaluation"]["runs"] = json!([{ "scenario": "s" }]),
            "evaluation.runs: found missing field `inference`, expected a list of runs",
        ),
        (
            &|d| d["evaluation"]["runs"] = json!([with("speed", json!(1))]),
            "evaluation.runs: found unknown field `speed`",
        ),
        (
            &|d| d["evaluation"]["runs"] = json!([run(), with("inference", json!("int4"))]),
            "evaluation.runs[1].inference: found \"int4\", expected float, int8 or tree",
        ),
        (
            &|d| d["evaluation"]["runs"] = json!([with("seeds", json!(0))]),
            "evaluation.runs[0].seeds: found 0, expected 1 at least",
        ),
        (
            &|d| d["evaluation"]["runs"] = json!([with("warmup_s", json!(0.3))]),
            "evaluation.runs[0].warmup_s: found 0.3, expected 0 to 0.2",
        ),
    ];
    for (change, expected) in all {
        let message = refused(change);
        assert!(
            message.contains(expected),
            "{message}\ndoes not contain\n{expected}"
        );
    }
    let mut parts = mlp();
    parts.version = Some("2");
    let expected =
        "metadata `format_version`: found \"2\", expected \"1\", for which this version was built";
    assert_eq!(parts.refused(), expected);
    parts.version = None;
    assert!(
        parts
            .refused()
            .starts_with("metadata `format_version`: found none")
    );
    let mut parts = tree();
    parts.document["hidden"] = json!([4]);
    assert!(parts.refused().contains("only an mlp has hidden layers"));
}

#[test]
fn faults_of_the_tensors_are_named() {
    let refused = |change: &dyn Fn(&mut Parts)| {
        let mut parts = quantised();
        change(&mut parts);
        parts.refused()
    };
    let all: [Fault<'_, Parts>; 14] = [
        (
            &|p| ignore(p.tensors.remove("layers.0.weight")),
            "tensor `layers.0.weight`: found no such tensor, expected F32 numbers of shape [2, 2]",
        ),
        (
            &|p| ignore(p.set_floats("layers.0.weight", &[4], &[0.0; 4])),
            "tensor `layers.0.weight`: found shape [4], expected shape [2, 2]",
        ),
        (
            &|p| ignore(p.set("layers.0.weight", Dtype::I32, &[2, 2], words(&[0; 4]))),
            "tensor `layers.0.weight`: found numbers of type I32, expected F32",
        ),
        (
            &|p| ignore(p.set_floats("layers.1.bias", &[1], &[f32::NAN])),
            "tensor `layers.1.bias`[0]: found NaN, expected a finite number",
        ),
        (
            &|p| ignore(p.set_floats("layers.2.weight", &[1], &[0.0])),
            "tensor `layers.2.weight`: found it in the file, expected only",
        ),
        (
            &|p| ignore(p.set("layers.0.weight_q", Dtype::I8, &[2, 2], vec![128; 4])),
            "layers.0.weight_q[0, 0]: found -128, expected -127 to 127",
        ),
        (
            &|p| {
                ignore(p.set(
                    "layers.0.weight_q",
                    Dtype::I8,
                    &[2, 2],
                    vec![127, 192, 3, 127],
                ))
            },
            "layers.0.weight_q[1, 0]: found 3 steps of 1.5625e-2, expected what is nearest to 3.125e-2",
        ),
        (
            &|p| ignore(p.set("layers.0.multiplier", Dtype::I32, &[2], words(&[-1, 1]))),
            "layers.0.multiplier: found -1, expected 0 or more",
        ),
        (
            &|p| {
                ignore(p.set(
                    "layers.0.multiplier",
                    Dtype::I32,
                    &[2],
                    words(&[1 << 29; 2]),
                ))
            },
            "layers.0.multiplier[0]: found 3.90625e-3, expected 7.8125e-3, by the scales",
        ),
        (
            &|p| ignore(p.set("layers.1.shift", Dtype::I32, &[1], words(&[57]))),
            "layers.1.shift: found 57, expected 8 to 56",
        ),
        (
            &|p| ignore(p.set("layers.1.bias_q", Dtype::I32, &[1], words(&[0]))),
            "layers.1.bias_q[0]: found 0, expected what is nearest to 2.5e-1",
        ),
        (
            &|p| ignore(p.set("input.multiplier", Dtype::I32, &[1], words(&[1 << 30]))),
            "input.multiplier: found 3.90625e-3, expected 3.875732421875e-3",
        ),
        (
            &|p| {
                ignore(
                    p.document
                        .as_object_mut()
                        .unwrap()
                        .remove("activation_amax"),
                )
            },
            "tensor `input.multiplier`: found it in the file",
        ),
        (
            &|p| ignore(p.set_floats("layers.0.scale", &[2], &[-1.0, 1.0])),
            "layers.0.scale[0]: found -1, expected 0 or more",
        ),
    ];
    for (change, expected) in all {
        let message = refused(change);
        assert!(
            message.contains(expected),
            "{message}\ndoes not contain\n{expected}"
        );
    }
    let mut parts = tree();
    parts.set("tree.feature", Dtype::U8, &[3], vec![2, 0, 0]);
    assert_eq!(
        parts.refused(),
        "tree.feature[0]: found 2, expected an input below 2"
    );
    let many = MAX_NODES + 1;
    let mut parts = tree();
    parts.set("tree.feature", Dtype::U8, &[many], vec![0; many]);
    assert!(
        parts
            .refused()
            .starts_with("tensor `tree.threshold`: found shape [3]")
    );
}

#[test]
fn files_that_are_none_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let absent = directory.path().join("absent.safetensors");
    let message = ModelFile::read(&absent).unwrap_err().to_string();
    assert!(
        message.starts_with(&format!("cannot read {}: ", absent.display())),
        "{message}"
    );
    let large = directory.path().join("large.safetensors");
    std::fs::write(&large, vec![0; (4 << 20) + 1]).unwrap();
    let message = ModelFile::read(&large).unwrap_err().to_string();
    assert!(
        message.ends_with("expected at most that") && message.contains("4194304 bytes"),
        "{message}"
    );
    let text = directory.path().join("text.safetensors");
    std::fs::write(&text, "name = 'policy'").unwrap();
    let message = ModelFile::read(&text).unwrap_err().to_string();
    assert!(
        message.contains("text.safetensors: header: found"),
        "{message}"
    );
}

/// Any bytes give a model or an error; a model runs.
fn try_it(bytes: &[u8]) {
    if let Ok(file) = ModelFile::parse(bytes, Path::new("m")) {
        let inputs = [0.5; 16];
        match &file.policy {
            Policy::Mlp { float, .. } => assert!(float.infer(&inputs).abs() <= 1.0),
            Policy::Lstm(lstm) => ignore(lstm.infer(&inputs, &mut LstmState::default())),
            Policy::Tree(_) => {}
        }
        if let Some(model) = file.policy.integer_model() {
            assert_ne!(model.decider().infer(&[-32767; 16]), i16::MIN);
        }
    }
}

fn valid() -> impl Strategy<Value = Vec<u8>> {
    let files = [mlp(), quantised(), tree(), lstm()].map(|parts| parts.bytes());
    prop::sample::select(files.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        try_it(&bytes);
    }

    #[test]
    fn random_headers_never_panic(text in "[{}\\[\\]\":,a-z0-9_ -]{0,200}") {
        let length = (text.len() as u64).to_le_bytes();
        try_it(&[&length[..], text.as_bytes(), &[0; 64]].concat());
    }

    #[test]
    fn spoilt_files_never_panic(
        mut bytes in valid(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        try_it(&bytes);
    }
}
