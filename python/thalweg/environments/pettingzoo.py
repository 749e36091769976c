# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One simulation as a PettingZoo environment, parallel or agent by agent."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import pettingzoo
from gymnasium import spaces
from numpy.typing import NDArray

from thalweg.environments.vector import FEATURES, Step, VectorFlows, loaded
from thalweg.features import FeatureSet
from thalweg.sim import Outcome, Scenario

Observation = NDArray[np.float32]
Action = NDArray[np.float32]


def parallel_env(
    scenario: Scenario | str | PathLike[str],
    features: FeatureSet = FEATURES,
    initial: float | str | None = None,
    pending_only: bool = False,
) -> ParallelFlows:
    """The flows of a scenario as agents that decide at once; see :class:`ParallelFlows`."""
    return ParallelFlows(scenario, features, initial, pending_only)


def aec_env(
    scenario: Scenario | str | PathLike[str],
    features: FeatureSet = FEATURES,
    initial: float | str | None = None,
) -> AECFlows:
    """The flows of a scenario as agents that decide in turn; see :class:`AECFlows`."""
    return AECFlows(scenario, features, initial)


class _Flows:
    """Common part of both kinds: names, spaces, seeds."""

    metadata = {"name": "thalweg_flows_v0", "render_modes": [], "is_parallelizable": False}
    render_mode = None

    def __init__(
        self,
        scenario: Scenario | str | PathLike[str],
        features: FeatureSet,
        initial: float | str | None,
    ) -> None:
        scenario = loaded(scenario)
        self._vector = VectorFlows(scenario, features, initial, jobs=1)
        self.possible_agents = [f"flow_{number}" for number in range(scenario.flows)]
        self._numbers = {agent: number for number, agent in enumerate(self.possible_agents)}
        self._made: dict[str, tuple[spaces.Box, spaces.Box]] = {}
        self._seeds = np.random.SeedSequence(0)
        self._step: Step | None = None

    def observation_space(self, agent: str) -> spaces.Box:
        """float32[features.size]; see :mod:`thalweg.environments`. The same object each time."""
        return self._spaces(agent)[0]

    def action_space(self, agent: str) -> spaces.Box:
        """float32[1] in [-1, 1]. The same object each time, so that it can be seeded."""
        return self._spaces(agent)[1]

    def _spaces(self, agent: str) -> tuple[spaces.Box, spaces.Box]:
        if agent not in self._numbers:
            raise KeyError(f"there is no agent {agent}")
        if agent not in self._made:
            seen = self._vector.single_observation_space
            self._made[agent] = (
                spaces.Box(seen.low, seen.high, dtype=np.float32),
                spaces.Box(-1, 1, (1,), np.float32),
            )
        return self._made[agent]

    def outcome(self) -> Outcome:
        """The simulation's measurements. Raises RuntimeError before its end."""
        return self._vector.batch.result(0)

    def _begin(self, seed: int | None) -> list[str]:
        """A fresh simulation; the agents of its first decisions. Without a seed every call
        simulates something else, in an order that the last seed gives."""
        if seed is not None:
            self._seeds = np.random.SeedSequence(seed)
        [child] = self._seeds.spawn(1)
        self._step = self._vector.reset([int(child.generate_state(1, np.uint64)[0])])
        if self._step is None:
            raise ValueError("no flow of the scenario ever has a decision to make")
        return self._pending()

    def _pending(self) -> list[str]:
        return [] if self._step is None else [self.possible_agents[key] for key in self._step.key]

    def _decide(self, actions: dict[str, Action]) -> list[str]:
        """Takes the pending decisions and runs on; returns the agents whose decisions are pending
        then. Those without an action keep their rate: action 0."""
        step = self._step
        if step is None:
            raise RuntimeError("the simulation has ended: reset() begins again")
        zero = np.zeros(1, np.float32)
        given = [actions.get(agent, zero) for agent in self._pending()]
        self._step = self._vector.step(np.asarray(given, np.float32).reshape(len(given), 1))
        return self._pending()

    def _observations(self) -> dict[str, Observation]:
        return {} if self._step is None else dict(zip(self._pending(), self._step.observation))

    def _blank(self) -> dict[str, Observation]:
        return {
            agent: np.zeros(self._vector.features.size, np.float32)
            for agent in self.possible_agents
        }

    def _idle(self) -> dict[str, dict[str, Any]]:
        return {agent: {"pending": False} for agent in self.possible_agents}

    def _rewards(self) -> dict[str, float]:
        return {} if self._step is None else dict(zip(self._pending(), self._step.reward.tolist()))

    def _infos(self) -> dict[str, dict[str, Any]]:
        if self._step is None:
            return {}
        decisions = self._step.decisions
        return {
            agent: {
                "pending": True,
                "time_s": time,
                "rtt_s": rtt,
                "probe_lost": lost,
                "rate_bps": rate,
            }
            for agent, time, rtt, lost, rate in zip(
                self._pending(),
                decisions.time_s.tolist(),
                decisions.rtt_s.tolist(),
                decisions.probe_lost.tolist(),
                decisions.rate_bps.tolist(),
            )
        }


class ParallelFlows(_Flows, pettingzoo.ParallelEnv[str, Observation, Action]):
    """A PettingZoo parallel environment whose agents, the flows, act asynchronously.

    A step runs the simulation until decisions of some flows are pending. :meth:`step` returns all
    agents, as PettingZoo's checker demands; ``info["pending"]`` says whose decisions are pending.
    The others keep their last observation (zeros before the first), with a reward of 0. With
    ``pending_only`` observations, rewards and infos have the pending agents alone: much quicker
    with many flows, and the form that libraries for asynchronous agents expect; PettingZoo's checker
    demands all agents and fails with it. Terminations and truncations still have all.

    :meth:`step` takes actions of pending agents and ignores others. A pending agent without an
    action keeps its rate. At the end of the scenario all agents are truncated at once, with their
    last observation and a reward of 0. Infos of pending agents also have ``time_s``, ``rtt_s``
    (seconds) and ``rate_bps`` of the decision, and ``probe_lost``: whether it follows a lost probe,
    whose loss was known after ``rtt_s``.
    """

    def __init__(
        self,
        scenario: Scenario | str | PathLike[str],
        features: FeatureSet = FEATURES,
        initial: float | str | None = None,
        pending_only: bool = False,
    ) -> None:
        super().__init__(scenario, features, initial)
        self._pending_only = pending_only

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """A fresh simulation; a seed repeats one. There are no options."""
        self._begin(seed)
        self.agents = list(self.possible_agents)
        self._last = self._blank() | self._observations()
        if self._pending_only:
            return self._observations(), self._infos()
        return dict(self._last), self._idle() | self._infos()

    def step(
        self, actions: dict[str, Action]
    ) -> tuple[
        dict[str, Observation],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Decides, and runs on to the next decisions."""
        pending = self._decide(actions)
        agents = self.agents
        if not pending:
            self.agents = []
            return (
                self._last,
                dict.fromkeys(agents, 0.0),
                dict.fromkeys(agents, False),
                dict.fromkeys(agents, True),
                self._idle(),
            )
        observations, rewards, infos = self._observations(), self._rewards(), self._infos()
        self._last.update(observations)
        if not self._pending_only:
            observations = dict(self._last)
            rewards = dict.fromkeys(agents, 0.0) | rewards
            infos = self._idle() | infos
        never = dict.fromkeys(agents, False)
        return observations, rewards, never, dict(never), infos


class AECFlows(_Flows, pettingzoo.AECEnv[str, Observation, Action]):
    """A PettingZoo environment that takes one pending decision after the other.

    The agents, the flows, take turns in the order of their pending decisions; the simulation runs
    on after the last of them. A reward comes with the next decision of a flow. At the end of the
    scenario all agents are truncated.
    Infos: ``pending``, and of those that are ``time_s``, ``rtt_s`` (seconds), ``rate_bps`` and
    ``probe_lost``, as of :class:`ParallelFlows`.
    """

    def __init__(
        self,
        scenario: Scenario | str | PathLike[str],
        features: FeatureSet = FEATURES,
        initial: float | str | None = None,
    ) -> None:
        super().__init__(scenario, features, initial)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """A fresh simulation; a seed repeats one. There are no options."""
        self._queue = self._begin(seed)
        self._actions: dict[str, Action] = {}
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = self._idle() | self._infos()
        self._last = self._blank() | self._observations()
        self.agent_selection = self._queue.pop(0)

    def observe(self, agent: str) -> Observation:
        """The agent's observation at its last pending decision; zeros before its first."""
        return self._last[agent]

    def step(self, action: Action | None) -> None:
        """Decides for ``agent_selection``; None only once it is truncated."""
        agent = self.agent_selection
        if self.truncations[agent]:
            self._was_dead_step(action)
            return
        if action is None:
            raise ValueError(f"action: expected float32[1] in [-1, 1] for {agent}, found None")
        if not self.action_space(agent).contains(np.asarray(action, np.float32)):
            raise ValueError(f"action: expected float32[1] in [-1, 1] for {agent}, found {action}")
        self._actions[agent] = action
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if not self._queue:
            self._run_on()
        if self._queue:
            self.agent_selection = self._queue.pop(0)

    def _run_on(self) -> None:
        """Runs on to the next decisions, once none is pending."""
        self._queue = self._decide(self._actions)
        self._actions = {}
        if not self._queue:
            self.truncations = dict.fromkeys(self.agents, True)
            self.agent_selection = self.agents[0]
            return
        self.infos = self._idle() | self._infos()
        self._last.update(self._observations())
        self.rewards.update(self._rewards())
        self._accumulate_rewards()
