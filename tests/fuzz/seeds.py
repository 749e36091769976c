#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""seeds.py DIR: writes the golden vectors as inputs of the fuzzers, in DIR/learner and DIR/network.

The formats are those that learner.c and network.c read; a fuzzer starts from what the vectors
already reach instead of from nothing.
"""

import json
import sys
from pathlib import Path

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
KINDS = ["action", "error", "log_rate", "queue", "error_change"]
# A seed need not be longer than what one input may be.
LARGEST = 16384


def number(value: int, size: int) -> bytes:
    """A number, two's complement where negative, the lowest byte first."""
    return (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


def joined(*fields: tuple[int, int]) -> bytes:
    """Pairs of a value and its size in bytes."""
    return b"".join(number(value, size) for value, size in fields)


SAMPLE = [8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 1, 1, 4, 4]


def learner_step(step: dict) -> bytes:
    """One step in the life of a record."""
    if "windows" in step:
        decided = [(step["windows"], 2), (step["random"], 4), (step["now_ns"], 8)]
        sample = zip(step["sample"], SAMPLE, strict=True)
        return joined((5, 1), *decided, (step["scored_arm"], 1), (step["ended_ns"], 8), *sample)
    if step["op"] == "connect":
        randoms = [(draw, 4) for draw in step["random"]]
        return joined(
            (0, 1), (step["system_arm"], 1), (step["allowed"], 2), *randoms, (step["now_ns"], 8)
        )
    if step["op"] == "score":
        sample = zip(step["sample"], SAMPLE, strict=True)
        arms = [(step["arm"], 1), (step["system_arm"], 1)]
        return joined((1, 1), *arms, (step["trial"], 1), (step["now_ns"], 8), *sample)
    if step["op"] == "review":
        arms = [(step["current"], 1), (step["system_arm"], 1), (step["trial"], 1)]
        drawn = [(step["allowed"], 2), (step["random"], 4), (step["now_ns"], 8)]
        return joined((4, 1), *arms, (step["decided_ns"], 8), *drawn)
    assert step["op"] == "change", step
    flow = [(step["current"], 1), (step["system_arm"], 1), (step["segs"], 8), (step["retrans"], 8)]
    return joined((2, 1), *flow, (step["allowed"], 2), (step["random"], 4))


def learner_seed(sequence: dict) -> bytes:
    """The life of a record, as far as it fits."""
    fields = {
        "mode": 1, "warm_up": 4, "gap_scale": 4, "weight_max_q16": 4, "idle_shift": 1, "half_life_ns": 8,
        "latency_weight_q16": 4, "latency_guard_us": 4, "score_min_bytes": 8, "score_full_bytes": 8,
        "loss_shift": 1, "loss_min_segs": 4, "rescue_arm": 1,
    }  # fmt: skip
    seed = joined(*((sequence["params"][name], size) for name, size in fields.items()))
    for step in sequence["steps"]:
        seed += learner_step(step)
    return seed[:LARGEST]


def network_seed(network: dict, sequence: dict) -> bytes:
    """A model and what it decides on."""
    features = network["features"]
    seed = joined((len(features) - 1, 1), (network["history"] - 1, 1))
    for kind, scale_q16 in features:
        seed += joined((KINDS.index(kind), 1), (scale_q16 - 1, 4))
    seed += joined((network["target_q24"], 4), (network["offset_q16"], 4))
    if network["kind"] == "mlp":
        seed += joined(
            (0, 1), (network["input"]["multiplier"], 4), (network["input"]["shift"] - 8, 1)
        )
        seed += joined((len(network["layers"]) - 1, 1))
        for layer in network["layers"]:
            seed += joined((len(layer["weights"]) - 1, 1), (layer["shift"] - 8, 1))
            for row, bias, multiplier in zip(
                layer["weights"], layer["bias"], layer["multipliers"], strict=True
            ):
                seed += joined(
                    (bias + (1 << 24), 4), (multiplier, 4), *((weight, 1) for weight in row)
                )
    else:
        seed += joined((1, 1), (len(network["nodes"]) - 1, 2))
        for which, threshold, left, right, value in network["nodes"]:
            seed += joined(
                (value + (1 << 20), 4), (threshold, 2), (left, 2), (right, 2), (which, 1)
            )
        seed += joined((len(network["roots"]) - 1, 1), *((root, 2) for root in network["roots"]))
    for rtt_ns, rate, *_ in sequence["steps"]:
        seed += joined((0, 1), (rtt_ns, 8), (sequence["base_rtt_ns"], 8), (rate, 8))
        seed += joined((sequence["line_rate"], 8), (sequence["floor"], 8), (sequence["cap"], 8))
    return seed[:LARGEST]


def main(directory: Path) -> None:
    """Writes all seeds."""
    for name in ("learner", "network"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    sequences = json.loads((VECTORS / "sequences.json").read_text())["sequences"]
    for index, sequence in enumerate(sequences):
        (directory / "learner" / f"sequence-{index}").write_bytes(learner_seed(sequence))
    families = json.loads((VECTORS / "windows.json").read_text())["families"]
    for index, family in enumerate(families):
        (directory / "learner" / f"windows-{index}").write_bytes(learner_seed(family))
    network = json.loads((VECTORS / "network.json").read_text())
    for index, sequence in enumerate(network["sequences"]):
        seed = network_seed(network["networks"][sequence["network"]], sequence)
        (directory / "network" / f"sequence-{index}").write_bytes(seed)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: seeds.py DIR")
    main(Path(sys.argv[1]))
