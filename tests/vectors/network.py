#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Golden vectors of the integer networks, from the words of docs/reference/model.md.

Plain Python integers, which cannot overflow, so every bound that the other implementations
rely on is asserted here. It shares no code with them, nor with python/thalweg.

The whole set is some megabytes and is made anew for each test; network.json holds the
networks, a sample of the cases, and the FNV-1a hash of the whole set.

usage: network.py          writes network.json
       network.py --check  compares; exit status 1 if it differs
       network.py --all    prints the whole set
"""

import itertools
import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "network.json"

ONE_Q15 = 32767  # largest feature and action; -32767 is the smallest
MAX_INPUTS, MAX_WIDTH, MAX_LAYERS = 16, 32, 3
MAX_NODES, MAX_TREES, MAX_DEPTH = 2048, 128, 16
MAX_RTT_NS = 10**10
MAX_RATE = (1 << 40) - 1
LIMIT_Q24 = 1 << 31  # differences of the signal: 128 either way
STEP_Q16 = 26214  # 0.2 of an action in Q15, as a step in Q16: 0.4 in Q16

VECTORS, SEQUENCES, STEPS, RATES = 10_800, 100, 60, 600
SAMPLE_VECTORS, SAMPLE_SEQUENCES, SAMPLE_RATES = 15, 12, 30  # of each network; in all


def bounded(value, bits):
    """The value, which must fit a signed integer of so many bits."""
    assert -(1 << (bits - 1)) <= value < 1 << (bits - 1), (value, bits)
    return value


def clamp(value, low, high):
    return max(low, min(high, value))


def rounded_shift(value, shift):
    """value / 2^shift to the nearest integer, halves upwards."""
    return bounded(value + (1 << (shift - 1)), 64) >> shift


# --- features -------------------------------------------------------------------------------


def log2_q16(x):
    """As docs/reference/learner.md: a parabola between powers of two."""
    whole = x.bit_length() - 1
    fraction = ((x << (64 - whole)) & ((1 << 64) - 1)) >> 48
    chord = (fraction * ((1 << 16) - fraction)) >> 16
    return (whole << 16) + fraction + ((chord * 22528) >> 16)


def measure(rtt_ns, base_rtt_ns, rate, line_rate, offset_q16):
    """Inflation (Q16), share of the line (Q48), signal (Q24)."""
    rtt_ns = clamp(rtt_ns, 1, MAX_RTT_NS)
    base_rtt_ns = clamp(base_rtt_ns, 1, MAX_RTT_NS)
    line_rate = clamp(line_rate, 1, MAX_RATE)
    rate = clamp(rate, 1, line_rate)
    inflation_q16 = min((rtt_ns << 16) // base_rtt_ns, (1 << 32) - 1)
    share_q48 = (rate << 48) // line_rate
    excess_q16 = max(inflation_q16 - offset_q16, 0)
    signal_q24 = bounded(excess_q16 * math.isqrt(share_q48), 64) >> 16
    assert signal_q24 < 1 << 40
    return inflation_q16, share_q48, signal_q24


def scaled(value, scale_q16, shift):
    """value * scale, rounded into Q15 and limited to +-1."""
    assert 1 <= scale_q16 <= 1 << 28
    return clamp(rounded_shift(bounded(value * scale_q16, 64), shift), -ONE_Q15, ONE_Q15)


def new_flow():
    return {"inputs": [], "action": 0, "signal": None}


def observe(network, flow, rtt_ns, base_rtt_ns, rate, line_rate):
    """Moves the history on by one decision; returns the inputs, oldest first."""
    inflation, share, signal = measure(rtt_ns, base_rtt_ns, rate, line_rate, network["offset_q16"])
    error = clamp(network["target_q24"] - signal, -LIMIT_Q24, LIMIT_Q24)
    change = 0
    if flow["signal"] is not None:
        change = clamp(flow["signal"] - signal, -LIMIT_Q24, LIMIT_Q24)
    now = []
    for name, scale_q16 in network["features"]:
        if name == "action":
            now.append(flow["action"])
        elif name == "error":
            now.append(scaled(error, scale_q16, 25))
        elif name == "log_rate":
            now.append(scaled(log2_q16(share) - (48 << 16), scale_q16, 21))
        elif name == "queue":
            now.append(scaled(inflation - (1 << 16), scale_q16, 17))
        elif name == "error_change":
            now.append(scaled(change, scale_q16, 25))
        else:
            raise ValueError(name)
    if not flow["inputs"]:
        flow["inputs"] = [0] * (len(now) * network["history"])
    flow["inputs"] = flow["inputs"][len(now) :] + now
    flow["signal"] = signal
    return flow["inputs"]


# --- networks -------------------------------------------------------------------------------

TANH_Q15 = [min(ONE_Q15, math.floor(32768 * math.tanh(i / 32) + 0.5)) for i in range(257)]


def tanh_q15(z_q12):
    """tanh by a table of steps of 1/32, linear between them."""
    size = abs(z_q12)
    i, rest = size >> 7, size & 127
    value = TANH_Q15[i] + (((TANH_Q15[i + 1] - TANH_Q15[i]) * rest + 64) >> 7)
    return value if z_q12 >= 0 else -value


def requantised(value, multiplier, shift, low, high):
    assert 0 <= multiplier < 1 << 31 and 8 <= shift <= 56
    return clamp(rounded_shift(bounded(value * multiplier, 58), shift), low, high)


def infer_layers(network, inputs):
    scale = network["input"]
    values = [requantised(f, scale["multiplier"], scale["shift"], -127, 127) for f in inputs]
    for number, layer in enumerate(network["layers"]):
        last = number == len(network["layers"]) - 1
        low, high = (-32767, 32767) if last else (0, 127)
        values = [
            requantised(
                bounded(sum(w * v for w, v in zip(row, values, strict=True)) + bias, 26),
                multiplier,
                layer["shift"],
                low,
                high,
            )
            for row, bias, multiplier in zip(
                layer["weights"], layer["bias"], layer["multipliers"], strict=True
            )
        ]
    (z_q12,) = values
    return tanh_q15(z_q12)


def infer_trees(network, inputs):
    total = 0
    for root in network["roots"]:
        node = root
        while True:
            feature, threshold, left, right, value = network["nodes"][node]
            if left == node:
                break
            node = left if inputs[feature] <= threshold else right
        total += value
    return clamp(bounded(total, 32), -ONE_Q15, ONE_Q15)


def infer(network, inputs):
    """The action, Q15."""
    if network["kind"] == "tree":
        return infer_trees(network, inputs)
    return infer_layers(network, inputs)


def next_rate(rate, action_q15, floor, cap):
    rate = min(rate, MAX_RATE)
    step_q16 = (abs(action_q15) * STEP_Q16 + (1 << 15)) >> 16
    if action_q15 >= 0:
        multiplier_q16 = (1 << 16) + step_q16
    else:
        divisor = (1 << 16) + step_q16
        multiplier_q16 = ((1 << 32) + divisor // 2) // divisor
    return max(min(rounded_shift(rate * multiplier_q16, 16), cap), floor)


# --- what is tried --------------------------------------------------------------------------


class Random:
    """splitmix64: the same numbers under every version of Python."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def integer(self, low, high):
        """Uniform, both ends included."""
        return low + self.bits() % (high - low + 1)

    def unit(self):
        return (self.bits() >> 11) / (1 << 53)

    def spread(self, low, high):
        """An integer whose logarithm is uniform."""
        return int(low * (high / low) ** self.unit())

    def pick(self, things):
        return things[self.bits() % len(things)]


PAIR = [["action", 1 << 16], ["error", 4 << 16]]
RICH = [*PAIR, ["log_rate", 1 << 16], ["queue", 1 << 14]]
FINE = [["error", 64 << 16], ["error", 1 << 16], ["error_change", 8 << 16]]


def multiplier_of(factor):
    """Multiplier below 2^31 and shift of a positive factor."""
    fraction, exponent = math.frexp(factor)
    multiplier = math.floor(fraction * (1 << 31) + 0.5)
    if multiplier == 1 << 31:
        multiplier, exponent = multiplier >> 1, exponent + 1
    return multiplier, 31 - exponent


def random_layer(random, rows, columns, last, bias, extreme):
    if extreme:
        weights = [[random.pick([-127, 127]) for _ in range(columns)] for _ in range(rows)]
    else:
        weights = [[random.integer(-127, 127) for _ in range(columns)] for _ in range(rows)]
    # What sums of this many products usually are, brought into the range of the next layer.
    usual = 73 * 60 * math.sqrt(columns)
    top = 127 / usual if not last else 6000 / usual
    factors = [top * (0.3 + 0.7 * random.unit()) for _ in range(rows)]
    multiplier, shift = multiplier_of(max(factors))
    multipliers = [math.floor(f / max(factors) * multiplier) for f in factors]
    return {
        "weights": weights,
        "bias": [random.integer(-9000, 9000) if bias else 0 for _ in range(rows)],
        "multipliers": multipliers,
        "shift": shift,
    }


def mlp(seed, name, features, history, widths, bias=False, extreme=False, target=0.5):
    random = Random(seed)
    inputs = len(features) * history
    assert inputs <= MAX_INPUTS and len(widths) <= MAX_LAYERS - 1
    multiplier, shift = multiplier_of(127 / 32768 / (0.4 + 0.6 * random.unit()))
    sizes = [inputs, *widths, 1]
    network = {
        "name": name,
        "kind": "mlp",
        "features": features,
        "history": history,
        "target_q24": math.floor(target * (1 << 24) + 0.5),
        "offset_q16": random.pick([0, 1 << 15, 1 << 16]),
        "input": {"multiplier": multiplier, "shift": shift},
        "layers": [
            random_layer(random, rows, columns, number == len(widths), bias, extreme)
            for number, (columns, rows) in enumerate(itertools.pairwise(sizes))
        ],
    }
    if bias:
        centre(random, network, inputs)
    return network


def centre(random, network, inputs):
    """Moves the last bias so that actions of both signs occur."""
    last = network["layers"][-1]
    best = None
    for bias in range(-400_000, 400_001, 20_000):
        last["bias"] = [bias]
        state = Random(random.state)
        actions = [infer(network, random_inputs(state, inputs)) for _ in range(60)]
        distance = abs(sum(1 if action > 0 else -1 for action in actions))
        if best is None or distance < best[0]:
            best = distance, bias
    last["bias"] = [best[1]]


def grow(random, nodes, inputs, depth, value):
    """Appends a random tree; returns its root."""
    here = len(nodes)
    nodes.append(None)
    if depth == 0 or (here and random.unit() < 0.1):
        nodes[here] = [0, 0, here, here, random.integer(-value, value)]
        return here
    feature = random.integer(0, inputs - 1)
    threshold = random.integer(-30000, 30000)
    left = grow(random, nodes, inputs, depth - 1, value)
    right = grow(random, nodes, inputs, depth - 1, value)
    nodes[here] = [feature, threshold, left, right, 0]
    return here


def tree(seed, name, features, history, depth, count, value):
    random = Random(seed)
    nodes = []
    roots = [grow(random, nodes, len(features) * history, depth, value) for _ in range(count)]
    assert len(nodes) <= MAX_NODES and count <= MAX_TREES and depth <= MAX_DEPTH
    return {
        "name": name,
        "kind": "tree",
        "features": features,
        "history": history,
        "target_q24": 1 << 23,
        "offset_q16": 1 << 16,
        "nodes": nodes,
        "roots": roots,
    }


def chain(name, depth):
    """The deepest tree that is allowed: one step right at each node, a leaf to the left."""
    nodes = []
    for level in range(depth):
        here = 2 * level
        nodes.append([level % 4, -20000 + 2000 * level, here + 1, here + 2, 0])
        nodes.append([0, 0, here + 1, here + 1, 4000 * level - 30000])
    nodes.append([0, 0, 2 * depth, 2 * depth, 1 << 20])
    return {
        "name": name,
        "kind": "tree",
        "features": PAIR,
        "history": 2,
        "target_q24": 1 << 20,
        "offset_q16": 0,
        "nodes": nodes,
        "roots": [0],
    }


def networks():
    return [
        mlp(1, "published shape", PAIR, 2, [12, 12]),
        mlp(2, "published shape, other weights", PAIR, 2, [12, 12], target=0.064),
        mlp(3, "with bias", PAIR, 2, [12, 12], bias=True, target=2.0),
        mlp(4, "longer history", PAIR, 4, [16, 16], bias=True),
        mlp(5, "largest", RICH, 4, [32, 32], bias=True),
        mlp(6, "largest, extreme weights", RICH, 4, [32, 32], extreme=True),
        mlp(7, "odd sizes", FINE, 1, [5, 7], bias=True, target=0.05),
        mlp(8, "one hidden layer", FINE, 3, [9], target=1.0),
        mlp(9, "no hidden layer", PAIR, 1, []),
        tree(10, "one tree", PAIR, 2, 9, 1, 32767),
        tree(11, "many small trees", RICH, 2, 3, 100, 2500),
        chain("deepest tree", MAX_DEPTH),
    ]


def random_inputs(random, count):
    kind = random.integer(0, 9)
    if kind == 0:
        return [random.pick([-ONE_Q15, 0, ONE_Q15]) for _ in range(count)]
    size = ONE_Q15 if kind < 6 else random.spread(1, ONE_Q15)
    return [random.integer(-size, size) for _ in range(count)]


def vectors(all_networks):
    random = Random(100)
    cases = []
    for number in range(VECTORS):
        which = number % len(all_networks)
        network = all_networks[which]
        inputs = random_inputs(random, len(network["features"]) * network["history"])
        cases.append([which, inputs, infer(network, inputs)])
    return cases


def sequence(number, all_networks):
    """One flow: a queue that follows its rate, with noise, jumps and now and then another's hand."""
    random = Random(1000 + number)
    which = number % len(all_networks)
    network = all_networks[which]
    line = random.spread(1_000_000, 800_000_000_000)
    base = random.spread(1_000, 100_000_000)
    floor, cap = max(1, line // random.pick([100, 10_000, 1_000_000])), line
    if number % 10 == 9:
        floor, cap = line // 3, line // 2  # both ends are met
    if number % 10 == 8:
        line, base, floor, cap = MAX_RATE, 1_000, 1_000, 800_000_000_000  # the ends of the ranges
    others = random.unit()
    rate, queue = line if number % 2 else floor, 0.0
    flow, steps = new_flow(), []
    for _ in range(STEPS):
        queue = max(0.0, queue + base * ((rate / line) + others - 1))
        queue = min(queue, 1e10)
        rtt = int(base + queue + base * 0.1 * random.unit())
        chance = random.integer(0, 29)
        if chance == 0:
            rtt = random.pick([0, 1, base // 2, 10**10, 1 << 62])
        if chance == 1:
            rate = random.pick([0, 1, floor, cap, line, random.spread(1, line), 1 << 63])
        if chance == 2:
            others = 1.2 * random.unit()
        inputs = list(observe(network, flow, rtt, base, rate, line))
        action = infer(network, inputs)
        flow["action"] = action
        following = next_rate(rate, action, floor, cap)
        steps.append([rtt, rate, inputs, action, following])
        rate = following
    return {
        "network": which,
        "base_rtt_ns": base,
        "line_rate": line,
        "floor": floor,
        "cap": cap,
        # Each: RTT (ns), rate, then what follows: inputs, action, next rate.
        "steps": steps,
    }


def rates():
    random = Random(200)
    cases = []
    for _ in range(RATES):
        rate = random.pick([random.spread(1, MAX_RATE), random.integer(0, 40), 1 << 40, 1 << 63])
        action = random.pick([-ONE_Q15, -1, 0, 1, ONE_Q15, random.integer(-ONE_Q15, ONE_Q15)])
        floor = random.spread(1, 10**6)
        cap = random.pick([MAX_RATE, floor, random.spread(1, MAX_RATE)])
        cases.append([rate, action, floor, cap, next_rate(rate, action, floor, cap)])
    return cases


def whole():
    all_networks = networks()
    return {
        "networks": all_networks,
        # Each: network, inputs, action.
        "vectors": vectors(all_networks),
        "sequences": [sequence(number, all_networks) for number in range(SEQUENCES)],
        # Each: rate, action, floor, cap, next rate.
        "rates": rates(),
    }


def covered(document):
    """The set must reach both ends and the middle of what it tests."""
    for which, network in enumerate(document["networks"]):
        actions = [case[2] for case in document["vectors"] if case[0] == which]
        assert len(set(actions)) > 14, (network["name"], len(set(actions)))
        assert min(actions) < 0 < max(actions), network["name"]
    steps = [step for sequence in document["sequences"] for step in sequence["steps"]]
    assert len(document["vectors"]) >= 10_000 and len(document["sequences"]) >= 100
    middle = [step for step in steps if all(0 < abs(f) < ONE_Q15 for f in step[2])]
    assert len(middle) > 500, len(middle)
    assert any(ONE_Q15 in step[2] for step in steps)
    assert any(-ONE_Q15 in step[2] for step in steps)


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def compact(document):
    return json.dumps(document, separators=(",", ":"))


def sample(document):
    """What is committed; one line a case, so that differences can be read."""
    kept = dict(document)
    kept["vectors"] = document["vectors"][: SAMPLE_VECTORS * len(document["networks"])]
    kept["sequences"] = document["sequences"][:SAMPLE_SEQUENCES]
    kept["rates"] = document["rates"][:SAMPLE_RATES]
    parts = [f'"whole_fnv1a": "{fnv1a(compact(document).encode())}"']
    for name, cases in kept.items():
        lines = ",\n".join(compact(case) for case in cases)
        parts.append(f'"{name}": [\n{lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main():
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"], ["--all"]):
        sys.exit(__doc__)
    document = whole()
    covered(document)
    if arguments == ["--all"]:
        sys.stdout.write(compact(document))
        return
    text = sample(document)
    if arguments == ["--check"]:
        if not FILE.exists() or FILE.read_text() != text:
            sys.exit(f"{FILE.name} is not what network.py makes; run it and explain each change")
        return
    FILE.write_text(text)


if __name__ == "__main__":
    main()
