# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A small model for tests: the proportional rule as a network, without training."""

import numpy as np
from thalweg import quantize
from thalweg.model import Feature, Layer, Mlp, Model, Training, write


def model(gain=0.8, target=0.05, error_scale=10.0):
    """4-12-12-1: the action is tanh(gain * error), the error being limited to one. Errors of each
    sign have a unit of their own in each hidden layer; the others do nothing."""
    first, second = np.zeros((12, 4), np.float32), np.zeros((12, 12), np.float32)
    last = np.zeros((1, 12), np.float32)
    # Inputs: older action and error, newer action and error.
    first[0, 3], first[1, 3] = 1, -1
    second[0, 0], second[1, 1] = 1, 1
    last[0, 0], last[0, 1] = gain, -gain
    mlp = Mlp([Layer(first), Layer(second), Layer(last)])
    # The whole range of an input.
    inputs = np.linspace(-1, 1, 401)[:, None] * np.ones(4)
    mlp.quantised = quantize.quantise(mlp, quantize.calibrate(mlp, inputs))
    return Model(
        name="stand-in",
        features=[Feature("action"), Feature("error", error_scale)],
        history=2,
        target=target,
        offset=1.0,
        training=Training(["none"], 0, "none", 12_000, 100_000_000_000),
        policy=mlp,
    )


def file(directory, **options):
    """The same as a file."""
    path = directory / "stand-in.safetensors"
    write(model(**options), path)
    return path
