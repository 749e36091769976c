# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The tables: which simulations each needs, and what is said about their rows."""

from __future__ import annotations

import math
import statistics as numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thalweg.results.controllers.published import (
    LOSS_PERCENT,
    STATISTICS,
    PublishedRow,
    PublishedTable,
    undominated,
)
from thalweg.sim import Scenario
from thalweg.sweep.cells import Cell, Contender, Row

#: What a published table is of, by its name in the file of figures: its heading, its scenarios'
#: names but for the size, and the sizes to simulate (none: those published).
KINDS = {
    "many-to-one": ("Many to one (table 2)", "many-to-one", ()),
    "all-to-all": ("All to all (table 3)", "all-to-all", ()),
    "long-short": ("One long flow among short ones (appendix E)", "long-short", ()),
    "int8": ("Floating point against 8-bit integers (appendix D)", "many-to-one", ()),
    "target": ("Targets", "many-to-one", (128, 1024, 8192)),
}


@dataclass(frozen=True)
class Entry:
    """What some runs measured of each statistic of a table: mean and standard deviation over the
    seeds, NaN where none has it; mean loss in percent; and the number of runs."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    loss_percent: float
    runs: int

    @property
    def lossy(self) -> bool:
        """Whether there is loss to speak of."""
        return self.loss_percent >= LOSS_PERCENT


def entry(keys: Sequence[str], rows: Sequence[Row]) -> Entry:
    """Sums up the rows of the seeds."""
    means, deviations = [], []
    for key in keys:
        values = [row[STATISTICS[key].column] for row in rows]
        found = [value for value in values if value is not None]
        means.append(numbers.fmean(found) if found else math.nan)
        deviations.append(numbers.stdev(found) if len(found) > 1 else math.nan)
    loss = numbers.fmean(row["dropped_percent"] or 0.0 for row in rows)
    return Entry(tuple(means), tuple(deviations), loss, len(rows))


@dataclass(frozen=True)
class Line:
    """A line of a table, of one size: who, and what is published and measured of it. ``row``: the
    published row, if there is one."""

    label: str
    row: str | None
    published: tuple[float, ...] | None
    published_loss: bool
    ours: Entry | None


@dataclass(frozen=True)
class Part:
    """A table's lines of one size."""

    size: int
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Measured:
    """A table with both sides. ``seeds``, ``duration_s``, ``warmup_s``: what our runs were; times
    are those of the first size."""

    name: str
    heading: str
    what: str
    seeds: int
    duration_s: float
    warmup_s: float
    statistics: tuple[str, ...]
    parts: tuple[Part, ...]
    published_marks: dict[str, bool]


class Job:
    """The simulations of one table.

    contenders: who is judged. scenarios: the directory of the scenario files. Raises
    ValueError for a size that there is no scenario of.
    """

    def __init__(
        self,
        name: str,
        published: PublishedTable,
        contenders: Sequence[Contender],
        seeds: Sequence[int],
        scenarios: Path,
        sizes: Sequence[int] = (),
        duration_s: float | None = None,
    ) -> None:
        self.name, self.published, self.contenders = name, published, tuple(contenders)
        self.heading, stem, own = KINDS[name]
        self.sizes = tuple(sizes or own or published.sizes)
        self.seeds = tuple(seeds)
        self.scenarios: dict[int, Scenario] = {}
        for size in self.sizes:
            file = scenarios / f"{stem}-{size}.toml"
            if not file.is_file():
                there = sorted(
                    int(path.stem.removeprefix(f"{stem}-"))
                    for path in scenarios.glob(f"{stem}-*.toml")
                )
                known = ", ".join(map(str, there)) or f"none in {scenarios}"
                raise ValueError(f"sizes: {name} has no scenario of {size}; there are {known}")
            scenario = Scenario.load(file)
            if duration_s is not None:
                share = duration_s / scenario.duration_s
                scenario = scenario.replace(
                    duration_s=duration_s, warmup_s=share * scenario.warmup_s
                )
            self.scenarios[size] = scenario

    def cells(self) -> list[Cell]:
        """All simulations, the longest first, so that none is waited for at the end."""
        cells = [
            Cell(scenario, contender, seed)
            for scenario in self.scenarios.values()
            for contender in self.contenders
            for seed in self.seeds
        ]
        return sorted(cells, key=lambda cell: -cell.scenario.duration_s * cell.scenario.flows)

    def measured(self, rows: Mapping[str, Row]) -> Measured:
        """The table, of rows by their cells' keys; all must be there."""
        keys = self.published.statistics
        parts = []
        for size, scenario in self.scenarios.items():
            ours = {
                contender: entry(
                    keys, [rows[Cell(scenario, contender, seed).key] for seed in self.seeds]
                )
                for contender in self.contenders
            }
            parts.append(Part(size, tuple(self._lines(size, ours))))
        marks = published_marks(self.published)
        first = next(iter(self.scenarios.values()))
        return Measured(
            self.name,
            self.heading,
            self.published.what,
            len(self.seeds),
            first.duration_s,
            first.warmup_s,
            keys,
            tuple(parts),
            marks,
        )

    def _lines(self, size: int, ours: dict[Contender, Entry]) -> Iterable[Line]:
        """First what is published, with our controller of that kind; then our others."""
        left = dict(ours)
        if self.name != "target":
            for row in self.published.rows:
                figures = row.entries.get(size)
                loss = size in row.entries and figures is None
                same = [one for one in left if _is_of(one, row)]
                for one in same:
                    # Several versions of one algorithm go by their own names.
                    label = row.name if len(same) == 1 else one.label
                    yield Line(label, row.name, figures, loss, left.pop(one))
                if not same and size in row.entries:
                    yield Line(row.name, row.name, figures, loss, None)
        for contender, found in left.items():
            yield Line(contender.label, None, None, False, found)


def _is_of(contender: Contender, row: PublishedRow) -> bool:
    """Whether it is our controller of a published row."""
    if contender.published is not None:
        return contender.published == row.name
    return isinstance(contender.cc, str) and contender.cc == row.cc


def published_marks(table: PublishedTable) -> dict[str, bool]:
    """Whether each published row passes: it has figures, and not loss, at every size."""
    return {
        row.name: all(row.entries.get(size) is not None for size in table.sizes)
        for row in table.rows
    }


def robust(table: Measured) -> dict[str, tuple[bool | None, bool | None]]:
    """Table 1: whether each passes, as published and ours; None where nothing is known.

    To pass many-to-one and all-to-all, no size may have loss; to pass long-short, the long flow
    must be back at its rate between two interruptions at every size. The published table's marks
    follow from its figures by these rules.
    """
    rows = {line.label: line.row for part in table.parts for line in part.lines}
    recovery = table.statistics.index("recovery") if "recovery" in table.statistics else None
    marks = {}
    for label, row in rows.items():
        entries = [
            line.ours
            for part in table.parts
            for line in part.lines
            if line.label == label and line.ours
        ]
        mine: bool | None = None
        if entries and recovery is None:
            mine = not any(one.lossy for one in entries)
        elif entries:
            mine = not any(math.isnan(one.mean[recovery or 0]) for one in entries)
        marks[label] = (table.published_marks.get(row or ""), mine)
    return marks


def marked(table: Measured, part: Part) -> tuple[list[bool], list[bool]]:
    """Which lines no other dominates, among the published and among ours; False where there is
    no entry."""

    def judge(entries: list[tuple[bool, tuple[float, ...] | None]]) -> list[bool]:
        there = [figures for exists, figures in entries if exists]
        good = iter(undominated(table.statistics, there))
        return [exists and next(good) for exists, _ in entries]

    def figures(one: Entry) -> tuple[float, ...] | None:
        # A table that has a column for loss does not replace figures by the word.
        if one.lossy and "dropped" not in table.statistics:
            return None
        worst = {True: -math.inf, False: math.inf}
        pairs = zip(table.statistics, one.mean, strict=True)
        return tuple(
            worst[STATISTICS[key].more_is_better] if math.isnan(mean) else mean
            for key, mean in pairs
        )

    published = [
        (line.published is not None or line.published_loss, line.published) for line in part.lines
    ]
    ours = [
        (line.ours is not None, figures(line.ours) if line.ours else None) for line in part.lines
    ]
    return judge(published), judge(ours)
