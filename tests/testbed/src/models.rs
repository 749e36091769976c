//! Model files for tests, written by hand (docs/reference/model.md).

use serde_json::{Map, Value, json};

/// Decisions of a tree.
pub enum Tree {
    /// The same for every input, Q15.
    Always(i32),
    /// Faster below the target, slower above.
    ByError,
}

/// A safetensors file: a document, and tensors with type and shape.
fn file(document: &Value, tensors: &[(String, &str, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let mut header = Map::new();
    let metadata = json!({ "format_version": "1", "thalweg": document.to_string() });
    header.insert("__metadata__".into(), metadata);
    let mut data = Vec::new();
    for (name, kind, shape, bytes) in tensors {
        let begin = data.len();
        data.extend(bytes);
        let entry = json!({ "dtype": kind, "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert(name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string();
    // Data starts at a multiple of 8.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), &data].concat()
}

fn document(kind: &str) -> Value {
    json!({
        "name": "test", "kind": kind, "history": 2, "target": 0.1, "offset": 1.0,
        "features": [{"name": "action"}, {"name": "error", "scale": 2.0}],
        "training": {"scenarios": [], "seed": 0, "commit": "none",
                     "base_rtt_ns": 1_000_000, "line_rate_bps": 10_000_000_000u64},
    })
}

/// Input, threshold, left, right, value.
type Node = (u8, i16, u16, u16, i32);

/// One tree over the last two actions and errors.
pub fn tree(says: &Tree) -> Vec<u8> {
    // Input 3 is the newest error.
    let nodes: Vec<Node> = match says {
        Tree::Always(value) => vec![(0, 0, 0, 0, *value)],
        Tree::ByError => vec![(3, 0, 1, 2, 0), (0, 0, 1, 1, -12_000), (0, 0, 2, 2, 9_000)],
    };
    let count = vec![nodes.len()];
    let bytes = |of: &dyn Fn(&Node) -> Vec<u8>| nodes.iter().flat_map(of).collect::<Vec<u8>>();
    let tensor = |name: &str, kind, bytes| (format!("tree.{name}"), kind, count.clone(), bytes);
    file(
        &document("tree"),
        &[
            tensor("feature", "U8", bytes(&|node| vec![node.0])),
            tensor("left", "U16", bytes(&|node| node.2.to_le_bytes().into())),
            tensor("right", "U16", bytes(&|node| node.3.to_le_bytes().into())),
            ("tree.root".into(), "U16", vec![1], vec![0, 0]),
            tensor(
                "threshold",
                "I16",
                bytes(&|node| node.1.to_le_bytes().into()),
            ),
            tensor("value", "I32", bytes(&|node| node.4.to_le_bytes().into())),
        ],
    )
}

/// A quantised 4-12-12-1 network with weights by layer, row and column, -1 to 1.
pub fn network(weight: &dyn Fn(usize, usize, usize) -> f32) -> Vec<u8> {
    const SHAPES: [(usize, usize); 3] = [(12, 4), (12, 12), (1, 12)];
    // Inputs of each layer are at most as large as the weights allow.
    const AMAX: [f64; 3] = [1.0, 4.0, 48.0];
    let mut document = document("mlp");
    document["hidden"] = json!([12, 12]);
    document["activation_amax"] = json!(AMAX);
    let mut tensors = Vec::new();
    let mut tensor = |name: String, kind, shape: Vec<usize>, bytes: Vec<u8>| {
        tensors.push((name, kind, shape, bytes));
    };
    let floats = |values: &[f32]| {
        values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let integers = |values: &[i32]| {
        values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let (multipliers, shift) = multipliers(&[127.0 / (32768.0 * AMAX[0])]);
    tensor(
        "input.multiplier".into(),
        "I32",
        vec![1],
        integers(&multipliers),
    );
    tensor("input.shift".into(), "I32", vec![1], integers(&[shift]));
    for (layer, (rows, columns)) in SHAPES.into_iter().enumerate() {
        let step_in = AMAX[layer] / 127.0;
        let step_out = AMAX
            .get(layer + 1)
            .map_or(1.0 / 4096.0, |amax| amax / 127.0);
        let weights: Vec<Vec<f32>> = (0..rows)
            .map(|row| {
                (0..columns)
                    .map(|column| weight(layer, row, column))
                    .collect()
            })
            .collect();
        let scales: Vec<f32> = weights
            .iter()
            .map(|row| row.iter().fold(0f32, |most, v| most.max(v.abs())) / 127.0)
            .collect();
        let quantised: Vec<u8> = weights
            .iter()
            .zip(&scales)
            .flat_map(|(row, scale)| {
                row.iter()
                    .map(|v| {
                        (f64::from(*v) / f64::from(*scale))
                            .round()
                            .clamp(-127.0, 127.0) as i8 as u8
                    })
                    .collect::<Vec<u8>>()
            })
            .collect();
        let factors: Vec<f64> = scales
            .iter()
            .map(|scale| f64::from(*scale) * step_in / step_out)
            .collect();
        let (multipliers, shift) = self::multipliers(&factors);
        let name = |part: &str| format!("layers.{layer}.{part}");
        tensor(
            name("weight"),
            "F32",
            vec![rows, columns],
            floats(&weights.concat()),
        );
        tensor(name("weight_q"), "I8", vec![rows, columns], quantised);
        tensor(name("bias_q"), "I32", vec![rows], integers(&vec![0; rows]));
        tensor(name("scale"), "F32", vec![rows], floats(&scales));
        tensor(
            name("multiplier"),
            "I32",
            vec![rows],
            integers(&multipliers),
        );
        tensor(name("shift"), "I32", vec![1], integers(&[shift]));
    }
    file(&document, &tensors)
}

/// Factors as integers with one shift: the largest just below 2^31.
fn multipliers(factors: &[f64]) -> (Vec<i32>, i32) {
    let largest = factors.iter().fold(0f64, |most, factor| most.max(*factor));
    let shift = (30.0 - largest.log2().floor()) as i32;
    let whole = |factor: &f64| {
        (factor * f64::from(shift).exp2())
            .round()
            .min(2_147_483_647.0) as i32
    };
    (factors.iter().map(whole).collect(), shift)
}
