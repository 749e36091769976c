"""Rollouts from many simulations: in this process, or spread over a Ray cluster.

Both ways run the same :class:`Collector`; only where it lives differs, so they give the same
rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.train.environment import Batch, Decisions, MakeBatch
from thalweg.train.rollouts import Rollouts


class Diverged(Exception):
    """Training came to numbers that are not finite; the last checkpoint is from before."""


class Agent(Protocol):
    """Answers decisions, and says what of them training needs."""

    #: What it records of a decision: name and shape, as for :class:`Rollouts`.
    fields: dict[str, tuple[int, ...]]

    def reset(self, keys: int, seed: int) -> None:
        """New simulations with this many flows; all that is stochastic comes from the seed."""
        ...

    def load(self, policy: Any) -> None:
        """Decides by these parameters from now on."""
        ...

    def memory(self) -> NDArray[np.float32]:
        """What the policy remembers of each flow, [keys, memory]."""
        ...

    def decide(self, decisions: Decisions) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The multipliers [n], and the fields."""
        ...


@dataclass(frozen=True)
class Collected:
    """Rollouts of some flows. ``data`` is [keys, capacity, ...] by field, ``length`` [keys] the
    decisions in each row, ``memory`` [keys, memory] what the policy remembered before them.
    ``ended``: the simulations are over."""

    data: dict[str, NDArray[np.float32]]
    length: NDArray[np.int64]
    memory: NDArray[np.float32]
    ended: bool

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self.data[name]

    def mask(self, drop_last: int = 0) -> NDArray[np.bool_]:
        """As :meth:`Rollouts.mask`."""
        capacity = next(iter(self.data.values())).shape[1]
        return np.arange(capacity) < (self.length - drop_last)[:, None]


class Collector:
    """Runs one batch of simulations and cuts what happens into rollouts.

    length: decisions per flow on average that make a rollout. A flow that decides more often than
        others may have up to twice as many.
    """

    def __init__(self, make: MakeBatch, agent: Agent, length: int) -> None:
        self._make, self._agent, self._length = make, agent, length
        self._batch: Batch | None = None

    def start(self, seeds: NDArray[np.int64]) -> None:
        """Fresh simulations, one a seed."""
        self._batch = self._make(seeds)
        flows = self._batch.flows
        self._agent.reset(flows, int(seeds[0]))
        self._rollouts = Rollouts(flows, 2 * self._length, self._agent.fields)
        self._ended = False

    def collect(self, policy: Any) -> Collected:
        """The next rollouts, by this policy; shorter ones, or none, where the simulations end."""
        batch, rollouts = self._batch, self._rollouts
        if batch is None:
            raise RuntimeError("collect() before start()")
        self._agent.load(policy)
        rollouts.clear()
        memory = self._agent.memory().copy()
        enough = batch.flows * self._length
        while not self._ended and rollouts.room() and rollouts.decisions() < enough:
            decisions = batch.advance()
            if decisions is None:
                self._ended = True
                break
            multiplier, record = self._agent.decide(decisions)
            if not np.isfinite(multiplier).all():
                raise Diverged(_blame(decisions, multiplier))
            rollouts.append(decisions.key, **record)
            batch.decide(multiplier)
        data = {name: rollouts[name].copy() for name in self._agent.fields}
        return Collected(data, rollouts.length.copy(), memory, self._ended)

    def finish(self, policy: Any) -> list[dict[str, float]]:
        """Runs the simulations to their end by this policy, keeping nothing; their outcomes."""
        batch = self._batch
        if batch is None:
            raise RuntimeError("finish() before start()")
        self._agent.load(policy)
        envs = 0
        while (decisions := batch.advance()) is not None:
            envs = max(envs, int(decisions.env.max()) + 1)
            batch.decide(self._agent.decide(decisions)[0])
        self._ended = True
        return [dict(batch.outcome(env)) for env in range(envs)]


def _blame(decisions: Decisions, multiplier: NDArray[np.float32]) -> str:
    first = int(np.flatnonzero(~np.isfinite(multiplier))[0])
    return (
        f"the multiplier of flow {decisions.flow[first]} of simulation {decisions.env[first]} is "
        f"{multiplier[first]}, after a round-trip time of {decisions.rtt_s[first]} s at rate "
        f"{decisions.rate[first]}"
    )


MakeCollector = Callable[[], Collector]


class Pool(Protocol):
    """Some collectors that work on the same policy."""

    def start(self, seeds: NDArray[np.int64]) -> None:
        """Fresh simulations; the seeds are shared out evenly."""
        ...

    def collect(self, policy: Any) -> Collected:
        """The rollouts of all."""
        ...


def _join(parts: Sequence[Collected]) -> Collected:
    return Collected(
        {name: np.concatenate([part.data[name] for part in parts]) for name in parts[0].data},
        np.concatenate([part.length for part in parts]),
        np.concatenate([part.memory for part in parts]),
        all(part.ended for part in parts),
    )


class LocalPool:
    """Collectors in this process, one after the other."""

    def __init__(self, make: MakeCollector, workers: int = 1) -> None:
        self._collectors = [make() for _ in range(workers)]

    def start(self, seeds: NDArray[np.int64]) -> None:
        for collector, share in zip(self._collectors, np.split(seeds, len(self._collectors))):
            collector.start(share)

    def collect(self, policy: Any) -> Collected:
        return _join([collector.collect(policy) for collector in self._collectors])


class RayPool:
    """Collectors as actors of a Ray cluster, one CPU each. Needs ``ray``, and a cluster that
    ``ray.init`` has joined."""

    def __init__(self, make: MakeCollector, workers: int) -> None:
        import ray

        self._ray = ray
        actor: Any = ray.remote(num_cpus=1)(_RemoteCollector)
        self._actors: list[Any] = [actor.remote(make) for _ in range(workers)]

    def start(self, seeds: NDArray[np.int64]) -> None:
        shares = np.split(seeds, len(self._actors))
        self._ray.get([a.start.remote(share) for a, share in zip(self._actors, shares)])

    def collect(self, policy: Any) -> Collected:
        shared = self._ray.put(policy)
        return _join(self._ray.get([actor.collect.remote(shared) for actor in self._actors]))

    def close(self) -> None:
        """Ends the actors."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []


class _RemoteCollector:
    """Builds its collector where it runs."""

    def __init__(self, make: MakeCollector) -> None:
        self._collector = make()

    def start(self, seeds: NDArray[np.int64]) -> None:
        self._collector.start(seeds)

    def collect(self, policy: Any) -> Collected:
        return self._collector.collect(policy)
