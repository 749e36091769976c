//! Multi-layer perceptrons in floating point.

use super::tanh::tanh;
use crate::{Fault, MAX_INPUTS, MAX_LAYERS, MAX_WIDTH};

/// A layer: weights by column, and a bias by row.
#[derive(Debug, Clone, PartialEq)]
pub struct FloatLayer {
    rows: usize,
    columns: usize,
    /// By column, then by row: all rows of one column are processed at once.
    weights: [[f32; MAX_WIDTH]; MAX_WIDTH],
    bias: [f32; MAX_WIDTH],
    /// The first row's weights: an output layer has only this row.
    first: [f32; MAX_WIDTH],
}

/// An MLP of `f32`: ReLU between layers, tanh at the end.
///
/// The same inputs give the same bits on every machine: sums go column by column.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    layers: Vec<FloatLayer>,
}

impl FloatLayer {
    /// A layer from weights row by row, one row per bias, all finite. `name` is for messages.
    pub fn new(name: &str, columns: usize, weights: &[f32], bias: &[f32]) -> Result<Self, Fault> {
        let rows = bias.len();
        for (what, found) in [("rows", rows), ("columns", columns)] {
            if !(1..=MAX_WIDTH).contains(&found) {
                let field = format!("{name}.{what}");
                return Err(Fault::new(field, found, format!("1 to {MAX_WIDTH}")));
            }
        }
        if weights.len() != rows * columns {
            let expected = format!("{rows} rows of {columns}");
            return Err(Fault::new(
                format!("{name}.weight"),
                weights.len(),
                expected,
            ));
        }
        if let Some(found) = weights
            .iter()
            .chain(bias)
            .find(|number| !number.is_finite())
        {
            return Err(Fault::new(name, found, "finite numbers"));
        }
        let mut layer = Self {
            rows,
            columns,
            weights: [[0.0; MAX_WIDTH]; MAX_WIDTH],
            bias: [0.0; MAX_WIDTH],
            first: [0.0; MAX_WIDTH],
        };
        for (row, weights) in weights.chunks_exact(columns).enumerate() {
            for (column, weight) in weights.iter().enumerate() {
                layer.weights[column][row] = *weight;
            }
        }
        layer.bias[..rows].copy_from_slice(bias);
        layer.first[..columns].copy_from_slice(&weights[..columns]);
        Ok(layer)
    }

    /// Outputs.
    pub fn row_count(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn column_count(&self) -> usize {
        self.columns
    }

    /// The weight of a column in a row.
    pub fn weight(&self, row: usize, column: usize) -> f32 {
        self.weights[column][row]
    }

    /// Biases, one per row.
    pub fn bias(&self) -> &[f32] {
        &self.bias[..self.rows]
    }

    /// The sums; 0 beyond the last row.
    pub(crate) fn weighted_sums(&self, inputs: &[f32; MAX_WIDTH]) -> [f32; MAX_WIDTH] {
        let mut outputs = [0.0; MAX_WIDTH];
        // The number of rows is known at compile time, so that sums stay in registers.
        match self.rows.div_ceil(4) {
            1 => outputs[..4].copy_from_slice(&self.sums_of::<4>(inputs)),
            2 => outputs[..8].copy_from_slice(&self.sums_of::<8>(inputs)),
            3 => outputs[..12].copy_from_slice(&self.sums_of::<12>(inputs)),
            4 => outputs[..16].copy_from_slice(&self.sums_of::<16>(inputs)),
            5 | 6 => outputs[..24].copy_from_slice(&self.sums_of::<24>(inputs)),
            _ => outputs = self.sums_of::<MAX_WIDTH>(inputs),
        }
        outputs
    }

    #[inline(always)]
    fn sums_of<const ROWS: usize>(&self, inputs: &[f32; MAX_WIDTH]) -> [f32; ROWS] {
        let mut sums: [f32; ROWS] = std::array::from_fn(|row| self.bias[row]);
        for (weights, input) in self.weights[..self.columns].iter().zip(inputs) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += weight * input;
            }
        }
        sums
    }

    /// A hidden layer, in place: the sums, limited to at least 0. Values beyond the last row do not
    /// matter, because the next layer has no columns there.
    #[inline]
    fn activate_hidden(&self, values: &mut [f32; MAX_WIDTH]) {
        match self.rows.div_ceil(4) {
            1 => self.hidden_of::<4>(values),
            2 => self.hidden_of::<8>(values),
            3 => self.hidden_of::<12>(values),
            4 => self.hidden_of::<16>(values),
            5 | 6 => self.hidden_of::<24>(values),
            _ => self.hidden_of::<MAX_WIDTH>(values),
        }
    }

    #[inline]
    fn hidden_of<const ROWS: usize>(&self, values: &mut [f32; MAX_WIDTH]) {
        let sums = self.sums_of::<ROWS>(values);
        for (value, sum) in values.iter_mut().zip(sums) {
            *value = if sum > 0.0 { sum } else { 0.0 };
        }
    }

    /// The first row's sum: an output layer has only this row.
    pub(crate) fn only_sum(&self, inputs: &[f32; MAX_WIDTH]) -> f32 {
        let products = self.first[..self.columns].iter().zip(inputs);
        products.fold(self.bias[0], |sum, (weight, input)| sum + weight * input)
    }
}

impl Network {
    /// A network of one to three layers. Each layer has as many rows as the next has columns; the
    /// last has one row.
    pub fn new(layers: Vec<FloatLayer>) -> Result<Self, Fault> {
        if !(1..=MAX_LAYERS).contains(&layers.len()) {
            let expected = format!("1 to {MAX_LAYERS}");
            return Err(Fault::new("layers", layers.len(), expected));
        }
        if layers[0].columns > MAX_INPUTS {
            let found = format!("{} columns", layers[0].columns);
            return Err(Fault::new("layers.0", found, format!("1 to {MAX_INPUTS}")));
        }
        let after = layers.iter().skip(1).map(|layer| layer.columns).chain([1]);
        for (number, (layer, expected)) in layers.iter().zip(after).enumerate() {
            if layer.rows != expected {
                let found = format!("{} rows", layer.rows);
                return Err(Fault::new(format!("layers.{number}"), found, expected));
            }
        }
        Ok(Self { layers })
    }

    /// Number of the network's inputs.
    pub fn input_count(&self) -> usize {
        self.layers[0].columns
    }

    /// The layers, the output last.
    pub fn layers(&self) -> &[FloatLayer] {
        &self.layers
    }

    /// The action, -1 to 1, for features of -1 to 1. Allocates nothing.
    ///
    /// Panics on fewer inputs than [`Self::input_count`]; more are ignored.
    pub fn infer(&self, inputs: &[f32]) -> f32 {
        self.forward_pass(inputs, |input| input)
    }

    /// As [`Self::infer`], for features in Q15.
    ///
    /// Panics on fewer inputs than [`Self::input_count`]; more are ignored.
    pub fn infer_q15(&self, inputs: &[i16]) -> f32 {
        self.forward_pass(inputs, |input| f32::from(input) / 32768.0)
    }

    #[inline(always)]
    fn forward_pass<T: Copy>(&self, inputs: &[T], float: impl Fn(T) -> f32) -> f32 {
        let mut values = [0.0; MAX_WIDTH];
        for (value, input) in values.iter_mut().zip(&inputs[..self.input_count()]) {
            *value = float(*input);
        }
        let (last, hidden) = self.layers.split_last().expect("a network has a layer");
        for layer in hidden {
            layer.activate_hidden(&mut values);
        }
        tanh(last.only_sum(&values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_network_by_hand() {
        let hidden = FloatLayer::new("h", 2, &[2.0, -3.0, -1.0, 0.5], &[0.5, 0.0]).unwrap();
        let output = FloatLayer::new("o", 2, &[-0.25, 9.0], &[0.125]).unwrap();
        let network = Network::new(vec![hidden, output]).unwrap();
        // Row 0: 1 + 0.75 + 0.5 = 2.25; row 1: -0.5 - 0.125, so 0. -0.5625 + 0.125 = -0.4375.
        let action = network.infer(&[0.5, -0.25]);
        assert!((f64::from(action) - (-0.4375f64).tanh()).abs() < 1e-6);
    }

    #[test]
    fn layers_must_fit() {
        let layer = |columns, rows: usize| {
            FloatLayer::new("l", columns, &vec![0.0; rows * columns], &vec![0.0; rows]).unwrap()
        };
        let refused = |layers| Network::new(layers).unwrap_err().to_string();
        assert_eq!(refused(vec![]), "layers: found 0, expected 1 to 3");
        let found = refused(vec![layer(4, 12), layer(11, 1)]);
        assert_eq!(found, "layers.0: found 12 rows, expected 11");
        assert_eq!(
            refused(vec![layer(4, 2)]),
            "layers.0: found 2 rows, expected 1"
        );
        assert!(refused(vec![layer(17, 1)]).contains("found 17 columns, expected 1 to 16"));
        let fault = FloatLayer::new("l", 1, &[f32::NAN], &[0.0]).unwrap_err();
        assert_eq!(fault.to_string(), "l: found NaN, expected finite numbers");
    }
}
