"""What training needs of a simulator: many simulations whose decisions come as batches.

The packet simulator (``thalweg.sim.Batch``) and the fluid model (:mod:`thalweg.train.fluid`)
both are such environments. There is no common clock and no common step: each flow decides when
its probe has been answered, so successive batches hold different flows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Decisions(Protocol):
    """Decisions that wait for an answer, n of them; a flow appears at most once."""

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
        """Round-trip time that the probe saw, seconds, float32[n]; of a lost one, how long after
        it left its loss was known."""

    @property
    def base_rtt_s(self) -> NDArray[np.float32]:
        """Round-trip time through empty queues, seconds, float32[n]."""

    @property
    def rate(self) -> NDArray[np.float32]:
        """The flow's rate as a fraction of its line rate, in (0, 1], float32[n]."""

    @property
    def acked_bytes(self) -> NDArray[np.float32]:
        """Acknowledged since the flow's last answer, bytes, float32[n]. Where the probe was lost
        0: the next answer tells of all since the last."""

    @property
    def marked_bytes(self) -> NDArray[np.float32]:
        """Marked of those acknowledged, bytes, float32[n]."""

    @property
    def lost_bytes(self) -> NDArray[np.float32]:
        """Lost since the flow's last answer, bytes, float32[n]; a lost probe itself."""

    @property
    def probe_lost(self) -> NDArray[np.bool_]:
        """Whether the decision is due to a lost probe, not to an answer, bool[n]."""


@dataclass(frozen=True, eq=False)
class Given:
    """:class:`Decisions` that were put together in Python; those of ``thalweg.sim`` have more."""

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
        """Runs on until decisions wait for an answer; None once every simulation has ended."""
        ...

    def decide(self, multiplier: NDArray[np.float32]) -> None:
        """Answers the decisions of the last :meth:`advance`, in their order: what each flow's
        rate is multiplied by, float32[n]."""
        ...

    def outcome(self, env: int) -> Mapping[str, float]:
        """Figures of one simulation that has ended, among them ``su`` (egress / line rate, %),
        ``fr`` (smallest / largest rate of a flow, %), ``ql_us`` (mean waiting, microseconds)
        and ``loss`` (% of line rate)."""
        ...


#: Makes fresh simulations from seeds, one simulation a seed; which scenarios they run is the
#: maker's business, but it must depend on nothing else.
MakeBatch = Callable[[NDArray[np.int64]], Batch]
