# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One flow among flows of a known controller, as a Gymnasium environment: ``thalweg/OneFlow-v0``."""

from __future__ import annotations

from os import PathLike
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.environments.vector import Step, VectorFlows, loaded
from thalweg.features import FeatureSet, Signal
from thalweg.sim import Decisions, Learned, Outcome, Scenario

#: The agent and three others send to one host for 10 ms: some 700 decisions.
SCENARIO = """
name = "one-of-four"
description = "Four flows from four hosts to one."
duration = "10ms"
warmup = "2ms"
topology = { kind = "star", hosts = 5 }
link = { rate = "100gbit", delay = "1us", queue = "1mib" }
network = { base_rtt = "12us" }
hosts = { start_spread = "100us" }
workload = { kind = "many-to-one", flows = 4 }
"""

#: Default observation. Flows of Swift keep a queue in which a quarter of the rate meets this target.
FEATURES = FeatureSet(signal=Signal(target=0.4, offset=1.0))

#: What the reward is made of.
OBJECTIVES = ("target", "aurora")


class OneFlow(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """The first flow of a scenario is the agent; a controller of the simulator has all others.

    A step ends with the agent's next decision: its next probe is answered, or known to be lost.

    scenario: a Scenario or the path of its file. None: four flows to one host at 100 Gbit/s.
    others: their controller, as of :func:`thalweg.sim.run`; it may need more of the scenario, such
        as ``ecn``.
    objective: the reward, see below.
    features: the observation, and the target of the reward. The default target, 0.4, is met by a
        fair share of the default scenario.
    initial: the agent's first rate, a share of the line rate.

    - Observation and action: as of :mod:`thalweg.environments`.
    - Reward of ``"target"``: as there, for the decision before. Of ``"aurora"``: 5 x - 0.1 infl -
      2 loss, with the rate x and the lost share loss since the decision before, shares of 1, and
      infl, the round-trip time over that of empty queues; it is selfish, as in
      :mod:`thalweg.train.aurora`.
    - ``terminated``: all data of a flow that has an end has arrived. ``truncated``: the scenario's
      time is over. Both come with the last observation again, and a reward of 0.
    - ``reset(seed=N)`` repeats a simulation; ``reset()`` goes on to the next of a sequence that the
      last seed began. There are no options.
    - A copy (``pickle``, ``copy.deepcopy``) goes on where the original is. It repeats the simulation so far.
    - Infos: ``time_s``, ``rtt_s`` (seconds), ``rate_bps``, ``probe_lost`` of the decision; at the
      end none.

    Raises OSError or ValueError for arguments that make no environment.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        scenario: Scenario | str | PathLike[str] | None = None,
        others: str | Learned = "swift",
        objective: str = "target",
        features: FeatureSet = FEATURES,
        initial: float | str = 0.1,
        render_mode: None = None,
    ) -> None:
        if render_mode is not None:
            raise ValueError(f"render_mode: expected None, found {render_mode!r}")
        if objective not in OBJECTIVES:
            expected = " or ".join(OBJECTIVES)
            raise ValueError(f"objective: expected {expected}, found {objective!r}")
        if not isinstance(features, FeatureSet):
            raise ValueError(f"features: expected a FeatureSet, found {features!r}")
        scenario = Scenario.from_text(SCENARIO) if scenario is None else loaded(scenario)
        self._vector = VectorFlows(scenario, features, initial, jobs=1, others=others)
        # Faults of the other arguments belong here, not to reset().
        self._vector.reset([0])
        self._objective = objective
        self._step: Step | None = None
        self._seed: int | None = None
        self._actions: list[NDArray[np.float32]] = []
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def outcome(self) -> Outcome:
        """The simulation's measurements, of all flows. Raises RuntimeError before its end."""
        return self._vector.batch.result(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """A fresh simulation, up to the agent's first decision."""
        super().reset(seed=seed)
        self._begin(int(self.np_random.integers(2**63)))
        if self._step is None:
            raise ValueError("scenario: expected a first flow that sends before its end")
        self._last = self._step.observation[0]
        return self._last.copy(), _info(self._step.decisions)

    def step(
        self, action: ArrayLike
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Decides, and runs on to the agent's next decision. Raises ValueError for an action that
        is not float32[1] in [-1, 1], RuntimeError where the simulation has ended."""
        if self._step is None:
            raise RuntimeError("the simulation has ended: reset() begins again")
        action = np.array(action, np.float32)
        self._step = self._vector.step(action)
        self._actions.append(action)
        if self._step is None:
            terminated = 0 in self.outcome().completion_flow
            return self._last.copy(), 0.0, terminated, not terminated, {}
        self._last = self._step.observation[0]
        reward = (
            float(self._step.reward[0])
            if self._objective == "target"
            else _aurora(self._step.decisions)
        )
        return self._last.copy(), reward, False, False, _info(self._step.decisions)

    def _begin(self, seed: int) -> None:
        self._seed, self._actions = seed, []
        self._step = self._vector.reset([seed])

    def __getstate__(self) -> dict[str, Any]:
        """All but the simulation, which is the same again after the same actions."""
        return {name: value for name, value in self.__dict__.items() if name != "_step"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._step = None
        actions = self._actions
        if self._seed is not None:
            self._begin(self._seed)
            for action in actions:
                self._step = self._vector.step(action)
            self._actions = actions


def _info(decisions: Decisions) -> dict[str, Any]:
    return {
        "time_s": float(decisions.time_s[0]),
        "rtt_s": float(decisions.rtt_s[0]),
        "rate_bps": float(decisions.rate_bps[0]),
        "probe_lost": bool(decisions.probe_lost[0]),
    }


def _aurora(decisions: Decisions) -> float:
    acked, lost = float(decisions.acked_bytes[0]), float(decisions.lost_bytes[0])
    loss = lost / (acked + lost) if lost else 0.0
    inflation = float(decisions.rtt_s[0] / decisions.base_rtt_s[0])
    return 5 * float(decisions.rate[0]) * (1 - loss) - 0.1 * inflation - 2 * loss


gymnasium.register("thalweg/OneFlow-v0", entry_point="thalweg.environments.one:OneFlow")
