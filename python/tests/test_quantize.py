# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Quantisation: close to floating point; networks that cannot be quantised are refused."""

import itertools

import numpy as np
import pytest
from thalweg import fixed, quantize
from thalweg.model import Layer, Mlp, ModelError


def random_mlp(seed, sizes, bias=False, size=1.0):
    random = np.random.default_rng(seed)
    return Mlp(
        [
            Layer(
                (size * random.normal(0, columns**-0.5, (rows, columns))).astype(np.float32),
                random.normal(0, 0.2, rows).astype(np.float32) if bias else None,
            )
            for columns, rows in itertools.pairwise(sizes)
        ]
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [[4, 12, 12, 1], [8, 16, 16, 1], [16, 32, 32, 1], [4, 1]])
def test_integers_are_close_to_floating_point(sizes, bias):
    mlp = random_mlp(1, sizes, bias, size=1.5)
    random = np.random.default_rng(2)
    inputs = random.uniform(-1, 1, (4000, sizes[0]))
    quantised = quantize.quantise(mlp, quantize.calibrate(mlp, inputs))
    q15 = np.floor(inputs * 32767 + 0.5).astype(np.int64)
    found = fixed.infer_mlp(quantised, q15) / 32768
    error = np.abs(found - quantize.infer_float(mlp, q15 / 32768))
    # Three roundings to 127 steps: a few steps at worst, a fraction of one in the mean.
    assert error.max() < 0.06
    assert error.mean() < 0.012
    # The actions differ enough for that to mean something.
    assert found.std() > 0.1


def test_weights_are_the_nearest_steps():
    mlp = random_mlp(3, [4, 12, 1])
    for layer, part in zip(mlp.layers, quantize.quantise(mlp, [1.0, 2.0]).layers, strict=True):
        back = part.weight_q * part.scale.astype(np.float64)[:, None]
        assert np.all(np.abs(back - layer.weight) <= part.scale[:, None] * 0.5001)
        assert np.all(np.abs(part.weight_q).max(axis=1) == 127), "each row uses its whole range"


def test_factors_are_those_of_the_scales():
    mlp = random_mlp(4, [4, 12, 1])
    amax = [1.0, 3.5]
    quantised = quantize.quantise(mlp, amax)
    first = quantised.layers[0]
    found = first.multiplier / 2.0**first.shift
    expected = first.scale.astype(np.float64) * (amax[0] / 127) / (amax[1] / 127)
    assert np.allclose(found, expected, rtol=1e-8)
    assert first.multiplier.max() >= 1 << 30
    assert quantised.input_multiplier / 2**quantised.input_shift == pytest.approx(127 / 32768)


def test_calibration():
    mlp = random_mlp(5, [2, 3, 1])
    inputs = np.array([[0.5, -0.25], [0.1, 0.75]])
    amax = quantize.calibrate(mlp, inputs)
    hidden = np.maximum(inputs @ mlp.layers[0].weight.T.astype(np.float64), 0)
    assert amax == [0.75, pytest.approx(hidden.max())]
    many = np.concatenate([np.full((999, 2), 0.1), np.full((1, 2), 1.0)])
    assert quantize.calibrate(mlp, many, percentile=99.0)[0] == pytest.approx(0.1)


def test_what_never_moves_is_quantised_all_the_same():
    dead = Mlp([Layer(np.zeros((3, 2), np.float32)), Layer(np.ones((1, 3), np.float32))])
    quantised = quantize.quantise(dead, quantize.calibrate(dead, np.zeros((5, 2))))
    assert fixed.infer_mlp(quantised, np.array([[32767, -32767]])).tolist() == [0]


def test_refusals():
    mlp = random_mlp(6, [2, 3, 1])
    with pytest.raises(ModelError, match="activation_amax: found 1, expected 2"):
        quantize.quantise(mlp, [1.0])
    with pytest.raises(ModelError, match="percentile: found 101"):
        quantize.calibrate(mlp, np.ones((1, 2)), 101)
    with pytest.raises(ModelError, match="inputs: found shape"):
        quantize.calibrate(mlp, np.ones((0, 2)))
    tiny = Mlp([Layer(np.full((1, 2), 1e-6, np.float32), np.array([1e5], np.float32))])
    with pytest.raises(ModelError, match="layers.0.bias: too large"):
        quantize.quantise(tiny, [1.0])
