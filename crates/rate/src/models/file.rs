//! A whole model file.

use std::path::Path;

use safetensors::SafeTensors;

use super::document::{Document, Kind};
use super::error::Error;
use super::lstm::{LSTM_WIDTH, Lstm};
use super::network::{FloatLayer, Network};
use super::quantised;
use super::tensors::Tensors;
use crate::{Decider, Fault, Features, Forest, Model, Node};

/// The supported version of the format: the metadata key `format_version`.
pub const FORMAT_VERSION: &str = "1";

/// Largest size of a model file.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// Content of a model file, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFile {
    /// Metadata of the model.
    pub document: Document,
    /// Inputs of the model, in integers. In floating point they are the same, divided by 32768.
    pub features: Features,
    /// Network or trees of the model.
    pub policy: Policy,
}

/// Network or trees, in all forms that the file has.
#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// An MLP in floating point, and in integers if it was quantised.
    Mlp {
        /// In floating point.
        float: Network,
        /// In integers.
        integer: Option<Model>,
    },
    /// A recurrent network; in floating point only.
    Lstm(Box<Lstm>),
    /// Trees; in integers only.
    Tree(Model),
}

impl Policy {
    /// The part that runs in integers, and so in the kernel; `None` if there is none.
    pub fn integer_model(&self) -> Option<&Model> {
        match self {
            Self::Mlp { integer, .. } => integer.as_ref(),
            Self::Lstm(_) => None,
            Self::Tree(model) => Some(model),
        }
    }
}

impl ModelFile {
    /// Reads a file.
    pub fn read(file: &Path) -> Result<Self, Error> {
        Self::parse(
            &thalweg_units::file::read_bytes(file, MAX_FILE_BYTES)?,
            file,
        )
    }

    /// The model of a file's bytes; `file` is for messages.
    pub fn parse(bytes: &[u8], file: &Path) -> Result<Self, Error> {
        parse_bytes(bytes).map_err(|fault| Error::Fault {
            file: file.to_owned(),
            fault,
        })
    }
}

fn parse_bytes(bytes: &[u8]) -> Result<ModelFile, Fault> {
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let expected = format!("{MAX_FILE_BYTES} bytes at most");
        return Err(Fault::new("size of the file", "more", expected));
    }
    let broken = |error: safetensors::SafeTensorError| {
        let found: String = error.to_string().chars().take(200).collect();
        Fault::new("header", found, "a safetensors file")
    };
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(broken)?;
    let metadata = header.metadata().as_ref();
    let entry = |key: &str| metadata.and_then(|metadata| metadata.get(key));
    match entry("format_version").map(String::as_str) {
        Some(FORMAT_VERSION) => {}
        found => {
            let found = found.map_or("none".into(), |found| {
                format!("{:?}", found.chars().take(20).collect::<String>())
            });
            let expected = format!("{FORMAT_VERSION:?}, for which this version was built");
            return Err(Fault::new("metadata `format_version`", found, expected));
        }
    }
    let text = entry("thalweg")
        .ok_or_else(|| Fault::new("metadata `thalweg`", "none", "a document in JSON"))?;
    let document = Document::parse(text)?;
    let features = document.integer_features()?;
    let file = SafeTensors::deserialize(bytes).map_err(broken)?;
    let mut tensors = Tensors::new(&file);
    let policy = match document.kind {
        Kind::Mlp => take_mlp(&mut tensors, &document, &features)?,
        Kind::Lstm => Policy::Lstm(Box::new(take_lstm(&mut tensors, features.input_count())?)),
        Kind::Tree => {
            let forest = take_forest(&mut tensors, features.input_count())?;
            Policy::Tree(Model::new(features.clone(), Decider::Forest(forest))?)
        }
    };
    tensors.refuse_rest()?;
    Ok(ModelFile {
        document,
        features,
        policy,
    })
}

fn take_mlp(
    tensors: &mut Tensors<'_>,
    document: &Document,
    features: &Features,
) -> Result<Policy, Fault> {
    let mut layers = Vec::new();
    let mut columns = features.input_count();
    for (number, rows) in document.hidden.iter().copied().chain([1]).enumerate() {
        layers.push(take_layer(
            tensors,
            &format!("layers.{number}"),
            rows,
            columns,
        )?);
        columns = rows;
    }
    let float = Network::new(layers)?;
    let integer = match &document.activation_amax {
        None => None,
        Some(amax) => {
            let network = quantised::take_network(tensors, document, &float, amax)?;
            Some(Model::new(features.clone(), Decider::Network(network))?)
        }
    };
    Ok(Policy::Mlp { float, integer })
}

/// A layer whose bias may be absent.
fn take_layer(
    tensors: &mut Tensors<'_>,
    name: &str,
    rows: usize,
    columns: usize,
) -> Result<FloatLayer, Fault> {
    let weights = tensors.take_floats(&format!("{name}.weight"), &[rows, columns])?;
    let bias = format!("{name}.bias");
    let bias = if tensors.has_tensor(&bias) {
        tensors.take_floats(&bias, &[rows])?
    } else {
        vec![0.0; rows]
    };
    FloatLayer::new(name, columns, &weights, &bias)
}

/// The gates are stacked in the order of training libraries: input, forget, candidate, output.
fn take_lstm(tensors: &mut Tensors<'_>, inputs: usize) -> Result<Lstm, Fault> {
    let width = LSTM_WIDTH;
    let entry = take_layer(tensors, "fc", width, inputs)?;
    let from_input = tensors.take_floats("lstm.weight_input", &[4 * width, width])?;
    let from_hidden = tensors.take_floats("lstm.weight_hidden", &[4 * width, width])?;
    let bias = tensors.take_floats("lstm.bias", &[4 * width])?;
    let gate = |number: usize| {
        let rows = number * width..(number + 1) * width;
        let weights: Vec<f32> = rows
            .clone()
            .flat_map(|row| {
                let columns = row * width..(row + 1) * width;
                [&from_input[columns.clone()], &from_hidden[columns]].concat()
            })
            .collect();
        FloatLayer::new("lstm", 2 * width, &weights, &bias[rows])
    };
    let gates = [gate(0)?, gate(1)?, gate(2)?, gate(3)?];
    Lstm::new(entry, gates, take_layer(tensors, "output", 1, width)?)
}

fn take_forest(tensors: &mut Tensors<'_>, inputs: usize) -> Result<Forest, Fault> {
    let of_nodes = tensors.take_list::<u8>("tree.feature")?;
    let shape = [of_nodes.len()];
    let thresholds = tensors.take_tensor::<i16>("tree.threshold", &shape)?;
    let left = tensors.take_tensor::<u16>("tree.left", &shape)?;
    let right = tensors.take_tensor::<u16>("tree.right", &shape)?;
    let values = tensors.take_tensor::<i32>("tree.value", &shape)?;
    let roots = tensors.take_list::<u16>("tree.root")?;
    let nodes = of_nodes.iter().enumerate().map(|(at, input)| Node {
        input: *input,
        threshold_q15: thresholds[at],
        left: left[at],
        right: right[at],
        value_q15: values[at],
    });
    Forest::new(nodes.collect(), roots, inputs)
}
