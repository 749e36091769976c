# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Simulations of a sweep or of a page's tables, and the store of their rows."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from thalweg.sim import Learned, Outcome, Scenario, run, simulator

#: The figures kept of an outcome by name, None where a run has none.
Row = dict[str, float | None]


class Outside(Protocol):
    """A policy that decides outside the simulator, such as
    :class:`thalweg.train.trained.Trained`."""

    @property
    def identity(self) -> str:
        """Different whenever its decisions may be."""

    def run(self, scenario: Scenario, seed: int) -> Outcome:
        """The scenario under its control."""
        ...


@dataclass(frozen=True)
class Contender:
    """A controller that is judged. ``label`` is for readers and different for each; ``cc`` is the
    name of a controller of the simulator with its parameters, a model, or a policy outside.
    ``published``: the published row that it stands beside, by default that of the same
    controller."""

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
    """One simulation. ``simulator``: the build that it is meant for, by
    :func:`thalweg.sim.simulator`."""

    scenario: Scenario
    contender: Contender
    seed: int
    simulator: str = field(default_factory=lambda: simulator())

    @functools.cached_property
    def key(self) -> str:
        """Different whenever the row may be, the simulator's build included."""
        scenario = self.scenario
        identity = [self.simulator, scenario.text, scenario.duration_s, scenario.warmup_s]
        text = json.dumps([*identity, self.contender.identity, self.seed])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __str__(self) -> str:
        return f"{self.scenario.name} {self.contender.label} seed {self.seed}"

    def run(self) -> Row:
        """Simulates it: its row. Raises RuntimeError on a machine with another build of the
        simulator."""
        if simulator() != self.simulator:
            raise RuntimeError(
                f"the simulator of {platform.node()} is not that of the machine that began:"
                " install the same build of Thalweg on both"
            )
        cc = self.contender.cc
        if isinstance(cc, str | Learned):
            return run(self.scenario, cc, self.seed).to_dict()
        return cc.run(self.scenario, self.seed).to_dict()


class Store:
    """Rows of finished cells, in a file of one JSON object a line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        #: By the keys of their cells.
        self.rows: dict[str, Row] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store]:
        """Reads or begins the file and locks it. Raises BlockingIOError if another process has it.
        The lock ends with the process, however that ends."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with open(self._file, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as why:
                text = f"{self._file}: another program is writing here"
                raise BlockingIOError(text) from why
            file.seek(0)
            for line in file.read().split("\n"):
                # A line that an interruption cut short is no JSON; its cell runs again.
                with contextlib.suppress(json.JSONDecodeError):
                    entry = json.loads(line)
                    self.rows[entry["key"]] = entry["row"]
            self._out = file
            # The next line must not continue one that was cut short.
            file.write("\n")
            yield self

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells without a row, each once, in their order."""
        found = {cell.key: cell for cell in cells if cell.key not in self.rows}
        return list(found.values())

    def add(self, cell: Cell, made: Row) -> None:
        """Stores a row. Raises OSError that names the file."""
        self.rows[cell.key] = made
        try:
            self._out.write(json.dumps({"cell": str(cell), "key": cell.key, "row": made}) + "\n")
            self._out.flush()
        except OSError as error:
            # Closing the file writes once more, and would raise instead.
            with contextlib.suppress(OSError):
                self._out.close()
            raise OSError(error.errno, error.strerror, str(self._file)) from error
