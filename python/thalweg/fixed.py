# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The learned rate controller in integers, for arrays of flows, as the kernel computes it.

docs/reference/model.md says it in words. The vectors of tests/vectors/network.py keep this, the Rust
crate `thalweg-rate` and the C header bit-identical. Everything is int64; only the square root goes
through floating point, and is corrected in integers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.model import Feature, Forest, Quantised

Integers = NDArray[np.int64]

ONE_Q15 = 32767
MAX_RTT_NS = 10**10
MAX_RATE = (1 << 40) - 1
LIMIT_Q24 = 1 << 31
STEP_Q16 = 26214

TANH_Q15: Integers = np.array(
    [min(ONE_Q15, math.floor(32768 * math.tanh(i / 32) + 0.5)) for i in range(257)], np.int64
)


def rounded_shift(value: Integers, shift: int | Integers) -> Integers:
    """`value / 2**shift` to the nearest integer, halves upwards; `shift` at least 1."""
    return (value + (np.int64(1) << np.int64(shift) - np.int64(1))) >> np.int64(shift)


def fixed(value: float, bits: int) -> int:
    """A parameter with so many fractional bits, to the nearest, halves upwards."""
    return math.floor(value * (1 << bits) + 0.5)


def inflation_q16(rtt_ns: Integers, base_rtt_ns: Integers) -> Integers:
    """Round-trip time by base round-trip time, rounded down, below 2**32; shapes as given."""
    rtt_ns, base_rtt_ns = np.clip(rtt_ns, 1, MAX_RTT_NS), np.clip(base_rtt_ns, 1, MAX_RTT_NS)
    return np.minimum((rtt_ns << 16) // base_rtt_ns, (1 << 32) - 1)


def share_q48(rate: Integers, line_rate: Integers) -> Integers:
    """Rate by line rate, rounded down: 2**8 to 2**48, 24 bits of the quotient at a time."""
    line_rate = np.clip(line_rate, 1, MAX_RATE).astype(np.uint64)
    shifted = np.clip(rate, 1, line_rate.astype(np.int64)).astype(np.uint64) << np.uint64(24)
    high, rest = shifted // line_rate, shifted % line_rate
    low = (rest << np.uint64(24)) // line_rate
    return ((high << np.uint64(24)) + low).astype(np.int64)


def root(x: Integers) -> Integers:
    """Square root, rounded down, of numbers of 0 to 2**48."""
    found = np.sqrt(x.astype(np.float64)).astype(np.int64)
    found -= found * found > x
    return found + ((found + 1) * (found + 1) <= x)


def log2_q16(x: Integers) -> Integers:
    """log2 of positive numbers below 2**53: a parabola between powers of two."""
    whole = np.frexp(x.astype(np.float64))[1].astype(np.int64) - 1
    fraction = np.where(whole >= 16, x >> np.maximum(whole - 16, 0), x << np.maximum(16 - whole, 0))
    fraction &= 0xFFFF
    chord = (fraction * ((1 << 16) - fraction)) >> 16
    return (whole << 16) + fraction + ((chord * 22528) >> 16)


def _scaled(value: Integers, scale_q16: int, shift: int) -> Integers:
    return np.clip(rounded_shift(value * scale_q16, shift), -ONE_Q15, ONE_Q15)


#: Features after a lost probe that their formulas do not give.
LOST_Q15 = {"error": -ONE_Q15, "queue": ONE_Q15, "error_change": 0}


@dataclasses.dataclass
class Flows:
    """State of `count` flows between their decisions.

    `inputs` [count, features * history] int64 in Q15, oldest decision first.
    """

    features: Sequence[tuple[str, int]]
    history: int
    target_q24: int
    offset_q16: int
    count: int

    def __post_init__(self) -> None:
        self.inputs: Integers = np.zeros((self.count, len(self.features) * self.history), np.int64)
        self.action: Integers = np.zeros(self.count, np.int64)
        self.signal: Integers = np.zeros(self.count, np.int64)
        self.decided: NDArray[np.bool_] = np.zeros(self.count, np.bool_)

    @classmethod
    def of(
        cls, features: Sequence[Feature], history: int, target: float, offset: float, count: int
    ) -> Flows:
        """From the parameters of a model."""
        list_q16 = [(feature.name, fixed(feature.scale, 16)) for feature in features]
        return cls(list_q16, history, fixed(target, 24), fixed(offset, 16), count)

    def observe(
        self,
        rtt_ns: Integers,
        base_rtt_ns: Integers,
        rate: Integers,
        line_rate: Integers,
        key: NDArray[np.integer] | None = None,
        probe_lost: NDArray[np.bool_] | None = None,
    ) -> Integers:
        """Moves the history on by one decision of each of the flows `key` (each at most once), or of
        every flow; all arguments one element a decision. Returns their inputs.

        `probe_lost`, bool: flows whose probe was lost, whose `rtt_ns` is ignored; None: no flow.
        Set `action` to the decision afterwards.
        """
        at = np.arange(self.count) if key is None else key
        inflation, share = inflation_q16(rtt_ns, base_rtt_ns), share_q48(rate, line_rate)
        signal = (np.maximum(inflation - self.offset_q16, 0) * root(share)) >> 16
        error = np.clip(self.target_q24 - signal, -LIMIT_Q24, LIMIT_Q24)
        previous = np.where(self.decided[at], self.signal[at], signal)
        change = np.clip(previous - signal, -LIMIT_Q24, LIMIT_Q24)
        columns: dict[str, Callable[[int], Integers]] = {
            "action": lambda _: self.action[at],
            "error": lambda scale: _scaled(error, scale, 25),
            "log_rate": lambda scale: _scaled(log2_q16(share) - (48 << 16), scale, 21),
            "queue": lambda scale: _scaled(inflation - (1 << 16), scale, 17),
            "error_change": lambda scale: _scaled(change, scale, 25),
        }
        now = np.stack([columns[name](scale) for name, scale in self.features], axis=1)
        lost = np.zeros(len(at), np.bool_) if probe_lost is None else probe_lost
        for column, (name, _) in enumerate(self.features):
            if name in LOST_Q15:
                now[lost, column] = LOST_Q15[name]
        inputs = np.concatenate([self.inputs[at, now.shape[1] :], now], axis=1)
        self.inputs[at], self.signal[at], self.decided[at] = inputs, signal, ~lost
        return inputs


def tanh_q15(z_q12: Integers) -> Integers:
    """tanh of numbers in Q12 of -32767 to 32767, by the table; any shape."""
    size = np.abs(z_q12)
    entry, rest = size >> 7, size & 127
    low = TANH_Q15[entry]
    return np.sign(z_q12) * (low + (((TANH_Q15[entry + 1] - low) * rest + 64) >> 7))


def infer_mlp(network: Quantised, inputs: Integers) -> Integers:
    """Actions in Q15 [n] for inputs in Q15 [n, inputs]."""
    shift = int(network.input_shift)
    values = np.clip(rounded_shift(inputs * np.int64(network.input_multiplier), shift), -127, 127)
    for number, layer in enumerate(network.layers):
        last = number == len(network.layers) - 1
        sums = values @ layer.weight_q.astype(np.int64).T + layer.bias_q.astype(np.int64)
        scaled = rounded_shift(sums * layer.multiplier.astype(np.int64), layer.shift)
        values = np.clip(scaled, -32767, 32767) if last else np.clip(scaled, 0, 127)
    return tanh_q15(values[:, 0])


def infer_forest(forest: Forest, inputs: Integers) -> Integers:
    """Actions in Q15 [n] for inputs in Q15 [n, inputs]."""
    rows = np.arange(len(inputs))[:, None]
    at = np.broadcast_to(forest.root.astype(np.int64), (len(inputs), len(forest.root)))
    while True:
        left, right = forest.left[at].astype(np.int64), forest.right[at].astype(np.int64)
        goes_left = inputs[rows, forest.feature[at]] <= forest.threshold[at]
        following = np.where(goes_left, left, right)
        if np.array_equal(following, at):
            return np.clip(forest.value[at].sum(axis=1, dtype=np.int64), -ONE_Q15, ONE_Q15)
        at = following


def next_rate(rate: Integers, action_q15: Integers, floor: Integers, cap: Integers) -> Integers:
    """Rates after actions in Q15; at most `cap`, then at least `floor`; any one shape."""
    up = (1 << 16) + ((np.abs(action_q15) * STEP_Q16 + (1 << 15)) >> 16)
    multiplier = np.where(action_q15 >= 0, up, ((1 << 32) + up // 2) // up)
    product = rounded_shift(np.clip(rate, 0, MAX_RATE) * multiplier, 16)
    return np.maximum(np.minimum(product, cap), floor)
