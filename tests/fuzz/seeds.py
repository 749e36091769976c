#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""seeds.py DIR: writes inputs that the fuzzers start from, in DIR/learner and DIR/network.

The formats are those that learner.c and network.c read. The learner's are drawn; the network's are
golden vectors.
"""

import json
import random
import sys
from pathlib import Path

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
KINDS = ["action", "error", "log_rate", "queue", "error_change"]
# A seed need not be longer than what one input may be.
LARGEST = 16384
# Inputs of the learner.
SEEDS = 80


def number(value: int, size: int) -> bytes:
    """A number, two's complement where negative, the lowest byte first."""
    return (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


def joined(*fields: tuple[int, int]) -> bytes:
    """Pairs of a value and its size in bytes."""
    return b"".join(number(value, size) for value, size in fields)


def drawn_sample(
    draw: random.Random, arm: int, segments: tuple[int, int], ends: list[int]
) -> bytes:
    """A transfer; arms differ by up to a factor of eight, and some lose, stall or are limited."""
    sent = draw.randint(*segments)
    duration_us = sent * 1448 // (5 << arm % 4) * draw.choice([1, 1, 1, 2, 12]) + 20_000
    retrans = sent * draw.choice([0, 0, 1, 5, 10 + 50 * (arm % 2)]) // 1000
    rtt_us = draw.randint(18_000, 24_000)
    burst = (14_480, 8), (draw.randint(1, 2_000), 8)
    counts = (sent, 4), (retrans, 4), (sent - draw.randint(0, sent // 2), 4), (retrans, 4)
    rtts = (draw.randint(rtt_us, 60_000), 4), (rtt_us, 4)
    ended = (draw.choice([0, rtt_us]), 4), (draw.randint(0, 1), 1), (draw.choice(ends), 1)
    limited = (duration_us * draw.choice([0, 0, 3]) // 8, 4), (0, 4)
    return joined((sent * 1448, 8), (duration_us, 8), *burst, *rtts, *counts, *ended, *limited)


def learner_step(draw: random.Random, kind: int, system: int, now_ns: int) -> bytes:
    """One step in the life of a record, as learner.c numbers its kinds."""
    arm, trial, ticket = draw.randrange(4), draw.randrange(2), draw.choice([0, 0xFFF0])
    randoms = [(draw.getrandbits(32) | ticket, 4) for _ in range(3)]
    allowed = draw.choice([0xF, 0xF, 0x7, 0xFFFF])
    if kind == 0:
        return joined((0, 1), (system, 1), (allowed, 2), *randoms, (now_ns, 8))
    if kind == 1:
        sample = drawn_sample(draw, arm, (40, 4_000), [0, 1, 2, 3, 4, 5])
        return joined((1, 1), (arm, 1), (system, 1), (trial, 1), (now_ns, 8)) + sample
    if kind == 2:
        segs = draw.randint(100, 2_000)
        flow = [(arm, 1), (system, 1), (segs, 8), (segs // draw.choice([4, 20, 200]), 8)]
        return joined((2, 1), *flow, (allowed, 2), randoms[0])
    if kind == 4:
        long = [(arm, 1), (system, 1), (trial, 1), (draw.choice([0, now_ns // 2]), 8)]
        return joined((4, 1), *long, (allowed, 2), randoms[0], (now_ns, 8))
    window = draw.choice([0, 0, 3, 7])
    decided = [(0x0889, 2), randoms[0], (now_ns, 8), (window, 1), (now_ns + 10**9, 8)]
    return joined((5, 1), *decided) + drawn_sample(draw, window, (21, 180), [0, 1, 2])


def learner_seed(number: int) -> bytes:
    """The life of a record of hosts, or of initial windows, as far as it fits."""
    draw = random.Random(number)
    fields = {
        "mode": (number % 8 > 0, 1), "warm_up": (1, 4), "gap_scale": (256, 4), "weight_max_q16": (8 << 16, 4),
        "idle_shift": (6, 1), "half_life_ns": (1800 * 10**9, 8), "latency_weight_q16": (1 << 14, 4),
        "latency_guard_us": (10_000, 4), "score_min_bytes": (128 << 10, 8), "score_full_bytes": (1 << 20, 8),
        "loss_shift": (6, 1), "loss_min_segs": (128, 4), "rescue_arm": (draw.choice([1, 255]), 1),
    }  # fmt: skip
    seed = joined(*fields.values())
    kinds = [5] if number % 4 == 3 else [0, 0, 1, 1, 1, 2 + 2 * draw.randrange(2)]
    now_ns = 10**12
    while len(seed) < LARGEST:
        now_ns += draw.randrange(draw.choice([1, 60, 2_000]) * 10**9)
        seed += learner_step(draw, draw.choice(kinds), draw.choice([0, 0, 0, 2]), now_ns)
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
    for number in range(SEEDS):
        (directory / "learner" / f"seed-{number}").write_bytes(learner_seed(number))
    network = json.loads((VECTORS / "network.json").read_text())
    for index, sequence in enumerate(network["sequences"]):
        seed = network_seed(network["networks"][sequence["network"]], sequence)
        (directory / "network" / f"sequence-{index}").write_bytes(seed)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: seeds.py DIR")
    main(Path(sys.argv[1]))
