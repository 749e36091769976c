//! Golden vectors of the learned rate controller, made by `vectors/network.py` from the text of the
//! documentation. Every implementation must agree with them bit for bit.

mod privileged;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde::Deserialize;
use thalweg_rate::{
    Decider, Feature, FeatureKind, Features, Forest, Layer, MAX_INPUTS, Measurement, Model,
    Network, Node, Scale,
};
use thalweg_tests::LoadError;
use thalweg_tests::network::{CoreRunner, Runner, kernel, native};

/// The output of `network.py --all`. `network.json` has a part of it.
#[derive(Deserialize)]
struct Document {
    networks: Vec<NetworkRecord>,
    /// Network, inputs, action.
    vectors: Vec<(usize, Vec<i16>, i32)>,
    sequences: Vec<Sequence>,
    /// Rate, action, floor, cap, next rate.
    rates: Vec<(u64, i16, u64, u64, u64)>,
}

#[derive(Deserialize)]
struct NetworkRecord {
    name: String,
    features: Vec<(String, u32)>,
    history: usize,
    target_q24: u32,
    offset_q16: u32,
    #[serde(flatten)]
    decider: DeciderRecord,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum DeciderRecord {
    Mlp {
        input: ScaleRecord,
        layers: Vec<LayerRecord>,
    },
    Tree {
        /// Feature, threshold, left, right, value.
        nodes: Vec<(u8, i16, u16, u16, i32)>,
        roots: Vec<u16>,
    },
}

#[derive(Deserialize)]
struct ScaleRecord {
    multiplier: u32,
    shift: u32,
}

#[derive(Deserialize)]
struct LayerRecord {
    weights: Vec<Vec<i8>>,
    bias: Vec<i32>,
    multipliers: Vec<u32>,
    shift: u32,
}

#[derive(Deserialize)]
struct Sequence {
    network: usize,
    base_rtt_ns: u64,
    line_rate: u64,
    floor: u64,
    cap: u64,
    /// RTT, rate; inputs, action, next rate.
    steps: Vec<(u64, u64, Vec<i16>, i32, u64)>,
}

impl NetworkRecord {
    fn model(&self) -> Model {
        let list = self.features.iter().map(|(name, scale_q16)| Feature {
            kind: FeatureKind::from_name(name).unwrap_or_else(|| panic!("no feature {name}")),
            scale_q16: *scale_q16,
        });
        let features = Features::new(
            list.collect(),
            self.history,
            self.target_q24,
            self.offset_q16,
        );
        let features = features.unwrap_or_else(|fault| panic!("{}: {fault}", self.name));
        let decider = self.decider(features.input_count());
        decider
            .and_then(|decider| Model::new(features, decider))
            .unwrap_or_else(|fault| panic!("{}: {fault}", self.name))
    }

    fn decider(&self, inputs: usize) -> Result<Decider, thalweg_rate::Fault> {
        match &self.decider {
            DeciderRecord::Mlp { input, layers } => {
                let layers = layers.iter().map(|layer| {
                    let columns = layer.weights[0].len();
                    let weights = layer.weights.concat();
                    let LayerRecord {
                        bias, multipliers, ..
                    } = layer;
                    Layer::new("layer", columns, &weights, bias, multipliers, layer.shift)
                });
                let scale = Scale {
                    multiplier: input.multiplier,
                    shift: input.shift,
                };
                Network::new(scale, layers.collect::<Result<_, _>>()?).map(Decider::Network)
            }
            DeciderRecord::Tree { nodes, roots } => {
                let nodes = nodes
                    .iter()
                    .map(|&(input, threshold_q15, left, right, value_q15)| Node {
                        input,
                        threshold_q15,
                        left,
                        right,
                        value_q15,
                    });
                Forest::new(nodes.collect(), roots.clone(), inputs).map(Decider::Forest)
            }
        }
    }
}

fn vectors() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

fn generator(argument: &str) -> Output {
    Command::new("python3")
        .arg(vectors().join("network.py"))
        .arg(argument)
        .output()
        .expect("python3 runs")
}

/// The whole set, generated again, checked against the committed hash.
static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Committed {
        whole_fnv1a: String,
    }
    let output = generator("--all");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let committed = std::fs::read(vectors().join("network.json")).expect("network.json is there");
    let committed: Committed = serde_json::from_slice(&committed).expect("network.json has a hash");
    assert_eq!(
        fnv1a(&output.stdout),
        committed.whole_fnv1a,
        "the whole set is not the one that network.json names"
    );
    serde_json::from_slice(&output.stdout).expect("network.py prints what this test reads")
});

fn fnv1a(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn run(runner: &mut dyn Runner) {
    let name = runner.name();
    let document = &*DOCUMENT;
    let models: Vec<Model> = document.networks.iter().map(NetworkRecord::model).collect();
    // Network by network, so that each is loaded once.
    for (which, model) in models.iter().enumerate() {
        runner.begin(model).unwrap_or_else(|why| panic!("{why}"));
        for (number, (_, inputs, action)) in document
            .vectors
            .iter()
            .enumerate()
            .filter(|(_, vector)| vector.0 == which)
        {
            let place = format!("{name}: vector {number}, network {which}, {inputs:?}");
            let found = runner
                .infer(inputs)
                .unwrap_or_else(|why| panic!("{place}: {why}"));
            assert_eq!(found, *action, "{place}");
        }
    }
    let mut steps = 0;
    for (number, sequence) in document.sequences.iter().enumerate() {
        runner
            .begin(&models[sequence.network])
            .unwrap_or_else(|why| panic!("{why}"));
        for (at, (rtt_ns, rate, inputs, action, next_rate)) in sequence.steps.iter().enumerate() {
            let place = format!("{name}: sequence {number}, step {at}");
            let measurement = Measurement {
                rtt_ns: *rtt_ns,
                base_rtt_ns: sequence.base_rtt_ns,
                rate: *rate,
                line_rate: sequence.line_rate,
            };
            let step = runner
                .step(measurement, sequence.floor, sequence.cap)
                .unwrap_or_else(|why| panic!("{place}: {why}"));
            let mut expected = [0; MAX_INPUTS];
            expected[..inputs.len()].copy_from_slice(inputs);
            assert_eq!(step.inputs, expected, "{place}: inputs");
            assert_eq!(step.action_q15, *action, "{place}: action");
            assert_eq!(step.next_rate, *next_rate, "{place}: next rate");
            steps += 1;
        }
    }
    for (rate, action, floor, cap, next) in &document.rates {
        let found = runner
            .next_rate(*rate, *action, *floor, *cap)
            .unwrap_or_else(|why| panic!("{name}: {why}"));
        let place = format!("{name}: rate {rate}, action {action}, {floor} to {cap}");
        assert_eq!(found, *next, "{place}");
    }
    // The set is complete, and the loops ran.
    assert!(document.vectors.len() >= 10_000 && document.sequences.len() >= 100 && steps >= 5_000);
    eprintln!(
        "{name}: {} vectors of {} networks and {steps} steps of {} flows agree",
        document.vectors.len(),
        models.len(),
        document.sequences.len()
    );
}

#[test]
fn the_committed_sample_is_that_of_the_generator() {
    let output = generator("--check");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn core_agrees() {
    run(&mut CoreRunner::default());
}

#[test]
fn native_c_agrees() {
    run(&mut native());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn bpf_agrees() {
    match kernel() {
        Ok(mut runner) => run(&mut runner),
        Err(LoadError::Refused(why)) => panic!("{why}"),
        Err(LoadError::Privilege(why)) => {
            privileged::skip(&why);
        }
    }
}
