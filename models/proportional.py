#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes proportional.safetensors: a rule written by hand, as a network. Nothing is trained.

The rule holds the signal at its target (docs/reference/model.md), as ADPG does:

    u = tanh(GAIN * error + DAMP * (error - previous error))

The first term drives the rate to where the signal is at the target, the second keeps it from
swinging, because a queue answers a rate one round trip later. A hidden unit passes positive
numbers only, so each term that can have either sign takes two; the second layer passes all on.

    PYTHONPATH=python python3 models/proportional.py models/proportional.safetensors
"""

import sys

import numpy as np
from thalweg import model, quantize

TARGET, OFFSET = 0.1, 1.0
# Of the error before it is limited to +-1: five targets either way are told apart.
SCALE = 0.2 / TARGET
GAIN, DAMP = 2.5, 2.5
HISTORY = 2


def network() -> model.Mlp:
    """The rule as a 4-12-12-1 network; inputs: action and error before, action and error."""
    first = np.zeros((12, 4), np.float32)
    second = np.zeros((12, 12), np.float32)
    last = np.zeros((1, 12), np.float32)
    # error, -error, change, -change, each by three units: a third of its row's steps each.
    rows = ([0, 0, 0, 1], [0, 0, 0, -1], [0, -1, 0, 1], [0, 1, 0, -1])
    factors = (GAIN, -GAIN, DAMP, -DAMP)
    for unit in range(12):
        first[unit] = rows[unit // 3]
        second[unit, unit] = 1
        last[0, unit] = factors[unit // 3] / 3
    return model.Mlp([model.Layer(first), model.Layer(second), model.Layer(last)])


def main(path: str) -> None:
    """Writes the model to `path`."""
    mlp = network()
    # Errors reach from that of an empty queue down to the limit; actions do not count.
    error = np.linspace(-1, SCALE * TARGET, 301)
    before, now = (grid.ravel() for grid in np.meshgrid(error, error))
    inputs = np.stack([np.zeros_like(now), before, np.zeros_like(now), now], axis=1)
    mlp.quantised = quantize.quantise(mlp, quantize.calibrate(mlp, inputs.astype(np.float32)))
    model.write(
        model.Model(
            name="proportional",
            features=[model.Feature("action"), model.Feature("error", SCALE)],
            history=HISTORY,
            target=TARGET,
            offset=OFFSET,
            training=model.Training(
                scenarios=[],
                seed=0,
                commit="written by hand",
                base_rtt_ns=1_000_000,
                line_rate_bps=10_000_000_000,
            ),
            policy=mlp,
        ),
        path,
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: proportional.py FILE")
    main(sys.argv[1])
