# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results of a sweep: a part for each finished cell, then one table of all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from thalweg import files
from thalweg.sweep.plan import Cell, SweepError

#: Columns that are whole numbers, and that are texts; all others are float64.
WHOLE = {
    "seed",
    "flows",
    "not_recovered",
    "completions",
    "sent_packets",
    "delivered_packets",
    "dropped_packets",
    "decisions",
    "notifications",
    "events",
}
TEXTS = {"scenario", "controller"}


class Store:
    """The directory of a sweep's results.

    Files appear whole or not at all, so a sweep may be killed at any moment: what has finished by
    then is there, and the next run goes on from it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.parts = directory / "parts"
        self.results = directory / "results.parquet"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the directory, and keeps other sweeps out of it. Raises SweepError if there is
        one. The lock is gone when the process is, however it ends."""
        self.parts.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as why:
                raise SweepError(f"{self.directory}: another sweep is writing here") from why
            yield

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those cells that have no part yet, in their order."""
        there = set(os.listdir(self.parts))
        return [cell for cell in cells if f"{cell.key}.json" not in there]

    def add(self, cell: Cell, row: dict[str, Any]) -> None:
        """The part of a finished cell."""
        files.replace(self.parts / f"{cell.key}.json", json.dumps(row).encode())

    def merge(self, cells: Sequence[Cell]) -> None:
        """Writes the table of all those cells, in their order. All must have a part."""
        import pyarrow
        import pyarrow.parquet

        rows = []
        for cell in cells:
            part = self.parts / f"{cell.key}.json"
            try:
                rows.append(json.loads(part.read_bytes()))
            except ValueError as why:
                raise SweepError(f"{part}: {why}; remove it and run again") from why
        types = {}
        for name in rows[0]:
            whole = pyarrow.int64() if name in WHOLE else pyarrow.float64()
            types[name] = pyarrow.string() if name in TEXTS else whole
        table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(list(types.items())))
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(table, sink)
        files.replace(self.results, sink.getvalue())
