"""The packet simulator as training needs it: flows start at unlike rates.

Controllers that begin alike stay alike, and nothing would be learned about becoming fair. So the
answer to each flow's first probe, which the agent does not see, sets a rate of its own, drawn
log-uniformly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.sim import Batch, Scenario
from thalweg.train.environment import Decisions, Given

#: Rates of the start, shares of the line rate.
START = (0.01, 1.0)


class PacketBatch:
    """See :class:`thalweg.train.environment.Batch`.

    scenarios: scenarios or their files, one a seed.
    start: rates of the start, shares of the line rate.
    """

    def __init__(
        self,
        scenarios: Sequence[str | Scenario],
        seeds: Sequence[int],
        start: tuple[float, float] = START,
        jobs: int = 1,
    ) -> None:
        if not 0 < start[0] <= start[1] <= 1:
            raise ValueError(f"start: {start} is no range within (0, 1]")
        self._batch = Batch(list(scenarios), list(seeds), initial=start[0], jobs=jobs)
        rng = np.random.default_rng(list(seeds))
        low, high = np.log(start)
        drawn = np.exp(rng.uniform(low, high, self._batch.flows))
        # The last bits of exp are the processor's: single precision leaves them out.
        self._start = drawn.astype(np.float32).astype(np.float64)
        self._started = np.zeros(self._batch.flows, np.bool_)
        self._agents: NDArray[np.bool_] | None = None  # which decisions the agent answers
        self._rate: NDArray[np.float64]

    @property
    def flows(self) -> int:
        return self._batch.flows

    def advance(self) -> Decisions | None:
        if self._agents is not None:
            raise RuntimeError("advance() before the last decisions were answered by decide()")
        while (found := self._batch.advance()) is not None:
            key = found.key
            agents = self._started[key]
            if agents.all():
                self._agents, self._rate = agents, found.rate.astype(np.float64)
                return found
            self._started[key] = True
            self._rate = np.where(agents, found.rate, self._start[key])
            if agents.any():
                self._agents = agents
                return Given.some(found, agents)
            self._batch.decide_rate(self._rate)
        return None

    def decide(self, multiplier: NDArray[np.float32]) -> None:
        if self._agents is None:
            raise RuntimeError("decide() without decisions that wait for an answer")
        if self._agents.all():
            self._batch.decide(multiplier)
        else:
            self._rate[self._agents] *= multiplier
            self._batch.decide_rate(np.clip(self._rate, 1e-9, 1.0))
        self._agents = None

    def outcome(self, env: int) -> Mapping[str, float]:
        return self._batch.outcome(env)
