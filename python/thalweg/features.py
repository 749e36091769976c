"""Features, a learned rate controller's inputs, and the meaning of its action.

A flow decides once per round-trip probe, when the probe is answered or known to be lost. With the
inflation ``infl = RTT / base RTT`` and the rate ``x`` as a fraction of the line rate, in (0, 1],
the signal is

    s = max(infl - offset, 0) * sqrt(x)

Flows that share a bottleneck see about the same inflation. So they have the same rate where all are
at ``s = target`` (Analytic Deterministic Policy Gradient with Application to Datacenter Congestion
Control, section 5.1). The published signal has offset 0. With an offset near the inflation that a
few flows cannot avoid, the inflation above it grows with the square root of the number of flows, as
the fixed point needs.

A lost probe has no signal: the queue's feature is at its limit, and the change of the signal is
unknown, then and at the next decision.

Every feature is defined once, in :data:`FEATURES`. All functions take and return arrays, one
element a decision, and work on any number of flows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]

#: Step of one decision: u = 1 multiplies the rate by 1.2, u = -1 divides it by 1.2.
STEP = 0.2

#: Most numbers in an observation, by the kernel's network.
MAX_INPUTS = 16


@dataclass(frozen=True)
class Signal:
    """How round-trip time and rate become an error.

    target: the signal at which a flow stays as it is; larger means more throughput and more
        latency. Positive.
    offset: inflation that counts as none. At least 0.
    scale: factor of the error before it is limited to [-1, 1]. None means 0.2 / target: the error
        is 0.2 where there is no queue, and -1 from six times the target on. Larger factors leave
        nearly every error at a limit, because a queue changes by several targets within a
        round-trip time; much smaller ones hide the fixed point.
    """

    target: float = 0.033
    offset: float = 1.4
    scale: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("target", self.target), ("scale", self.error_scale)):
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"signal: {name} is {value}; expected a finite number above 0")
        if not (np.isfinite(self.offset) and self.offset >= 0):
            raise ValueError(
                f"signal: offset is {self.offset}; expected a finite number, at least 0"
            )

    @property
    def error_scale(self) -> float:
        """The factor in use."""
        if self.scale is not None:
            return self.scale
        return 0.2 / self.target if self.target else 0.0

    def value(self, infl: ArrayLike, rate: ArrayLike) -> Floats:
        """The signal s, at least 0."""
        infl = np.asarray(infl, np.float32)
        return np.maximum(infl - np.float32(self.offset), 0) * np.sqrt(np.asarray(rate, np.float32))

    def error(self, s: ArrayLike) -> Floats:
        """The signed error: positive where the flow should send faster."""
        e = np.float32(self.error_scale) * (np.float32(self.target) - np.asarray(s, np.float32))
        return np.clip(e, -1, 1).astype(np.float32)


def multiplier(u: ArrayLike) -> Floats:
    """Factor of the rate for an action ``u`` in [-1, 1]: 1 + 0.2u where u is
    positive, 1 / (1 - 0.2u) where it is negative, so that u and -u cancel."""
    u = np.asarray(u, np.float32)
    step = np.float32(STEP)
    return np.where(u >= 0, 1 + step * u, 1 / (1 - step * np.minimum(u, 0))).astype(np.float32)


@dataclass(frozen=True)
class _Moment:
    """Inputs of features: one decision of n flows."""

    action: Floats  # of the decision before, 0 at the first
    infl: Floats
    rate: Floats
    target: np.float32
    s: Floats
    s_before: Floats  # of the decision before; the same as s at the first


#: Features by name, each one number per decision, before it is multiplied by its scale and limited
#: to [-1, 1].
FEATURES: dict[str, Callable[[_Moment], Floats]] = {
    # The action of the flow's decision before.
    "action": lambda m: m.action,
    # Target minus signal.
    "error": lambda m: m.target - m.s,
    # The rate in doublings from the line rate down, divided by 16.
    "log_rate": lambda m: np.divide(np.log2(m.rate), 16, dtype=np.float32),
    # The queueing delay in base round-trip times.
    "queue": lambda m: m.infl - 1,
    # The fall of the signal since the decision before.
    "error_change": lambda m: m.s_before - m.s,
}

#: Features after a lost probe that their formulas do not give.
LOST = {"error": -1.0, "queue": 1.0, "error_change": 0.0}

#: Scales of the features that do not take the signal's.
SCALES = {"action": 1.0, "log_rate": 1.0, "queue": 0.125}


def feature(name: str) -> tuple[str, float]:
    """A feature as :class:`FeatureSet` names it: ``error*8`` is error and 8, ``error`` error and 1.
    Raises ValueError for a factor that is no positive number."""
    base, star, text = name.partition("*")
    if not star:
        return base, 1.0
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise ValueError(f"features: the factor of '{name}' is no finite number above 0")
    return base, factor


@dataclass(frozen=True)
class FeatureSet:
    """The features of an observation.

    names: per decision, in this order; keys of :data:`FEATURES`. ``error*8`` is the error at eight
        times its scale: beside the error itself, a finer view near the target.
    history: decisions that an observation spans, the oldest first.
    signal: makes the error.
    """

    names: tuple[str, ...] = ("action", "error")
    history: int = 2
    signal: Signal = Signal()

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("features: none named; expected at least one")
        for name in self.names:
            if feature(name)[0] not in FEATURES:
                raise ValueError(
                    f"features: unknown feature '{name}'; known: {', '.join(FEATURES)}, and each "
                    "with a factor of its scale, as error*8"
                )
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"features: named twice in {', '.join(self.names)}")
        if self.history < 1:
            raise ValueError(f"features: history is {self.history}; expected at least 1")
        if self.size > MAX_INPUTS:
            raise ValueError(
                f"features: {len(self.names)} over {self.history} decisions are {self.size} "
                f"inputs; expected at most {MAX_INPUTS}"
            )

    @property
    def size(self) -> int:
        """Numbers in an observation."""
        return len(self.names) * self.history

    @property
    def scales(self) -> tuple[float, ...]:
        """Factor of each feature before it is limited, in the order of the names."""
        return tuple(
            factor * SCALES.get(name, self.signal.error_scale)
            for name, factor in map(feature, self.names)
        )


class Observer:
    """Turns the decisions of many flows, in any order, into observations.

    A flow's key is a number from 0 up to ``keys``. A flow's history starts with zeros.
    """

    def __init__(self, features: FeatureSet, keys: int) -> None:
        self.features = features
        self._width = len(features.names)
        self._scales = np.array(features.scales, np.float32)
        self._window = np.zeros((keys, features.size), np.float32)
        self._action = np.zeros(keys, np.float32)
        self._signal = np.full(keys, np.nan, np.float32)

    def observe(
        self,
        key: NDArray[np.integer],
        rtt_s: Floats,
        base_rtt_s: Floats,
        rate: Floats,
        probe_lost: NDArray[np.bool_] | None = None,
    ) -> tuple[Floats, Floats, Floats]:
        """One decision of each of the flows ``key`` (each at most once). ``probe_lost``: flows
        whose probe was lost, whose ``rtt_s`` is ignored; None: no flow.

        Returns the observations [n, size], the errors [n] and the signals [n]; a lost probe's
        error is -1, its signal infinite.
        """
        lost = np.zeros(len(key), np.bool_) if probe_lost is None else probe_lost
        signal = self.features.signal
        infl: Floats = np.divide(rtt_s, base_rtt_s, dtype=np.float32)
        rate = np.asarray(rate, np.float32)
        s = signal.value(infl, rate)
        before = self._signal[key]
        moment = _Moment(
            action=self._action[key],
            infl=infl,
            rate=rate,
            target=np.float32(signal.target),
            s=s,
            s_before=np.where(np.isnan(before), s, before),
        )
        row = np.empty((len(key), self.features.size), np.float32)
        row[:, : -self._width] = self._window[key, self._width :]
        now = row[:, -self._width :]
        for column, name in enumerate(self.features.names):
            now[:, column] = FEATURES[feature(name)[0]](moment)
        np.clip(now * self._scales, -1, 1, out=now)
        if lost.any():
            s = np.where(lost, np.float32(np.inf), s)
            for column, name in enumerate(self.features.names):
                if (value := LOST.get(feature(name)[0])) is not None:
                    now[lost, column] = value
        self._window[key] = row
        self._signal[key] = np.where(lost, np.float32(np.nan), s)
        return row, signal.error(s), s

    def acted(self, key: NDArray[np.integer], u: Floats) -> None:
        """The actions that the flows ``key`` took after :meth:`observe`."""
        self._action[key] = u
