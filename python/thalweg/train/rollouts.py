"""Rollouts of flows whose decisions come interleaved, from many simulations: in this process, or
spread over a Ray cluster.

Each flow has its own row, found by its key, and grows by its own decisions only. Rows differ in
length, because flows with a shorter round-trip time decide more often; computations on them use
:meth:`Rollouts.mask`. Both run the same :class:`Collector`, so both give the same rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.train.environment import Batch, Decisions, MakeBatch


class Diverged(Exception):
    """Training reached numbers that are not finite; the last checkpoint is older."""


@dataclass
class Rollouts:
    """Rows of decisions, one row a flow.

    data: [keys, capacity, ...] by field, zero beyond each row's length. length: [keys], the
    decisions in each row. memory: [keys, memory], the policy's memory before them. ended: whether
    the simulations are over.
    """

    data: dict[str, NDArray[np.float32]]
    length: NDArray[np.int64]
    memory: NDArray[np.float32]
    ended: bool = False

    @classmethod
    def empty(
        cls,
        keys: int,
        capacity: int,
        fields: Mapping[str, tuple[int, ...]],
        memory: NDArray[np.float32] | None = None,
    ) -> Rollouts:
        """Rows that hold ``capacity`` decisions each. ``fields``: fields of a decision by name,
        with the shape of one entry (() for a number)."""
        return cls(
            {n: np.zeros((keys, capacity, *shape), np.float32) for n, shape in fields.items()},
            np.zeros(keys, np.int64),
            np.zeros((keys, 0), np.float32) if memory is None else memory,
        )

    @classmethod
    def joined(cls, parts: Sequence[Rollouts]) -> Rollouts:
        """The rows of all parts, one after the other."""
        return cls(
            {name: np.concatenate([part.data[name] for part in parts]) for name in parts[0].data},
            np.concatenate([part.length for part in parts]),
            np.concatenate([part.memory for part in parts]),
            all(part.ended for part in parts),
        )

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """All rows of a field."""
        return self.data[name]

    @property
    def capacity(self) -> int:
        """Decisions that a row holds."""
        return next(iter(self.data.values())).shape[1]

    def append(self, key: NDArray[np.integer], **values: ArrayLike) -> None:
        """One decision for each of the flows ``key``, each at most once; every field.

        Raises IndexError if a row is full.
        """
        if values.keys() != self.data.keys():
            raise KeyError(f"given {sorted(values)}, expected {sorted(self.data)}")
        at = self.length[key]
        for name, value in values.items():
            self.data[name][key, at] = value
        self.length[key] += 1

    def room(self) -> bool:
        """Whether every row can take another decision."""
        return bool(self.length.max(initial=0) < self.capacity)

    def mask(self, drop_last: int = 0) -> NDArray[np.bool_]:
        """The entries that count, [keys, capacity]: all but the last ``drop_last`` of each row."""
        return np.arange(self.capacity) < (self.length - drop_last)[:, None]


def outcomes(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """``values`` [keys, capacity] one decision later: entry t is that of decision t + 1, the last
    is 0. Use the mask without each row's last entry."""
    after = np.zeros_like(values)
    after[:, :-1] = values[:, 1:]
    return after


class Agent(Protocol):
    """Answers decisions, and records the fields that training needs."""

    #: Fields that it records of a decision: name and shape, as for :meth:`Rollouts.empty`.
    fields: dict[str, tuple[int, ...]]

    def reset(self, keys: int, seed: int) -> None:
        """New simulations with this many flows; all random numbers come from the seed."""
        ...

    def load(self, policy: Any) -> None:
        """Decides by these parameters from now on."""
        ...

    def memory(self) -> NDArray[np.float32]:
        """The policy's memory of each flow, [keys, memory]."""
        ...

    def decide(self, decisions: Decisions) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The multipliers [n], and the fields."""
        ...


class Collector:
    """Runs one batch of simulations and cuts its decisions into rollouts.

    length: mean decisions per flow in a rollout. A flow that decides more often than others may
        have up to twice as many.
    """

    def __init__(self, make: MakeBatch, agent: Agent, length: int) -> None:
        self._make, self._agent, self._length = make, agent, length
        self._batch: Batch | None = None

    def start(self, seeds: NDArray[np.int64]) -> None:
        """Fresh simulations, one a seed."""
        self._batch = self._make(seeds)
        self._agent.reset(self._batch.flows, int(seeds[0]))
        self._ended = False

    def collect(self, policy: Any) -> Rollouts:
        """The next rollouts, by this policy; shorter ones, or none, where the simulations end."""
        batch, agent = self._started(policy)
        memory = agent.memory().copy()
        rollouts = Rollouts.empty(batch.flows, 2 * self._length, agent.fields, memory)
        enough = batch.flows * self._length
        while not self._ended and rollouts.room() and rollouts.length.sum() < enough:
            decisions = batch.advance()
            if decisions is None:
                self._ended = True
                break
            multiplier, record = agent.decide(decisions)
            if not np.isfinite(multiplier).all():
                raise Diverged(_blame(decisions, multiplier))
            rollouts.append(decisions.key, **record)
            batch.decide(multiplier)
        rollouts.ended = self._ended
        return rollouts

    def finish(self, policy: Any) -> list[dict[str, float]]:
        """Runs the simulations to their end by this policy, without rollouts; returns their
        outcomes."""
        batch, agent = self._started(policy)
        envs = 0
        while (decisions := batch.advance()) is not None:
            envs = max(envs, int(decisions.env.max()) + 1)
            batch.decide(agent.decide(decisions)[0])
        self._ended = True
        return [dict(batch.outcome(env)) for env in range(envs)]

    def _started(self, policy: Any) -> tuple[Batch, Agent]:
        if self._batch is None:
            raise RuntimeError("start() comes first")
        self._agent.load(policy)
        return self._batch, self._agent


def _blame(decisions: Decisions, multiplier: NDArray[np.float32]) -> str:
    first = int(np.flatnonzero(~np.isfinite(multiplier))[0])
    return (
        f"the multiplier of flow {decisions.flow[first]} of simulation {decisions.env[first]} is "
        f"{multiplier[first]}, after a round-trip time of {decisions.rtt_s[first]} s at rate "
        f"{decisions.rate[first]}"
    )


class LocalPool:
    """Collectors that work on the same policy, in this process, one after the other; the parameters
    as of :class:`Collector`."""

    def __init__(
        self, make: MakeBatch, agent: Callable[[], Agent], length: int, workers: int = 1
    ) -> None:
        self._collectors = [Collector(make, agent(), length) for _ in range(workers)]

    def start(self, seeds: NDArray[np.int64]) -> None:
        """Fresh simulations; the seeds are shared out evenly."""
        for collector, share in zip(self._collectors, np.split(seeds, len(self._collectors))):
            collector.start(share)

    def collect(self, policy: Any) -> Rollouts:
        """The rollouts of all."""
        return Rollouts.joined([collector.collect(policy) for collector in self._collectors])


class RayPool:
    """As :class:`LocalPool`, of actors of a Ray cluster, one CPU each. Needs ``ray``, and a cluster
    that ``ray.init`` has joined. The actors end when the pool is dropped."""

    def __init__(
        self, make: MakeBatch, agent: Callable[[], Agent], length: int, workers: int
    ) -> None:
        import ray

        self._ray = ray
        actor: Any = ray.remote(num_cpus=1)(Collector)
        self._actors = [actor.remote(make, agent(), length) for _ in range(workers)]

    def start(self, seeds: NDArray[np.int64]) -> None:
        shares = np.split(seeds, len(self._actors))
        self._ray.get([a.start.remote(share) for a, share in zip(self._actors, shares)])

    def collect(self, policy: Any) -> Rollouts:
        shared = self._ray.put(policy)
        return Rollouts.joined(self._ray.get([a.collect.remote(shared) for a in self._actors]))
