# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tables of rate controllers: the simulations that each needs, and the verdicts on its rows."""

from __future__ import annotations

import dataclasses
import functools
import glob
import math
import re
import statistics as numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thalweg import model
from thalweg.results import lists
from thalweg.results.controllers import published
from thalweg.results.controllers.published import (
    LOSS_PERCENT,
    STATISTICS,
    Statistic,
    undominated,
)
from thalweg.sim import Learned, Scenario
from thalweg.sweep.cells import Cell, Contender, Row

#: Rows of the published tables, by the algorithm of a checkpoint.
ROWS = {"reinforce": "REINFORCE", "ppo": "PPO", "aurora": "Aurora"}


@dataclass(frozen=True)
class SeedSpread:
    """A statistic over runs: NaN unless all runs have it. ``worst``: the place of the worst run,
    from 1 on. ``bound``: what the median is above where a run has but a bound; NaN elsewhere."""

    median: float = math.nan
    least: float = math.nan
    greatest: float = math.nan
    worst: int = 0
    bound: float = math.nan


@dataclass(frozen=True)
class Entry:
    """Runs of all seeds, summed up: a spread for each statistic of a table, and the mean loss."""

    spreads: tuple[SeedSpread, ...]
    loss_percent: float

    @property
    def lossy(self) -> bool:
        """Whether the loss reaches :data:`LOSS_PERCENT`."""
        return self.loss_percent >= LOSS_PERCENT


def entry(keys: Sequence[str], rows: Sequence[Row]) -> Entry:
    """Sums up the rows of the seeds."""
    loss = numbers.fmean(row["dropped_percent"] or 0.0 for row in rows)
    return Entry(tuple(_spread(STATISTICS[key], rows) for key in keys), loss)


def _spread(one: Statistic, rows: Sequence[Row]) -> SeedSpread:
    if found := _all(rows, one.column):
        least, greatest = min(found), max(found)
        worst = found.index(least if one.more_is_better else greatest) + 1
        return SeedSpread(numbers.median(found), least, greatest, worst)
    bounds = _all(rows, one.least) if one.least else []
    return SeedSpread(bound=numbers.median(bounds) if bounds else math.nan)


def _all(rows: Sequence[Row], column: str) -> list[float]:
    """A column of the rows; nothing if one of them lacks it. A median over the others would leave
    out the runs that did worst."""
    found = [value for row in rows if (value := row[column]) is not None]
    return found if len(found) == len(rows) else []


@dataclass(frozen=True)
class Line:
    """A line of a table, of one size: a controller, its published figures and ours. ``row``: the
    published row, if there is one."""

    label: str
    row: str | None
    published: tuple[float, ...] | None
    published_loss: bool
    ours: Entry | None


@dataclass(frozen=True)
class Part:
    """A table's lines of one size. ``elsewhere``: published figures that another page shows, None
    for loss; the published lines are judged among them, too."""

    size: int
    lines: tuple[Line, ...]
    elsewhere: tuple[tuple[float, ...] | None, ...] = ()


@dataclass(frozen=True)
class Measured:
    """A table with both sides. ``seeds``, ``duration_s``, ``warmup_s``: of our runs; times are
    those of the first size."""

    across: str
    seeds: int
    duration_s: float
    warmup_s: float
    statistics: tuple[str, ...]
    parts: tuple[Part, ...]
    published_marks: dict[str, bool]


class Job:
    """The simulations of one table, whose paths are relative to the folder. Raises OSError and
    ValueError for a missing or invalid scenario, model or checkpoint."""

    def __init__(self, table: lists.Controllers, folder: Path) -> None:
        self.rows: tuple[published.PublishedRow, ...] = ()
        self.elsewhere: list[dict[int, tuple[float, ...] | None]] = []
        across, keys, sizes = table.across, table.figures, table.sizes
        if table.published is not None:
            known = published.load()[table.published]
            self.rows = tuple(row for row in known.rows if row.name not in table.elsewhere)
            self.elsewhere = [row.entries for row in known.rows if row.name in table.elsewhere]
            across = across or known.across
            keys, sizes = keys or known.statistics, sizes or tuple(known.sizes)
        self.across, self.statistics = across or "", keys
        self.seeds = range(1, table.seeds + 1)
        self.contenders = contenders(table, folder)
        beside = {one.ours for one in table.beside}
        self.beside = {one for one in self.contenders if one.label in beside}
        self.scenarios = {size: _scenario(table, folder, size) for size in sizes}

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
        parts = []
        for size, scenario in self.scenarios.items():
            # Trainings from several seeds are one line.
            runs: dict[str, tuple[Contender, list[Row]]] = {}
            for contender in self.contenders:
                _, found = runs.setdefault(contender.label, (contender, []))
                found += [rows[Cell(scenario, contender, seed).key] for seed in self.seeds]
            ours = {first: entry(self.statistics, found) for first, found in runs.values()}
            elsewhere = tuple(entries[size] for entries in self.elsewhere if size in entries)
            parts.append(Part(size, tuple(self._lines(size, ours)), elsewhere))
        first = next(iter(self.scenarios.values()))
        return Measured(
            self.across,
            len(self.seeds),
            first.duration_s,
            first.warmup_s,
            self.statistics,
            tuple(parts),
            published_marks(self.rows),
        )

    def _lines(self, size: int, ours: dict[Contender, Entry]) -> Iterable[Line]:
        """Published rows first, with our controller of that kind; then our others."""
        left = dict(ours)
        for row in self.rows:
            figures = row.entries.get(size)
            loss = size in row.entries and figures is None
            same = [one for one in left if _is_of(one, row)]
            for one in same:
                # Several versions of one algorithm keep their own names.
                label = row.name if len(same) == 1 else one.label
                if one in self.beside:
                    label = f"{row.name}, {one.label}"
                yield Line(label, row.name, figures, loss, left.pop(one))
            if not same and size in row.entries:
                yield Line(row.name, row.name, figures, loss, None)
        for contender, found in left.items():
            yield Line(contender.label, None, None, False, found)


def _scenario(table: lists.Controllers, folder: Path, size: int) -> Scenario:
    file = folder / table.scenario.replace("{size}", str(size))
    if not file.is_file():
        before, _, after = table.scenario.partition("{size}")
        found = glob.glob(f"{glob.escape(before)}*{glob.escape(after)}", root_dir=folder)
        sizes = [one.removeprefix(before).removesuffix(after) for one in found]
        there = sorted(int(one) for one in sizes if one.isdecimal())
        known = ", ".join(map(str, there)) or f"none like {file}"
        raise ValueError(f"{table.title}: there is no scenario of {size}; there are {known}")
    scenario = Scenario.load(file)
    if table.duration_s is None:
        return scenario
    share = table.duration_s / scenario.duration_s
    return scenario.replace(duration_s=table.duration_s, warmup_s=share * scenario.warmup_s)


def contenders(table: lists.Controllers, folder: Path) -> list[Contender]:
    """The controllers that a table judges. Raises OSError and ValueError."""
    files = _files(folder, table.models, f"{table.title}: models")
    found = [one for file in files for one in _versions(table, file)]
    trained = _trained(table, folder)
    found += [Contender(cc, cc) for cc in dict.fromkeys(table.cc)]
    rows = {one.ours: one.row for one in table.beside}
    labels = [one.label for one in found] + list(dict.fromkeys(one.label for one in trained))
    found += trained
    for label in rows:
        if label not in labels:
            known = ", ".join(labels)
            raise ValueError(
                f"{table.title}: beside: nobody is called {label!r}; there are {known}"
            )
    found = [
        dataclasses.replace(one, published=rows[one.label]) if one.label in rows else one
        for one in found
    ]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{table.title}: two to judge are called {label!r}")
    if not found:
        raise ValueError(f"{table.title}: nobody to judge; expected models, trained or cc")
    return found


def _files(folder: Path, patterns: Sequence[str], where: str) -> list[Path]:
    files: dict[Path, None] = {}
    for pattern in patterns:
        found = sorted(glob.glob(pattern, root_dir=folder))
        if not found:
            raise ValueError(f"{where}: no file is called {str(folder / pattern)!r}")
        files.update(dict.fromkeys(folder / name for name in found))
    return list(files)


def _versions(table: lists.Controllers, file: Path) -> Iterable[Contender]:
    """A model, or its versions by inference and target; none where the table is not of its kind."""
    can = model.read(file).inferences
    if not set(table.inferences) <= set(can) or (table.targets and "tree" in can):
        return
    learned = functools.partial(Learned, file, initial=table.initial)
    for inference in table.inferences or (None,):
        one = learned(inference)
        label = f"{one.name} {inference}" if inference else one.name
        if not table.targets:
            yield Contender(label, one)
        for factor in table.targets:
            target = one.target * factor
            yield Contender(f"{label}, target {target:.4g}", learned(inference, target))


def _trained(table: lists.Controllers, folder: Path) -> list[Contender]:
    """Policies of baselines' checkpoints, named as the files; those of one algorithm from several
    seeds, ``NAME`` and ``NAME-seed-N`` (scripts/train.sh), are all called ``NAME``."""
    if not table.trained:
        return []
    # JAX takes seconds to import.
    from thalweg.train.checkpoint import CheckpointError
    from thalweg.train.trained import Trained

    found = []
    for file in _files(folder, table.trained, f"{table.title}: trained"):
        try:
            policy = Trained.load(file, table.initial)
        except CheckpointError as why:
            raise ValueError(str(why)) from why
        label = re.sub(r"-seed-\d+$", "", file.stem)
        found.append(Contender(label, policy, ROWS[policy.kind]))
    return found


def _is_of(contender: Contender, row: published.PublishedRow) -> bool:
    """Whether it is our controller of a published row."""
    if contender.published is not None:
        return contender.published == row.name
    return isinstance(contender.cc, str) and contender.cc == row.cc


def published_marks(rows: Sequence[published.PublishedRow]) -> dict[str, bool]:
    """Whether each published row passes: it has figures, and not loss, at every size."""
    sizes = {size for row in rows for size in row.entries}
    return {row.name: all(row.entries.get(size) is not None for size in sizes) for row in rows}


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
            mine = not any(math.isnan(one.spreads[recovery or 0].median) for one in entries)
        marks[label] = (table.published_marks.get(row or ""), mine)
    return marks


def marked(table: Measured, part: Part) -> tuple[list[bool], list[bool]]:
    """The lines that no other dominates, among the published and among ours; False where there is
    no entry."""

    def judge(
        entries: list[tuple[bool, tuple[float, ...] | None]],
        more: Sequence[tuple[float, ...] | None] = (),
    ) -> list[bool]:
        there = [figures for exists, figures in entries if exists] + list(more)
        good = iter(undominated(table.statistics, there))
        return [exists and next(good) for exists, _ in entries]

    def figures(one: Entry) -> tuple[float, ...] | None:
        # A table with a column for drops keeps its figures despite loss.
        if one.lossy and "dropped" not in table.statistics:
            return None
        worst = {True: -math.inf, False: math.inf}
        pairs = zip(table.statistics, one.spreads, strict=True)
        return tuple(
            worst[STATISTICS[key].more_is_better] if math.isnan(spread.median) else spread.median
            for key, spread in pairs
        )

    published = [
        (line.published is not None or line.published_loss, line.published) for line in part.lines
    ]
    ours = [
        (line.ours is not None, figures(line.ours) if line.ours else None) for line in part.lines
    ]
    return judge(published, part.elsewhere), judge(ours)
