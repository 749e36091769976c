# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results of a sweep as one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thalweg import files
from thalweg.sweep.cells import Cell, Store

#: Columns of whole numbers, and of texts; all others are float64.
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


def write(path: Path, store: Store, cells: Sequence[Cell]) -> None:
    """The table of those cells, in their order, as Parquet. All must be in the store."""
    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            "scenario": cell.scenario.name,
            "controller": cell.contender.label,
            "seed": cell.seed,
            **store.rows[cell.key],
        }
        for cell in cells
    ]
    types = {}
    for name in rows[0]:
        whole = pyarrow.int64() if name in WHOLE else pyarrow.float64()
        types[name] = pyarrow.string() if name in TEXTS else whole
    table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(list(types.items())))
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    files.replace(path, sink.getvalue())
