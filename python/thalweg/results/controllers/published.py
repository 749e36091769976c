# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The published tables, and how entries of a table compare."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The published figures.
FIGURES = Path(__file__).with_name("published.toml")

#: Figures within this part of the larger are alike (definition 1 of the paper).
ALIKE = 0.05

#: The least loss that counts, percent of the packets that arrive at the queues.
LOSS_PERCENT = 0.1


@dataclass(frozen=True)
class Statistic:
    """A figure of a run: its heading with its unit, its column of a row, and the better direction.
    ``decimals``: digits that tables show; None for three significant figures, where values differ
    by orders of magnitude. ``least``: the column of the least that it can be, for runs that could
    not measure it to the end."""

    heading: str
    column: str
    more_is_better: bool
    decimals: int | None = 1
    least: str | None = None


#: Statistics by their keys in the file of figures.
STATISTICS = {
    "utilisation": Statistic("SU %", "utilisation_percent", True),
    "fairness": Statistic("FR %", "fairness_percent", True),
    "queue-latency": Statistic("QL µs", "queue_mean_us", False),
    "recovery": Statistic("RT s", "recovery_s", False, None, "recovery_least_s"),
    "dropped": Statistic("DR Gbit/s", "dropped_gbps", False, 2),
    "long-rate": Statistic("LBW Gbit/s", "long_gbps", True),
}


@dataclass(frozen=True)
class PublishedRow:
    """An algorithm of a published table. ``entries``: figures by size, in the order of the
    table's statistics; None for extensive loss. ``cc``: our controller of that kind."""

    name: str
    cc: str | None
    entries: dict[int, tuple[float, ...] | None]


@dataclass(frozen=True)
class PublishedTable:
    """A published table. ``across``: what its sizes count, as a heading."""

    across: str
    statistics: tuple[str, ...]
    rows: tuple[PublishedRow, ...]

    @property
    def sizes(self) -> list[int]:
        """All sizes that it has entries of."""
        return sorted({size for row in self.rows for size in row.entries})


@functools.cache
def load() -> dict[str, PublishedTable]:
    """The tables by name."""
    with open(FIGURES, "rb") as file:
        content = tomllib.load(file)
    return {name: _table(table) for name, table in content.items()}


def _table(table: dict[str, Any]) -> PublishedTable:
    rows = []
    for row in table["row"]:
        entries = {
            int(size): None if entry == "loss" else tuple(map(float, entry))
            for size, entry in row.items()
            if size.isdecimal()
        }
        rows.append(PublishedRow(row["name"], row.get("cc"), entries))
    return PublishedTable(table["across"], tuple(table["statistics"]), tuple(rows))


def dominates(
    statistics: Sequence[str], a: Sequence[float] | None, b: Sequence[float] | None
) -> bool:
    """Whether ``a`` dominates ``b`` in the sense of Pareto: better in one figure and worse in
    none, where figures within 5 % of each other are alike. An entry without figures, because of
    loss, is dominated by every entry with figures."""
    if a is None or b is None:
        return a is not None
    better = False
    for key, x, y in zip(statistics, a, b, strict=True):
        largest = max(abs(x), abs(y))
        if x == y or (math.isfinite(largest) and abs(x - y) <= ALIKE * largest):
            continue
        if (x > y) != STATISTICS[key].more_is_better:
            return False
        better = True
    return better


def undominated(statistics: Sequence[str], entries: Sequence[Sequence[float] | None]) -> list[bool]:
    """For each entry, whether no other dominates it."""
    return [not any(dominates(statistics, other, own) for other in entries) for own in entries]
