# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Simulations to be judged by: what each is, where they run, and what is kept of them."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from thalweg.sim import Learned, Outcome, Scenario, run, simulator

#: What of an outcome is kept: numbers by name, None where a run has none.
Row = dict[str, float | None]


class Outside(Protocol):
    """Who decides outside the simulator, such as :class:`thalweg.train.trained.Trained`."""

    @property
    def identity(self) -> str:
        """Different whenever its decisions may be."""

    def run(self, scenario: Scenario, seed: int) -> Outcome:
        """The scenario under its control."""
        ...


@dataclass(frozen=True)
class Contender:
    """Who is judged. ``label`` is for readers and different for each; ``cc`` is the name of a
    controller of the simulator with its parameters, a model, or who decides outside.
    ``published``: the published row of which this is ours; where it is not given, that of the
    same controller."""

    label: str
    cc: str | Learned | Outside
    published: str | None = None

    @functools.cached_property
    def identity(self) -> str:
        """Different whenever its decisions may be."""
        if isinstance(self.cc, str):
            return self.cc
        if not isinstance(self.cc, Learned):
            return self.cc.identity
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
        identity = [simulator(), scenario.text, scenario.duration_s, scenario.warmup_s]
        text = json.dumps([*identity, self.contender.identity, self.seed])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __str__(self) -> str:
        return f"{self.scenario.name} {self.contender.label} seed {self.seed}"

    def run(self) -> Row:
        """Simulates it."""
        cc = self.contender.cc
        if isinstance(cc, str | Learned):
            return row(run(self.scenario, cc, self.seed))
        return row(cc.run(self.scenario, self.seed))


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
        "recovery_s": None if long_short is None else long_short.recovery_s,
        "long_gbps": None if long_short is None else long_short.long_gbps,
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
        """Keeps a row. Raises OSError that names the file."""
        self._rows[cell.key] = made
        try:
            self._out.write(json.dumps({"cell": str(cell), "key": cell.key, "row": made}) + "\n")
            self._out.flush()
        except OSError as error:
            # Closing it tries once more, and would say so instead.
            with contextlib.suppress(OSError):
                self._out.close()
            raise OSError(error.errno, error.strerror, str(self._file)) from error
