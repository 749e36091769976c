"""Simulators as training sees them: many simulations whose decisions come as batches.

:class:`PacketBatch` and the fluid model (:mod:`thalweg.train.fluid`) are such environments. There
is no common clock or step: each flow decides when its probe is answered, so successive batches hold
different flows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from thalweg.features import Signal

if TYPE_CHECKING:
    from thalweg.sim import Scenario

#: First rates of flows of the packet simulator, shares of the line rate.
START = (0.01, 1.0)


class Decisions(Protocol):
    """Pending decisions, n of them, at most one a flow."""

    @property
    def env(self) -> NDArray[np.int32]:
        """Simulation, int32[n]."""

    @property
    def flow(self) -> NDArray[np.int32]:
        """Flow within its simulation, int32[n]."""

    @property
    def key(self) -> NDArray[np.int32]:
        """Flow among all of the batch, 0 up to ``Batch.flows``, int32[n]."""

    @property
    def time_s(self) -> NDArray[np.float64]:
        """Simulated time, seconds, float64[n]."""

    @property
    def rtt_s(self) -> NDArray[np.float32]:
        """Round-trip time of the probe, seconds, float32[n]; for a lost probe the time until its
        loss was known."""

    @property
    def base_rtt_s(self) -> NDArray[np.float32]:
        """Round-trip time through empty queues, seconds, float32[n]."""

    @property
    def rate(self) -> NDArray[np.float32]:
        """The flow's rate as a fraction of its line rate, in (0, 1], float32[n]."""

    @property
    def acked_bytes(self) -> NDArray[np.float32]:
        """Bytes acknowledged since the flow's last answer, float32[n]; 0 for a lost probe, whose
        bytes the next answer includes."""

    @property
    def marked_bytes(self) -> NDArray[np.float32]:
        """Acknowledged bytes with a congestion mark, float32[n]."""

    @property
    def lost_bytes(self) -> NDArray[np.float32]:
        """Bytes lost since the flow's last answer, float32[n]; a lost probe its own."""

    @property
    def probe_lost(self) -> NDArray[np.bool_]:
        """Whether the decision follows a lost probe instead of an answer, bool[n]."""


@dataclass(frozen=True, eq=False)
class Given:
    """:class:`Decisions` made in Python; those of ``thalweg.sim`` have more."""

    env: NDArray[np.int32]
    flow: NDArray[np.int32]
    key: NDArray[np.int32]
    time_s: NDArray[np.float64]
    rtt_s: NDArray[np.float32]
    base_rtt_s: NDArray[np.float32]
    rate: NDArray[np.float32]
    acked_bytes: NDArray[np.float32]
    marked_bytes: NDArray[np.float32]
    lost_bytes: NDArray[np.float32]
    probe_lost: NDArray[np.bool_]

    @classmethod
    def some(cls, decisions: Decisions, chosen: NDArray[np.bool_]) -> Given:
        """Those of ``decisions`` that are ``chosen``, bool[n]."""
        return cls(*(getattr(decisions, field.name)[chosen] for field in fields(cls)))


@runtime_checkable
class Batch(Protocol):
    """Simulations side by side."""

    @property
    def flows(self) -> int:
        """Flows of all simulations together: keys are below this."""
        ...

    def advance(self) -> Decisions | None:
        """Runs on until decisions are pending; None once every simulation has ended."""
        ...

    def decide(self, multiplier: NDArray[np.float32]) -> None:
        """Answers the decisions of the last :meth:`advance`, in their order, with factors of the
        flows' rates, float32[n]."""
        ...

    def outcome(self, env: int) -> Mapping[str, float]:
        """Figures of one simulation that has ended, among them ``su`` (egress / line rate, %),
        ``fr`` (smallest / largest rate of a flow, %), ``ql_us`` (mean queueing delay, microseconds,
        infinite where nothing arrived) and ``loss`` (% of line rate)."""
        ...


#: Makes fresh simulations, one a seed. The maker chooses their scenarios, which depend on the seeds
#: alone.
MakeBatch = Callable[[NDArray[np.int64]], Batch]


class PacketBatch:
    """The packet simulator, with flows that start at unlike rates. Needs the native module.

    Flows that begin alike stay alike, and would teach nothing about fairness. So each flow's first
    probe, which the agent does not see, is answered by a rate of its own, drawn log-uniformly.

    scenarios: scenarios or their files, one a seed.
    start: range of the first rates, shares of the line rate.
    """

    def __init__(
        self,
        scenarios: Sequence[str | Scenario],
        seeds: Sequence[int],
        start: tuple[float, float] = START,
        jobs: int = 1,
    ) -> None:
        from thalweg import sim

        if not 0 < start[0] <= start[1] <= 1:
            raise ValueError(f"start: {start} is no range within (0, 1]")
        self._batch = sim.Batch(list(scenarios), list(seeds), initial=start[0], jobs=jobs)
        rng = np.random.default_rng(list(seeds))
        low, high = np.log(start)
        drawn = np.exp(rng.uniform(low, high, self._batch.flows))
        # The last bits of exp depend on the processor; single precision drops them.
        self._start = drawn.astype(np.float32).astype(np.float64)
        self._started = np.zeros(self._batch.flows, np.bool_)
        self._agents: NDArray[np.bool_] | None = None  # decisions that the agent answers
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


#: What :func:`varied` draws: least and greatest base round-trip time, seconds, and rate of the
#: link, bits per second.
BASE_RTT_S, LINK_BPS = (2e-3, 8e-3), (100e6, 2e9)


def varied(scenario: Scenario, seed: int) -> Scenario:
    """The scenario with another round-trip time and rate, log-uniformly from :data:`BASE_RTT_S`
    and :data:`LINK_BPS`, and with or without segmentation offload, merged packets and late ACKs,
    mostly with. The queue holds 50 ms, the shaper's bucket 1 ms, two packets at least, and flows
    start within 50 ms."""
    rng = np.random.default_rng(seed)
    rtt_us = round(float(np.exp(rng.uniform(*np.log(BASE_RTT_S)))) * 1e6)
    kbit = round(float(np.exp(rng.uniform(*np.log(LINK_BPS)))) / 1e3)
    offload, merged, late = rng.random(3) < (0.7, 0.7, 0.9)
    return scenario.replace(
        keys=[
            f"network.base_rtt={rtt_us}us",
            f"link.delay={rtt_us // 5}us",
            f"link.rate={kbit}kbit",
            f"link.queue={kbit * 50 // 8}b",
            f"link.bucket={max(kbit // 8, 3028)}b",
            "hosts.start_spread=50ms",
            f"hosts.linux.offload={'true' if offload else 'false'}",
            f"hosts.linux.gro={'20us' if merged else '0s'}",
            f"hosts.linux.delayed_ack={'40ms' if late else '0s'}",
        ]
    )


def maker(
    names: Sequence[str], duration_s: float, signal: Signal | None = None, vary: bool = False
) -> MakeBatch:
    """Makes batches in which the scenarios take turns: simulation i runs scenario
    ``names[i % len(names)]``.

    A name is ``fluid:N``, N flows at one bottleneck of the fluid model for ``duration_s``, or the
    path of a scenario file of the packet simulator, which has its own duration. All are of one
    kind: fluid, or files with hosts of one sender. Those of the sender "linux" need the ``signal``
    that the kernel's rules use; with ``vary`` each simulation is of another network
    (:func:`varied`). Raises ValueError for any other name.
    """
    from thalweg.train.fluid import Bottleneck, FluidBatch  # it imports this module

    if not names:
        raise ValueError("scenarios: none named; expected at least one, such as fluid:2")
    fluid = [name.startswith("fluid:") for name in names]
    if any(fluid) and not all(fluid):
        raise ValueError(f"scenarios: {', '.join(names)}: files and the fluid model cannot mix")
    bottlenecks = []
    for name in names:
        flows = name.removeprefix("fluid:")
        if flows == name:
            if not Path(name).is_file():
                raise ValueError(f"scenarios: {name!r} is neither fluid:N nor a file")
        elif not flows.isdecimal() or int(flows) < 1:
            raise ValueError(f"scenarios: {name!r}: expected fluid:N with N at least 1")
        else:
            bottlenecks.append(
                Bottleneck(int(flows), duration_s=duration_s, warm_up_s=duration_s / 2)
            )

    is_linux = sender(names) == "linux"
    if is_linux and signal is None:
        raise ValueError(
            f"scenarios: {names[0]!r} has hosts of the sender linux; only adpg trains with these"
        )
    if vary and not is_linux:
        raise ValueError(f"vary: expected scenarios of the sender linux, found {names[0]!r}")

    def make(seeds: NDArray[np.int64]) -> Batch:
        turns = [i % len(names) for i in range(len(seeds))]
        if bottlenecks:
            return FluidBatch([bottlenecks[turn] for turn in turns], seeds.tolist())
        if is_linux and signal is not None:
            from thalweg import sim

            chosen = [sim.Scenario.load(names[turn]) for turn in turns]
            if vary:
                chosen = [varied(one, int(seed)) for one, seed in zip(chosen, seeds, strict=True)]
            rules = (signal.target, signal.offset)
            return sim.Batch(chosen, seeds.tolist(), jobs=1, signal=rules)
        return PacketBatch([names[turn] for turn in turns], seeds.tolist())

    return make


def sender(names: Sequence[str]) -> str:
    """What sends in the scenarios ``names``, as for :func:`maker`: "nic", which the fluid model
    counts as, or "linux". Raises ValueError for both at once."""
    if names[0].startswith("fluid:"):
        return "nic"
    from thalweg.sim import Scenario

    found = {Scenario.load(name).sender for name in names}
    if len(found) > 1:
        raise ValueError(f"scenarios: {', '.join(names)}: senders linux and nic cannot mix")
    return found.pop()


def column(name: str) -> str:
    """A scenario's name as part of a column's name in the curves."""
    return Path(name).stem if "/" in name or name.endswith(".toml") else name.replace(":", "_")


def seeds(seed: int, purpose: int, number: int, count: int) -> NDArray[np.int64]:
    """Seeds of the simulations of one episode (purpose 0) or evaluation (purpose 1)."""
    words = np.random.SeedSequence([seed, purpose, number]).generate_state(count, np.uint64)
    return (words >> np.uint64(1)).astype(np.int64)
