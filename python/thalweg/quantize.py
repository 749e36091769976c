# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Quantisation of an MLP to 8 bits: symmetric, a scale per row of weights, one per activation.

The method is that of Wu et al. 2020, "Integer quantization for deep learning inference"
(sections 3 and 4): `q = clamp(round(v * 127 / amax), -127, 127)`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from thalweg.model import Layer, Mlp, ModelError, Quantised, QuantisedLayer

SHIFTS = range(8, 57)
MAX_BIAS = 1 << 24


def infer_float(mlp: Mlp, inputs: NDArray[np.floating]) -> NDArray[np.float64]:
    """Actions [n] of the network in floating point, for inputs [n, inputs]."""
    return np.tanh(_forward(mlp, inputs)[-1][:, 0])


def calibrate(mlp: Mlp, inputs: NDArray[np.floating], percentile: float = 100.0) -> list[float]:
    """The largest magnitude that enters each layer, for sample inputs [n, inputs].

    `percentile` below 100 leaves the rest of the sample out of the range: values beyond are cut
    off, values within become finer.
    """
    if not 50.0 < percentile <= 100.0:
        raise ModelError(f"percentile: found {percentile}, expected above 50, 100 at most")
    if inputs.ndim != 2 or len(inputs) == 0:
        raise ModelError(f"inputs: found shape {inputs.shape}, expected some rows of inputs")
    entering = [inputs.astype(np.float64), *_forward(mlp, inputs)[:-1]]
    amax = [float(np.percentile(np.abs(values), percentile)) for values in entering]
    # A value that is always 0 needs a range, too.
    return [value if value > 1e-6 else 1.0 for value in amax]


def quantise(mlp: Mlp, activation_amax: list[float]) -> Quantised:
    """The network in integers, for activations within these ranges (see `calibrate`)."""
    if len(activation_amax) != len(mlp.layers):
        raise ModelError(
            f"activation_amax: found {len(activation_amax)}, expected {len(mlp.layers)} numbers"
        )
    steps_in = [amax / 127 for amax in activation_amax]
    # The last layer's sums come out in Q12, for tanh.
    steps_out = [*steps_in[1:], 1 / 4096]
    multipliers, shift = _multipliers("input", np.array([127 / (activation_amax[0] * 32768)]))
    layers = [
        _quantise_layer(f"layers.{number}", layer, step_in, step_out)
        for number, (layer, step_in, step_out) in enumerate(
            zip(mlp.layers, steps_in, steps_out, strict=True)
        )
    ]
    return Quantised(list(activation_amax), int(multipliers[0]), shift, layers)


def _quantise_layer(name: str, layer: Layer, step_in: float, step_out: float) -> QuantisedLayer:
    weight = layer.weight.astype(np.float64)
    bias = np.zeros(len(weight)) if layer.bias is None else layer.bias.astype(np.float64)
    amax = np.abs(weight).max(axis=1)
    # A row of tiny weights must still carry its bias.
    least = 1e-3 * amax.max() if amax.max() > 0 else 1e-3
    scale = (np.maximum(amax, least) / 127).astype(np.float32)
    step = scale.astype(np.float64)
    weight_q = np.clip(np.rint(weight / step[:, None]), -127, 127).astype(np.int8)
    bias_q = np.rint(bias / (step * step_in))
    if np.abs(bias_q).max() > MAX_BIAS:
        raise ModelError(f"{name}.bias: too large for the weights: {bias}")
    multiplier, shift = _multipliers(name, step * step_in / step_out)
    return QuantisedLayer(weight_q, bias_q.astype(np.int32), scale, multiplier, shift)


def _multipliers(name: str, factors: NDArray[np.float64]) -> tuple[NDArray[np.int32], int]:
    """Factors as integers over one power of two, the largest just below 2**31."""
    shift = 31 - math.frexp(float(factors.max()))[1]
    if math.floor(float(factors.max()) * 2.0**shift + 0.5) >= 1 << 31:
        shift -= 1
    if shift not in SHIFTS:
        raise ModelError(f"{name}: a factor of {factors.max()}, which no shift of 8 to 56 brings")
    return np.floor(factors * 2.0**shift + 0.5).astype(np.int32), shift


def _forward(mlp: Mlp, inputs: NDArray[np.floating]) -> list[NDArray[np.float64]]:
    """Outputs of each layer [n, rows], the last without tanh."""
    outputs: list[NDArray[np.float64]] = []
    values = inputs.astype(np.float64)
    for layer in mlp.layers:
        weight = layer.weight.astype(np.float64)
        # Term by term: with `@` the order of sums depends on the processor.
        terms = (values[:, i, None] * weight[:, i] for i in range(weight.shape[1]))
        values = sum(terms, np.zeros(weight.shape[0]))
        if layer.bias is not None:
            values = values + layer.bias
        outputs.append(values)
        values = np.maximum(values, 0.0)
    return [np.maximum(values, 0.0) for values in outputs[:-1]] + outputs[-1:]
