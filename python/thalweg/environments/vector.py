# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Simulations side by side, with observations and rewards of all pending decisions as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from thalweg.features import FeatureSet, Observer, Signal
from thalweg.sim import Batch, Decisions, Learned, Scenario

Scenarios = Scenario | str | PathLike[str]

#: Least distance from the target for a lost probe, base round-trip times.
LOST = 1.0

#: Default observation: last action and error, of two decisions.
FEATURES = FeatureSet(signal=Signal(target=0.05, offset=1.0))


def loaded(scenario: Scenarios) -> Scenario:
    """The scenario, read where it is a path. Raises OSError or ValueError where it is neither."""
    if isinstance(scenario, Scenario):
        return scenario
    if not isinstance(scenario, str | PathLike):
        found = type(scenario).__name__
        raise ValueError(f"scenario: expected a Scenario or the path of its file, found {found}")
    return Scenario.load(scenario)


@dataclass(frozen=True, eq=False)
class Step:
    """Pending decisions, n of them."""

    #: Flow of each, among all of the batch, int32[n]; a flow appears at most once.
    key: NDArray[np.int32]
    #: float32[n, features.size].
    observation: NDArray[np.float32]
    #: For the flow's decision before; 0 at its first. float32[n].
    reward: NDArray[np.float32]
    #: The simulator's data of each.
    decisions: Decisions


class VectorFlows:
    """Simulations side by side, decided for together.

    scenarios, initial, jobs, others: as of :class:`thalweg.sim.Batch`. features: the observation,
    and the target of the reward.

    It resembles :class:`gymnasium.vector.VectorEnv`: spaces are those of one flow, :meth:`step`
    takes and returns arrays. But these hold the pending decisions alone, and simulations that have
    ended do not begin again.
    """

    def __init__(
        self,
        scenarios: Scenarios | Iterable[Scenarios],
        features: FeatureSet = FEATURES,
        initial: float | str | None = None,
        jobs: int | None = None,
        others: str | Learned | None = None,
    ) -> None:
        if not isinstance(scenarios, Scenario | str | PathLike):
            scenarios = list(scenarios)
        self._scenarios = scenarios
        self.features = features
        self._initial, self._jobs, self._others = initial, jobs, others
        self.single_observation_space = spaces.Box(-1, 1, (features.size,), np.float32)
        self.single_action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._batch: Batch | None = None
        self._step: Step | None = None

    @property
    def batch(self) -> Batch:
        """The simulations; their outcomes are here. Raises RuntimeError before :meth:`reset`."""
        if self._batch is None:
            raise RuntimeError("there are no simulations before reset()")
        return self._batch

    def __getstate__(self) -> dict[str, Any]:
        """The arguments alone: a copy is as before :meth:`reset`."""
        left_out = {"_batch": None, "_step": None, "_observer": None, "_seen": None}
        return self.__dict__ | left_out

    def reset(self, seeds: Sequence[int] | None = None) -> Step | None:
        """Fresh simulations, one a seed, up to the first decisions; None if there are none. Without
        seeds they are 0, 1, …, one a scenario."""
        if seeds is None:
            seeds = range(len(self._scenarios) if isinstance(self._scenarios, list) else 1)
        self._batch = Batch(self._scenarios, seeds, self._initial, self._jobs, self._others)
        self._observer = Observer(self.features, self._batch.flows)
        # By flow: whether it has decided before.
        self._seen = np.zeros(self._batch.flows, np.bool_)
        return self._observe()

    def step(self, action: ArrayLike) -> Step | None:
        """Takes actions for the pending decisions, float32[n] or [n, 1] in [-1, 1] in the order of
        the last step, and runs on to the next decisions; None at the end of all simulations. Raises
        ValueError for another number of actions or one outside [-1, 1]."""
        if self._step is None:
            raise RuntimeError("nothing is pending: reset() begins again")
        key = self._step.key
        action = np.asarray(action, np.float32)
        if action.size != len(key) or action.shape[:1] != key.shape:
            raise ValueError(
                f"action: expected the shape ({len(key)},) or ({len(key)}, 1), found {action.shape}"
            )
        action = action.reshape(-1)
        # NaN fails this, too.
        outside = ~((action >= -1) & (action <= 1))
        if outside.any():
            place = int(np.argmax(outside))
            raise ValueError(f"action[{place}]: expected -1 to 1, found {action[place]}")
        self._observer.acted(key, action)
        # Double precision, as in the simulator's own network.
        u = action.astype(np.float64)
        self.batch.decide(np.where(u >= 0, 1 + 0.2 * u, 1 / (1 - 0.2 * np.minimum(u, 0))))
        return self._observe()

    def _observe(self) -> Step | None:
        decisions = self.batch.advance()
        if decisions is None:
            self._step = None
            return None
        key = decisions.key
        signal = self.features.signal
        observation, _, _ = self._observer.observe(
            key, decisions.rtt_s, decisions.base_rtt_s, decisions.rate, decisions.probe_lost
        )
        distance = signal.value(decisions.rtt_s / decisions.base_rtt_s, decisions.rate)
        distance -= np.float32(signal.target)
        distance = np.where(decisions.probe_lost, np.maximum(distance, LOST), distance)
        reward = np.where(self._seen[key], -(distance**2), 0).astype(np.float32)
        self._seen[key] = True
        self._step = Step(key, observation, reward, decisions)
        return self._step
