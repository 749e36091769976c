//! Models of the learned rate controller, as the kernel reads them.

use thalweg_rate::{
    Decider, FeatureKind, Forest, Layer, MAX_DEPTH, MAX_INPUTS, MAX_LAYERS, MAX_NODES, MAX_TREES,
    MAX_WIDTH, Model, Network,
};

use crate::raw;

// The limits of `thalweg-rate` are those of the header's arrays.
const _: () = {
    assert!(MAX_INPUTS == raw::THALWEG_MODEL_INPUTS as usize);
    assert!(MAX_WIDTH == raw::THALWEG_MODEL_WIDTH as usize);
    assert!(MAX_LAYERS == raw::THALWEG_MODEL_LAYERS as usize);
    assert!(MAX_NODES == raw::THALWEG_MODEL_NODES as usize);
    assert!(MAX_TREES == raw::THALWEG_MODEL_TREES as usize);
    assert!(MAX_DEPTH == raw::THALWEG_MODEL_DEPTH as usize);
};

/// A model as the kernel stores it; on the heap, because it has 38 kilobytes.
pub fn model_to_raw(model: &Model) -> Box<raw::thalweg_model> {
    let features = model.features();
    let mut stored = Box::new(raw::thalweg_model {
        features: features.feature_list().len() as u32,
        history: features.history_length() as u32,
        target_q24: features.target_q24(),
        offset_q16: features.offset_q16(),
        ..Default::default()
    });
    for (slot, feature) in stored.feature.iter_mut().zip(features.feature_list()) {
        slot.kind = match feature.kind {
            FeatureKind::Action => raw::THALWEG_FEATURE_ACTION,
            FeatureKind::Error => raw::THALWEG_FEATURE_ERROR,
            FeatureKind::LogRate => raw::THALWEG_FEATURE_LOG_RATE,
            FeatureKind::Queue => raw::THALWEG_FEATURE_QUEUE,
            FeatureKind::ErrorChange => raw::THALWEG_FEATURE_ERROR_CHANGE,
        };
        slot.scale_q16 = feature.scale_q16;
    }
    match model.decider() {
        Decider::Network(network) => store_network(network, &mut stored),
        Decider::Forest(forest) => store_forest(forest, &mut stored),
    }
    stored
}

fn store_network(network: &Network, stored: &mut raw::thalweg_model) {
    stored.input_multiplier = network.input_scale().multiplier;
    stored.input_shift = network.input_scale().shift;
    stored.layers = network.layers().len() as u32;
    let last = network.layers().len() - 1;
    for (number, layer) in network.layers().iter().enumerate() {
        let (low, high) = if number == last {
            (-32767, 32767)
        } else {
            (0, 127)
        };
        store_layer(layer, low, high, &mut stored.layer[number]);
    }
}

fn store_layer(layer: &Layer, low: i32, high: i32, slot: &mut raw::thalweg_model_layer) {
    slot.rows = layer.row_count() as u32;
    slot.columns = layer.column_count() as u32;
    slot.shift = layer.shift();
    (slot.low, slot.high) = (low, high);
    slot.bias[..layer.row_count()].copy_from_slice(layer.bias());
    slot.multiplier[..layer.row_count()].copy_from_slice(layer.multipliers());
    for row in 0..layer.row_count() {
        for column in 0..layer.column_count() {
            // The first of a pair of rows is in the lower half, the second in the upper. A negative
            // first one borrows from the second, as sums do.
            let weight = i64::from(layer.weight(row, column));
            slot.weights[row / 2][column] += if row % 2 == 0 { weight } else { weight << 32 };
        }
    }
}

fn store_forest(forest: &Forest, stored: &mut raw::thalweg_model) {
    stored.trees = forest.roots().len() as u32;
    stored.root[..forest.roots().len()].copy_from_slice(forest.roots());
    for (slot, node) in stored.node.iter_mut().zip(forest.nodes()) {
        *slot = raw::thalweg_model_node {
            value_q15: node.value_q15,
            threshold_q15: node.threshold_q15,
            left: node.left,
            right: node.right,
            input: node.input,
            reserved: 0,
        };
    }
}
