//! The integer part of an MLP's file, checked against the floating-point part.

use super::document::Document;
use super::network::{FloatLayer, Network};
use super::tensors::Tensors;
use crate::{Fault, Layer, Scale};

/// Tolerated difference of factors, relative to the largest of their layer: the precision of 32-bit
/// floats.
const TOLERANCE: f64 = 1e-6;
/// One, in the fixed point of tanh's input.
const TANH_INPUT_ONE: f64 = 4096.0;

/// Reads the integer network, whose numbers are known to be finite, and compares it with the
/// floating-point one. Weights must agree to half a step, unless calibration clipped them. Factors
/// must be quotients of scales.
pub fn take_network(
    tensors: &mut Tensors<'_>,
    document: &Document,
    network: &Network,
    amax: &[f64],
) -> Result<crate::Network, Fault> {
    let input = Scale {
        multiplier: require_unsigned(
            tensors.take_one::<i32>("input.multiplier")?,
            "input.multiplier",
        )?,
        shift: require_unsigned(tensors.take_one::<i32>("input.shift")?, "input.shift")?,
    };
    let mut layers = Vec::new();
    for (number, float) in network.layers().iter().enumerate() {
        // Outputs are in steps of the next layer's activations, or of tanh's input.
        let step_out = match amax.get(number + 1) {
            Some(amax) => amax / 127.0,
            None => 1.0 / TANH_INPUT_ONE,
        };
        let name = format!("layers.{number}");
        let steps = (amax[number] / 127.0, step_out);
        layers.push(take_layer(tensors, &name, float, steps)?);
    }
    let integer = crate::Network::new(input, layers)?;
    let exact = 127.0 / (amax[0] * 32768.0);
    let found = scale_factor(input.multiplier, input.shift);
    if (found - exact).abs() > TOLERANCE * exact {
        let expected = format!("{exact:e}, by activation_amax[0] of {}", document.name);
        return Err(Fault::new(
            "input.multiplier",
            format!("{found:e}"),
            expected,
        ));
    }
    Ok(integer)
}

fn take_layer(
    tensors: &mut Tensors<'_>,
    name: &str,
    float: &FloatLayer,
    (step_in, step_out): (f64, f64),
) -> Result<Layer, Fault> {
    let (rows, columns) = (float.row_count(), float.column_count());
    let weights = tensors.take_tensor::<i8>(&format!("{name}.weight_q"), &[rows, columns])?;
    let bias = tensors.take_tensor::<i32>(&format!("{name}.bias_q"), &[rows])?;
    let scales = tensors.take_floats(&format!("{name}.scale"), &[rows])?;
    let field = format!("{name}.multiplier");
    let multipliers = tensors.take_tensor::<i32>(&field, &[rows])?;
    let multipliers: Result<Vec<u32>, _> = multipliers
        .into_iter()
        .map(|value| require_unsigned(value, &field))
        .collect();
    let field = format!("{name}.shift");
    let shift = require_unsigned(tensors.take_one::<i32>(&field)?, &field)?;
    let layer = Layer::new(name, columns, &weights, &bias, &multipliers?, shift)?;

    let largest = scales
        .iter()
        .fold(0.0, |most: f64, scale| most.max((*scale).into()));
    for (row, scale) in scales.iter().enumerate() {
        let scale = f64::from(*scale);
        if scale < 0.0 {
            return Err(Fault::new(
                format!("{name}.scale[{row}]"),
                scale,
                "0 or more",
            ));
        }
        for column in 0..columns {
            let (quantised, weight) = (layer.weight(row, column), float.weight(row, column));
            let (steps, weight) = (f64::from(quantised), f64::from(weight));
            let cut_off = quantised.abs() == 127 && weight.abs() > 127.0 * scale;
            if !((steps * scale - weight).abs() <= scale * 0.5 * (1.0 + 1e-3) || cut_off)
                || steps * weight < 0.0
            {
                return Err(Fault::new(
                    format!("{name}.weight_q[{row}, {column}]"),
                    format!("{quantised} steps of {scale:e}"),
                    format!("what is nearest to {weight:e}"),
                ));
            }
        }
        let exact = f64::from(float.bias()[row]);
        let found = f64::from(layer.bias()[row]) * scale * step_in;
        if (found - exact).abs() > 0.5 * scale * step_in * (1.0 + 1e-3) + 1e-6 * exact.abs() {
            let field = format!("{name}.bias_q[{row}]");
            return Err(Fault::new(
                field,
                found,
                format!("what is nearest to {exact:e}"),
            ));
        }
        let exact = scale * step_in / step_out;
        let found = scale_factor(layer.multipliers()[row], shift);
        if (found - exact).abs() > TOLERANCE * largest * step_in / step_out {
            return Err(Fault::new(
                format!("{name}.multiplier[{row}]"),
                format!("{found:e}"),
                format!("{exact:e}, by the scales"),
            ));
        }
    }
    Ok(layer)
}

fn scale_factor(multiplier: u32, shift: u32) -> f64 {
    f64::from(multiplier) / (1u64 << shift) as f64
}

fn require_unsigned(value: i32, field: &str) -> Result<u32, Fault> {
    u32::try_from(value).map_err(|_| Fault::new(field, value, "0 or more"))
}
