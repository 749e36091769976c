#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The model file that Python writes and Rust reads in its tests, with the expected actions.

usage: PYTHONPATH=python python3 python/tests/sample.py   writes it
"""

import pathlib

import numpy as np
from thalweg import fixed, quantize
from thalweg.model import Feature, Layer, Mlp, Model, Training, write

PATH = (
    pathlib.Path(__file__).resolve().parents[2] / "crates/rate/tests/data/mlp-4-12-12-1.safetensors"
)


def numbers(count, factor):
    """Numbers of -1 to 1 in no particular order; the same under every version of numpy."""
    return ((np.arange(count) * factor) % 1009 - 504) / 504


def model():
    """A quantised MLP; its evaluation lists inputs (Q15), and the actions that follow."""
    layers = [
        Layer((numbers(48, 379).reshape(12, 4) * 0.9).astype(np.float32)),
        Layer(
            (numbers(144, 617).reshape(12, 12) * 0.6).astype(np.float32),
            (numbers(12, 211) * 0.1).astype(np.float32),
        ),
        Layer((numbers(12, 503).reshape(1, 12) * 0.8).astype(np.float32)),
    ]
    mlp = Mlp(layers)
    inputs = np.rint(numbers(400, 733).reshape(100, 4) * 32767).astype(np.int64)
    mlp.quantised = quantize.quantise(mlp, quantize.calibrate(mlp, inputs / 32768))
    actions_q15 = fixed.infer_mlp(mlp.quantised, inputs)
    actions = quantize.infer_float(mlp, inputs / 32768)
    return Model(
        name="sample",
        features=[Feature("action"), Feature("error", 4.0)],
        history=2,
        target=0.064,
        offset=1.0,
        training=Training(["none"], 0, "none", 12_000, 100_000_000_000),
        policy=mlp,
        evaluation={
            "inputs_q15": inputs.tolist(),
            "actions_q15": actions_q15.tolist(),
            "actions": [round(float(action), 9) for action in actions],
        },
    )


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    write(model(), PATH)
