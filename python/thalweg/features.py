"""What a learned rate controller sees of its flow, and what its answer means.

A flow decides once per answered round-trip probe. With the inflation ``infl = RTT / base RTT``
and the rate ``x`` as a fraction of the line rate, in (0, 1], the signal is

    s = max(infl - offset, 0) * sqrt(x)

Where flows share a bottleneck they see about the same inflation, so all of them being at
``s = target`` means that all have the same rate (Analytic Deterministic Policy Gradient with
Application to Datacenter Congestion Control, section 5.1). The published signal has offset 0. With
the offset near the inflation that a few flows cannot avoid, what is left above it grows with the
square root of the number of flows, as the fixed point needs.

Every feature is defined once, in :data:`FEATURES`. All functions take and return arrays, one
element a decision, and work on any number of flows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]

#: How far one decision moves the rate: u = 1 multiplies by 1.2, u = -1 divides by 1.2.
STEP = 0.2

#: Bound of ``log_error`` before it is scaled to [-1, 1], in doublings of the signal.
LOG_ERROR_DOUBLINGS = 4.0

#: ``log_rate`` is -1 at a rate of 2**-16 of the line rate.
LOG_RATE_DOUBLINGS = 16.0

#: ``queue`` is bounded here: eight base round-trip times of waiting.
QUEUE_BOUND = 8.0


@dataclass(frozen=True)
class Signal:
    """How round-trip time and rate become an error.

    target: the signal at which a flow stays as it is; larger means more throughput and more
        latency. Positive.
    offset: inflation that counts as none. At least 0.
    scale: factor of the error; None means 1 / target, which makes it at most 1.
    clip: bound of the error's magnitude. Positive.
    """

    target: float = 0.033
    offset: float = 1.4
    scale: float | None = None
    clip: float = 1.0

    def __post_init__(self) -> None:
        for name, value, low in (
            ("target", self.target, "above 0"),
            ("clip", self.clip, "above 0"),
            ("scale", 1.0 if self.scale is None else self.scale, "above 0"),
        ):
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"signal: {name} is {value}; it must be finite and {low}")
        if not (np.isfinite(self.offset) and self.offset >= 0):
            raise ValueError(f"signal: offset is {self.offset}; it must be finite and at least 0")

    @property
    def error_scale(self) -> float:
        """The factor in use."""
        return 1.0 / self.target if self.scale is None else self.scale

    def value(self, infl: ArrayLike, rate: ArrayLike) -> Floats:
        """The signal s, at least 0."""
        infl = np.asarray(infl, np.float32)
        return np.maximum(infl - np.float32(self.offset), 0) * np.sqrt(
            np.asarray(rate, np.float32)
        )

    def error(self, s: ArrayLike) -> Floats:
        """The signed error: positive where the flow should send faster."""
        e = np.float32(self.error_scale) * (np.float32(self.target) - np.asarray(s, np.float32))
        return np.clip(e, -self.clip, self.clip).astype(np.float32)

    def log_error(self, s: ArrayLike) -> Floats:
        """The error in doublings, log2(target / s), bounded and scaled to [-1, 1].

        Unlike :meth:`error` it tells half the target from a quarter of it as well as twice the
        target from four times.
        """
        smallest = self.target * 2.0**-LOG_ERROR_DOUBLINGS
        doublings = np.log2(
            np.float32(self.target) / np.maximum(np.asarray(s, np.float32), np.float32(smallest))
        )
        return np.maximum(doublings / LOG_ERROR_DOUBLINGS, -1.0).astype(np.float32)


def multiplier(u: ArrayLike) -> Floats:
    """What the rate is multiplied by for an action ``u`` in [-1, 1]: 1 + 0.2u where u is
    positive, 1 / (1 - 0.2u) where it is negative, so that u and -u cancel."""
    u = np.asarray(u, np.float32)
    step = np.float32(STEP)
    return np.where(u >= 0, 1 + step * u, 1 / (1 - step * np.minimum(u, 0))).astype(np.float32)


@dataclass(frozen=True)
class _Moment:
    """What a feature may be computed from: one decision of n flows."""

    signal: Signal
    action: Floats  # of the decision before, 0 at the first
    infl: Floats
    rate: Floats
    s: Floats
    error: Floats
    error_before: Floats  # of the decision before, 0 at the first


#: Features by name. Each is one number per decision.
FEATURES: dict[str, Callable[[_Moment], Floats]] = {
    # The action of the flow's decision before.
    "action": lambda m: m.action,
    # The signed error.
    "error": lambda m: m.error,
    # The error in doublings.
    "log_error": lambda m: m.signal.log_error(m.s),
    # The rate in doublings, from 0 at line rate down.
    "log_rate": lambda m: np.log2(m.rate) / np.float32(LOG_RATE_DOUBLINGS),
    # The waiting in base round-trip times.
    "queue": lambda m: np.clip(m.infl - 1, 0, QUEUE_BOUND),
    # How the error changed since the decision before.
    "error_change": lambda m: m.error - m.error_before,
}


@dataclass(frozen=True)
class FeatureSet:
    """Which features an observation consists of.

    names: per decision, in this order; keys of :data:`FEATURES`.
    history: decisions that an observation spans, the oldest first.
    signal: how the error comes about.
    """

    names: tuple[str, ...] = ("action", "error")
    history: int = 2
    signal: Signal = Signal()

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("features: none named; expected at least one")
        for name in self.names:
            if name not in FEATURES:
                raise ValueError(
                    f"features: unknown feature '{name}'; known: {', '.join(FEATURES)}"
                )
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"features: named twice in {', '.join(self.names)}")
        if self.history < 1:
            raise ValueError(f"features: history is {self.history}; it must be at least 1")

    @property
    def size(self) -> int:
        """Numbers in an observation."""
        return len(self.names) * self.history


class Observer:
    """Turns the decisions of many flows, in whatever order they come, into observations.

    Flows are told apart by key, a number from 0 up to ``keys``. A flow's history starts with
    zeros.
    """

    def __init__(self, features: FeatureSet, keys: int) -> None:
        self.features = features
        width = len(features.names)
        self._window = np.zeros((keys, features.size), np.float32)
        self._action = np.zeros(keys, np.float32)
        self._error = np.zeros(keys, np.float32)
        self._width = width

    def observe(
        self, key: NDArray[np.integer], rtt_s: Floats, base_rtt_s: Floats, rate: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """One decision of each of the flows ``key`` (each at most once).

        Returns the observations [n, size], the errors [n] and the signals [n].
        """
        signal = self.features.signal
        infl = np.asarray(rtt_s, np.float32) / np.asarray(base_rtt_s, np.float32)
        rate = np.asarray(rate, np.float32)
        s = signal.value(infl, rate)
        error = signal.error(s)
        moment = _Moment(signal, self._action[key], infl, rate, s, error, self._error[key])
        row = np.empty((len(key), self.features.size), np.float32)
        row[:, : -self._width] = self._window[key, self._width :]
        for column, name in enumerate(self.features.names, start=-self._width):
            row[:, column] = FEATURES[name](moment)
        self._window[key] = row
        self._error[key] = error
        return row, error, s

    def acted(self, key: NDArray[np.integer], u: Floats) -> None:
        """The actions that the flows ``key`` took after :meth:`observe`."""
        self._action[key] = u
