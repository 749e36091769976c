# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tables of rate controllers as lines of Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from thalweg.results import markdown
from thalweg.results.controllers.published import STATISTICS
from thalweg.results.controllers.tables import Entry, Measured, SeedSpread, marked, robust
from thalweg.results.markdown import NOTHING


def section(table: Measured) -> Iterator[str]:
    """One table, a block for each size."""
    heads = [STATISTICS[key].heading for key in table.statistics]
    published = any(line.published or line.published_loss for p in table.parts for line in p.lines)
    sides = ["published", "ours"] if published else ["ours"]
    header = [table.across, "controller"]
    header += [f"{side} {head}" if head is heads[0] else head for side in sides for head in heads]
    runs = f"Ours: {table.seeds} seed{'' if table.seeds == 1 else 's'}, {table.duration_s:g} s each"
    yield f"{runs}, of which {table.warmup_s:g} s are not measured.\n"
    yield from markdown.header(header)
    for part in table.parts:
        theirs_good, ours_good = marked(table, part)
        for line, there, here in zip(part.lines, theirs_good, ours_good, strict=True):
            cells = [str(part.size), line.label]
            if published:
                cells += _published(line.published, line.published_loss, len(heads), there)
            cells += _ours(line.ours, table.statistics, here)
            yield markdown.row(cells)


def _published(figures: tuple[float, ...] | None, loss: bool, count: int, good: bool) -> list[str]:
    if figures is None:
        return ["loss" if loss else NOTHING] + [NOTHING] * (count - 1)
    return [_bold(f"{figure:g}", good) for figure in figures]


def _ours(one: Entry | None, keys: Sequence[str], good: bool) -> list[str]:
    if one is None:
        return [NOTHING] * len(keys)
    cells = [
        _bold(figure(spread, STATISTICS[key].decimals), good)
        if math.isnan(spread.bound)
        else f"> {_digits(spread.bound, STATISTICS[key].decimals)}"
        for key, spread in zip(keys, one.spreads, strict=True)
    ]
    if one.lossy and "dropped" not in keys:
        cells[0] = f"loss {_short(one.loss_percent)} %; {cells[0]}"
    return cells


def figure(spread: SeedSpread, decimals: int | None) -> str:
    """Median, range and worst run, with so many decimals; None: with three figures. The median
    alone where all runs are alike to that digit."""
    if math.isnan(spread.median):
        return NOTHING
    median, least, greatest = (
        _digits(value, decimals) for value in (spread.median, spread.least, spread.greatest)
    )
    return median if least == greatest else f"{median} [{least} … {greatest}; #{spread.worst}]"


def _digits(value: float, decimals: int | None) -> str:
    return _short(value) if decimals is None else f"{value:.{decimals}f}"


def _short(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def _bold(text: str, good: bool) -> str:
    return f"**{text}**" if good and text != NOTHING else text


def passed(tables: Mapping[str, Measured]) -> Iterator[str]:
    """Who passes, a pair of columns for each table, of those by their headings."""
    columns = {heading: robust(table) for heading, table in tables.items()}
    labels = dict.fromkeys(label for marks in columns.values() for label in marks)
    names = {True: "✓", False: "✗", None: NOTHING}
    header = ["controller"]
    for heading in columns:
        header += [f"{heading}: published", "ours"]
    yield from markdown.header(header)
    for label in labels:
        cells = [label]
        for marks in columns.values():
            cells += [names[mark] for mark in marks.get(label, (None, None))]
        yield markdown.row(cells)
