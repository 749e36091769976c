//! The recurrent variant: a fully connected layer, an LSTM, an output. Floating point only.

use super::network::FloatLayer;
use super::tanh::tanh;
use crate::{Fault, MAX_WIDTH};

/// Units of the fully connected layer and of the LSTM.
pub const LSTM_WIDTH: usize = 16;

/// A network with a memory: FC16 (ReLU), LSTM16, one output (tanh).
#[derive(Debug, Clone, PartialEq)]
pub struct Lstm {
    entry: FloatLayer,
    /// Input, forget, candidate and output gate. The columns of each are the inputs, then the last
    /// outputs.
    gates: [FloatLayer; 4],
    output: FloatLayer,
}

/// State of an [`Lstm`] for one flow; zero before its first decision.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LstmState {
    cell: [f32; LSTM_WIDTH],
    put_out: [f32; LSTM_WIDTH],
}

impl Lstm {
    /// A network from its layers. `entry` has 16 rows. Each of `gates` (input, forget, candidate,
    /// output) has 16 rows and 32 columns. `output` has one row and 16 columns.
    pub fn new(
        entry: FloatLayer,
        gates: [FloatLayer; 4],
        output: FloatLayer,
    ) -> Result<Self, Fault> {
        let shapes = [
            ("fc", &entry, LSTM_WIDTH, entry.column_count()),
            ("lstm", &gates[0], LSTM_WIDTH, 2 * LSTM_WIDTH),
            ("lstm", &gates[1], LSTM_WIDTH, 2 * LSTM_WIDTH),
            ("lstm", &gates[2], LSTM_WIDTH, 2 * LSTM_WIDTH),
            ("lstm", &gates[3], LSTM_WIDTH, 2 * LSTM_WIDTH),
            ("output", &output, 1, LSTM_WIDTH),
        ];
        for (name, layer, rows, columns) in shapes {
            if (layer.row_count(), layer.column_count()) != (rows, columns) {
                let found = format!("{} rows of {}", layer.row_count(), layer.column_count());
                return Err(Fault::new(name, found, format!("{rows} rows of {columns}")));
            }
        }
        Ok(Self {
            entry,
            gates,
            output,
        })
    }

    /// Number of the network's inputs.
    pub fn input_count(&self) -> usize {
        self.entry.column_count()
    }

    /// The action, -1 to 1, for features of -1 to 1. Allocates nothing.
    ///
    /// Panics on fewer inputs than [`Self::input_count`]; more are ignored.
    pub fn infer(&self, inputs: &[f32], state: &mut LstmState) -> f32 {
        let mut values = [0.0; MAX_WIDTH];
        let inputs = &inputs[..self.input_count()];
        values[..inputs.len()].copy_from_slice(inputs);
        let entered = self.entry.weighted_sums(&values).map(|sum| sum.max(0.0));
        let mut seen = [0.0; MAX_WIDTH];
        seen[..LSTM_WIDTH].copy_from_slice(&entered[..LSTM_WIDTH]);
        seen[LSTM_WIDTH..].copy_from_slice(&state.put_out);
        let [input, forget, candidate, output] =
            [0, 1, 2, 3].map(|gate: usize| self.gates[gate].weighted_sums(&seen));
        let mut last = [0.0; MAX_WIDTH];
        for unit in 0..LSTM_WIDTH {
            state.cell[unit] = sigmoid(forget[unit]) * state.cell[unit]
                + sigmoid(input[unit]) * tanh(candidate[unit]);
            state.put_out[unit] = sigmoid(output[unit]) * tanh(state.cell[unit]);
            last[unit] = state.put_out[unit];
        }
        tanh(self.output.only_sum(&last))
    }
}

fn sigmoid(x: f32) -> f32 {
    0.5 + 0.5 * tanh(0.5 * x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All weights are equal, so all units act as one, computed here by the textbook.
    #[test]
    fn it_remembers_by_the_book() {
        let layer = |rows: usize, columns: usize, weight: f32, bias: f32| {
            FloatLayer::new(
                "l",
                columns,
                &vec![weight; rows * columns],
                &vec![bias; rows],
            )
            .unwrap()
        };
        let gate = |weight, bias| layer(16, 32, weight, bias);
        let gates = [
            gate(0.1, 0.2),
            gate(0.02, 1.0),
            gate(0.05, -0.3),
            gate(0.03, 0.1),
        ];
        let lstm = Lstm::new(layer(16, 2, 0.5, 0.0), gates, layer(1, 16, 0.1, 0.0)).unwrap();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (mut cell, mut out, mut state) = (0.0f64, 0.0f64, LstmState::default());
        for (a, b) in [(0.5, 0.25), (-1.0, 0.5), (1.0, 1.0)] {
            let entered = f64::max(0.5 * (a + b), 0.0);
            let sum = |weight: f64, bias: f64| 16.0 * weight * (entered + out) + bias;
            cell = sigmoid(sum(0.02, 1.0)) * cell + sigmoid(sum(0.1, 0.2)) * sum(0.05, -0.3).tanh();
            out = sigmoid(sum(0.03, 0.1)) * cell.tanh();
            let found = lstm.infer(&[a as f32, b as f32], &mut state);
            assert!((f64::from(found) - (1.6 * out).tanh()).abs() < 1e-5);
        }
    }
}
