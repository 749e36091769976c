# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The compiled part of :mod:`thalweg.sim`; import it from there."""

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.sim import Outcome

@final
class Scenario:
    """A scenario: a network, its hosts and their traffic. It is immutable and can be pickled.
    ``docs/reference/sim.md`` describes the file.
    """

    @staticmethod
    def load(path: str | PathLike[str]) -> Scenario:
        """Reads and checks a scenario file. Raises OSError where it cannot be read, ValueError with
        ``file:line:column: fault`` where it is not valid."""

    @staticmethod
    def from_text(text: str, file: str | PathLike[str] | None = None) -> Scenario:
        """Checks the text of a scenario, in TOML; ``file`` is for messages only, ``<text>`` if
        there is none. Raises ValueError as :meth:`load` does."""

    def replace(
        self,
        *,
        duration_s: float | None = None,
        warmup_s: float | None = None,
        keys: Sequence[str] | None = None,
    ) -> Scenario:
        """The same with other times, in seconds, and other ``keys``, each ``"KEY=VALUE"`` as for
        ``thalweg-lab sim run --set``: ``"network.base_rtt=5ms"``. Times stay where keys name them.
        Raises ValueError as :meth:`load`, also where times do not fit each other or make more
        packets and samples than a run can keep."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def text(self) -> str:
        """The file's text, as it was read."""

    @property
    def duration_s(self) -> float:
        """Simulated time, seconds."""

    @property
    def warmup_s(self) -> float:
        """The part of the simulated time that is not measured, seconds."""

    @property
    def hosts(self) -> int: ...
    @property
    def sender(self) -> str:
        """What sends at the hosts: "nic" or "linux"."""

    @property
    def flows(self) -> int: ...
    @property
    def line_rate_bps(self) -> int:
        """Rate of the hosts' links, bits per second."""

    @property
    def min_rate_bps(self) -> int:
        """The least rate of a flow, bits per second."""

    @property
    def packet_bytes(self) -> int:
        """Whole data packet on the wire, bytes."""

@final
class Learned:
    """A model file that decides for every flow, within the simulator.

    model: path of the file; docs/reference/model.md defines it, with what it sees and how it decides.
    inference: the arithmetic of the action: ``"float"``, ``"int8"`` (the quantised network, as in
        the kernel) or ``"tree"``. None: the network in floating point where the file has one, else
        its trees.
    target: where ``(inflation - offset) * sqrt(rate / line rate)`` should be, instead of the
        file's. The scales of the error and of its change are divided by as much as the target
        grows: the network sees the distance as a share of the target.
    initial: first rate, as a share of the line rate.

    Raises OSError where the file cannot be read, ValueError where it is no model, or has no
    integers or trees to compute with. It can be pickled, and does not need the file then.
    """

    def __new__(
        cls,
        model: str | PathLike[str],
        inference: str | None = None,
        target: float | None = None,
        initial: float = 0.001,
    ) -> Learned: ...
    @staticmethod
    def from_text(text: str, directory: str | PathLike[str] | None = None) -> Learned:
        """From the notation of the command line: ``"learned:model=FILE,inference=int8"``. The
        file's path is relative to ``directory``, or to where the program runs. Raises ValueError
        for another notation or a file that cannot be read."""

    @property
    def name(self) -> str:
        """The model's name in the file."""

    @property
    def content(self) -> bytes:
        """The file."""

    @property
    def inference(self) -> str:
        """The inference in use: float, int8 or tree."""

    @property
    def target(self) -> float:
        """The target in use, to 2**-24."""

    @property
    def initial(self) -> float:
        """First rate, as a share of the line rate."""

def controllers() -> list[tuple[str, str]]:
    """The controllers by name, each with a line of description."""

def canonical_controller(cc: str | Learned) -> str:
    """A controller as reports write it: its name, and the parameters that differ from the published
    ones. Raises ValueError for an unknown controller."""

def run(
    scenario: Scenario | str | PathLike[str],
    cc: str | Learned | None = None,
    seed: int = 0,
    series_us: float | None = None,
) -> Outcome:
    """Runs a scenario, or the file of one, to its end.

    cc: a name of :func:`controllers`, with parameters if any: ``"hpcc"``,
        ``"swift:base_target_us=25,hop_us=0.5"``, ``"learned:model=FILE"``; or a model. None: ``"dcqcn"``.
    seed: the same scenario, controller and seed give the same outcome, to the last bit.
    series_us: distance of the samples of ``Outcome.series``, microseconds, instead of what the
        scenario says.

    The interpreter's lock is released; Ctrl-C stops the run within some tenths of a second.
    Raises ValueError for an unknown scenario or controller.
    """

@final
class Decisions:
    """Pending decisions, n of them, at most one a flow. They are ordered by simulation, then by
    time. With hosts of the sender "linux" a decision ends a round of the kernel's rules instead of
    a probe: times and rate are what the kernel's model would see, and none is lost. Every array is made when it is first asked for, belongs to the caller and never changes.
    """

    def __len__(self) -> int: ...
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
        """Simulated time at which the answer takes effect, seconds, float64[n]."""

    @property
    def time_ps(self) -> NDArray[np.int64]:
        """The same, exactly, picoseconds, int64[n]."""

    @property
    def rtt_s(self) -> NDArray[np.float32]:
        """Round-trip time of the probe, seconds, float32[n]; for a lost probe the time until its
        loss was known."""

    @property
    def rtt_ps(self) -> NDArray[np.int64]:
        """The same, exactly, picoseconds, int64[n]."""

    @property
    def sent_ps(self) -> NDArray[np.int64]:
        """Time at which the probe left, picoseconds, int64[n]."""

    @property
    def base_rtt_s(self) -> NDArray[np.float32]:
        """Round-trip time through empty queues, seconds, float32[n]."""

    @property
    def base_rtt_ps(self) -> NDArray[np.int64]:
        """The same, exactly, picoseconds, int64[n]."""

    @property
    def rate(self) -> NDArray[np.float32]:
        """The flow's rate as a fraction of ``line_rate_bps``, float32[n]; above 1 only with the
        sender "linux"."""

    @property
    def rate_bps(self) -> NDArray[np.float64]:
        """The flow's rate, bits per second, exactly, float64[n]."""

    @property
    def line_rate_bps(self) -> NDArray[np.float64]:
        """Rate of the sender's link, bits per second, float64[n]; with the sender "linux" the
        rules' reference, 10 Gbit/s."""

    @property
    def acked_bytes(self) -> NDArray[np.float32]:
        """Bytes acknowledged since the flow's last answer, float32[n]; 0 for a lost probe."""

    @property
    def marked_bytes(self) -> NDArray[np.float32]:
        """Acknowledged bytes in packets with a congestion mark, float32[n]."""

    @property
    def lost_bytes(self) -> NDArray[np.float32]:
        """Bytes lost since the flow's last answer, float32[n]; for a lost probe its own alone."""

    @property
    def probe_lost(self) -> NDArray[np.bool_]:
        """Whether the decision follows a lost probe instead of an answer, bool[n]."""

@final
class Batch:
    """Simulations side by side whose decisions come as arrays.

    scenarios: one for each seed, or one for all; scenarios or paths of their files.
    seeds: one for each simulation, at least 0.
    initial: first rate of every flow: "line", or a share of the line rate above 0 and up to 1.
    jobs: threads that simulate; None: as many as the machine has processors. The outcome does not
        depend on it.
    others: a controller, as of :func:`run`, of all flows but the first of each simulation. Then
        decisions are those of flow 0 alone, and ``initial`` is its first rate.
    signal: target and offset of the model's signal. Needed with hosts of the sender "linux", where
        the rules of ``thalweg-rl`` stand around the decisions: they ask where the kernel would ask
        its model, limit the factor to 1/1.2 to 1.2, and bound the rate. ``initial`` is not given
        there.

    There is no common clock: each simulation runs on until it needs a decision. Each gives the run
    of a controller in the simulator that decides alike. The interpreter's lock is released while
    simulations run. Raises ValueError for arguments that do not fit together, and the errors of
    :meth:`Scenario.load`.

    ::

        batch = Batch("scenarios/sim/many-to-one-64.toml", seeds=range(8), initial=1 / 64)
        while (decisions := batch.advance()) is not None:
            batch.decide(policy(decisions.rtt_s / decisions.base_rtt_s, decisions.rate))
        print([batch.outcome(env) for env in range(batch.envs)])
    """

    def __new__(
        cls,
        scenarios: Scenario | str | PathLike[str] | Iterable[Scenario | str | PathLike[str]],
        seeds: Sequence[int],
        initial: str | float | None = None,
        jobs: int | None = None,
        others: str | Learned | None = None,
        signal: tuple[float, float] | None = None,
    ) -> Batch: ...
    @property
    def flows(self) -> int:
        """Flows of all simulations together: keys are below this."""

    @property
    def envs(self) -> int:
        """Number of simulations."""

    @property
    def jobs(self) -> int:
        """Threads that simulate."""

    @property
    def decisions(self) -> int:
        """Decisions handed out so far."""

    def advance(self) -> Decisions | None:
        """Runs on until decisions are pending; None once every simulation has ended. A decision
        that got no answer leaves the flow's rate as it is."""

    def decide(self, multiplier: ArrayLike) -> None:
        """Answers the decisions of the last :meth:`advance`, in their order, with positive factors
        of the flows' rates, [n], float32 or convertible to float64. The rate stays between the
        scenario's least rate and the line rate. A second call before the next :meth:`advance`
        replaces the answers. Raises ValueError for another number of factors and for one that is
        not positive, TypeError for anything but a vector of numbers; then no answer holds."""

    def decide_rate(self, rate: ArrayLike) -> None:
        """As :meth:`decide`, with the flows' new rates, as shares of their line rates."""

    def outcome(self, env: int) -> dict[str, float]:
        """Figures of one simulation that has ended: ``su`` (egress / line rate, %), ``fr`` and
        ``fr_host`` (smallest / largest rate of a flow and of a host, %), ``jain`` (1/n to 1),
        ``ql_us`` and ``ql_p99_us`` (waiting, mean and 99th percentile, microseconds;
        infinite where nothing arrived), ``loss`` (% of line rate), ``dropped_gbps``. Raises
        RuntimeError if it has not ended, IndexError if there is none."""

    def result(self, env: int) -> Outcome:
        """All measurements of one simulation that has ended; raises as :meth:`outcome`."""
