# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Simulations to be judged by: what each is, where they run, and what is kept of them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import json
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import thalweg._native
from thalweg.sim import Learned, Outcome, Scenario, run

#: What of an outcome is kept: numbers by name, None where a run has none.
Row = dict[str, float | None]

#: A finished cell: its row, or what went wrong.
Finished = tuple["Cell", Row | Exception]


@dataclass(frozen=True)
class Contender:
    """Who is judged. ``label`` is for readers and different for each; ``cc`` is the name of a
    controller of the simulator with its parameters, or a model."""

    label: str
    cc: str | Learned

    @functools.cached_property
    def identity(self) -> str:
        """Different whenever its decisions may be."""
        if isinstance(self.cc, str):
            return self.cc
        content = hashlib.sha256(self.cc.content).hexdigest()
        return f"{content} {self.cc.inference} {self.cc.target} {self.cc.initial}"


@dataclass(frozen=True)
class Cell:
    """One simulation."""

    scenario: Scenario
    contender: Contender
    seed: int

    @functools.cached_property
    def key(self) -> str:
        """Different whenever the row may be, the simulator's build included."""
        scenario = self.scenario
        identity = [_build(), scenario.text, scenario.duration_s, scenario.warmup_s]
        text = json.dumps([*identity, self.contender.identity, self.seed])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __str__(self) -> str:
        return f"{self.scenario.name} {self.contender.label} seed {self.seed}"

    def run(self) -> Row:
        """Simulates it."""
        return row(run(self.scenario, self.contender.cc, self.seed))


@functools.cache
def _build() -> str:
    return hashlib.sha256(Path(thalweg._native.__file__).read_bytes()).hexdigest()


def row(outcome: Outcome) -> Row:
    """What tables need of an outcome, by column."""
    long_short = outcome.long_short
    return {
        "utilisation_percent": outcome.utilisation_percent,
        "fairness_percent": outcome.fairness_percent,
        "host_fairness_percent": outcome.host_fairness_percent,
        "queue_mean_us": outcome.queue_latency.mean_us,
        "queue_p99_us": outcome.queue_latency.p99_us,
        "dropped_gbps": outcome.dropped_gbps,
        "dropped_percent": outcome.dropped_percent,
        "recovery_s": long_short and long_short.recovery_s,
        "long_gbps": long_short and long_short.long_gbps,
        "decisions": outcome.counts.decisions,
    }


class Store:
    """Rows that were made before, in a file of one JSON object a line.

    A line is written when a cell is done, so an interrupted evaluation goes on where it stopped.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows: dict[str, Row] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store]:
        """Reads the file, or begins it, and keeps other evaluations out of it. Raises
        BlockingIOError if there is one."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with open(self._file, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as why:
                text = f"{self._file}: another evaluation is writing here"
                raise BlockingIOError(text) from why
            file.seek(0)
            for line in file.read().split("\n"):
                # What an interruption cut short is no JSON, and is done again.
                with contextlib.suppress(json.JSONDecodeError):
                    entry = json.loads(line)
                    self._rows[entry["key"]] = entry["row"]
            self._out = file
            # After a line that was cut short the next must not go on in it.
            file.write("\n")
            yield self

    def get(self, cell: Cell) -> Row | None:
        """The cell's row, if it was made."""
        return self._rows.get(cell.key)

    def add(self, cell: Cell, made: Row) -> None:
        """Keeps a row."""
        self._rows[cell.key] = made
        self._out.write(json.dumps({"cell": str(cell), "key": cell.key, "row": made}) + "\n")
        self._out.flush()


def local(cells: Sequence[Cell], jobs: int) -> Generator[Finished]:
    """Runs cells in as many processes, and gives them back as they finish."""
    if not cells:
        return
    # Spawned, not forked: what the caller has running in threads is of no concern to the workers.
    executor = concurrent.futures.ProcessPoolExecutor(
        min(jobs, len(cells)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_end_with,
        initargs=(os.getpid(),),
    )
    try:
        futures = {executor.submit(cell.run): cell for cell in cells}
        for future in concurrent.futures.as_completed(futures):
            error = future.exception()
            if isinstance(error, Exception):
                yield futures[future], error
            else:
                yield futures[future], future.result()
    finally:
        for process in list((executor._processes or {}).values()):
            process.terminate()
        executor.shutdown(wait=True, cancel_futures=True)


def _end_with(parent: int) -> None:
    """A worker does not outlive who started it, even if that is killed."""
    # The user's interruption is the parent's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def ray(cells: Sequence[Cell], address: str | None) -> Generator[Finished]:
    """Runs cells on a Ray cluster, one processor each, and gives them back as they finish. Models
    travel with their cells.

    address: as of :func:`ray.init`; None: the cluster that Ray finds, or a fresh one of this
        machine alone. Raises ModuleNotFoundError without Ray, ConnectionError without a cluster.
    """
    if not cells:
        return
    import ray

    started = not ray.is_initialized()
    if started:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        remote = ray.remote(num_cpus=1)(Cell.run)
        # Enough to keep everyone busy; a cluster that grows is asked for more as it does.
        ahead = 2 * int(ray.cluster_resources().get("CPU", 1)) + 16
        waiting = deque(cells)
        running: dict[Any, Cell] = {}
        while waiting or running:
            while waiting and len(running) < ahead:
                cell = waiting.popleft()
                running[remote.remote(cell)] = cell
            [done], _ = ray.wait(list(running), num_returns=1)
            cell = running.pop(done)
            try:
                yield cell, ray.get(done)
            except ray.exceptions.RayError as why:
                yield cell, why
    finally:
        if started:
            ray.shutdown()
