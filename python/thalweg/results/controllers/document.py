# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Pages of rate controllers, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from thalweg.results import markdown
from thalweg.results.controllers.published import LOSS_PERCENT, STATISTICS
from thalweg.results.controllers.tables import Entry, Measured, marked, robust
from thalweg.results.markdown import NOTHING


def document(tables: Sequence[Measured], pictures: Sequence[tuple[str, str]], command: str) -> str:
    """The whole page. ``pictures``: titles and files. ``command``: what made it."""
    parts = [
        "# Rate controllers: published figures and ours\n",
        f"Written by `{command}`; not to be edited. Published: Tessler et al., Analytic "
        "Deterministic Policy Gradient with Application to Datacenter Congestion Control. Ours: "
        "the packet simulator ([sim.md](../reference/sim.md)), mean ± standard deviation over the seeds.\n",
        "SU: switch utilisation. FR: least rate of a flow over the greatest. QL: mean waiting "
        "time in switches. **Bold**: no other entry of the same side dominates it, that is, is "
        "better in one figure and worse in none, where figures within 5 % are alike. *loss*: "
        f"{LOSS_PERCENT} % of the packets or more are dropped; how many stands behind it.\n",
    ]
    if summary := _summary(tables):
        parts.append(summary)
    parts += [section(table) for table in tables]
    for title, file in pictures:
        parts.append(f"## {title}\n\n![{title}]({file})\n")
    return "\n".join(parts)


def section(table: Measured) -> str:
    """One table, a block for each size."""
    heads = [STATISTICS[key].heading for key in table.statistics]
    published = any(line.published or line.published_loss for p in table.parts for line in p.lines)
    sides = ["published", "ours"] if published else ["ours"]
    header = [table.what, "controller"]
    header += [f"{side} {head}" if head is heads[0] else head for side in sides for head in heads]
    runs = f"Ours: {table.seeds} seed{'' if table.seeds == 1 else 's'}, {table.duration_s:g} s each"
    runs += f", of which {table.warmup_s:g} s are not measured.\n"
    lines = [f"## {table.heading}\n", runs, *markdown.header(header)]
    for part in table.parts:
        theirs_good, ours_good = marked(table, part)
        for line, there, here in zip(part.lines, theirs_good, ours_good, strict=True):
            cells = [str(part.size), line.label]
            if published:
                cells += _published(line.published, line.published_loss, len(heads), there)
            cells += _ours(line.ours, table.statistics, here)
            lines.append(markdown.row(cells))
    return "\n".join(lines) + "\n"


def _published(figures: tuple[float, ...] | None, loss: bool, count: int, good: bool) -> list[str]:
    if figures is None:
        return ["loss" if loss else NOTHING] + [NOTHING] * (count - 1)
    return [_bold(f"{figure:g}", good) for figure in figures]


def _ours(one: Entry | None, keys: Sequence[str], good: bool) -> list[str]:
    if one is None:
        return [NOTHING] * len(keys)
    cells = [
        _bold(figure(mean, deviation, STATISTICS[key].decimals), good)
        for key, mean, deviation in zip(keys, one.mean, one.deviation, strict=True)
    ]
    if one.lossy and "dropped" not in keys:
        cells[0] = f"loss {_short(one.loss_percent)} %; {cells[0]}"
    return cells


def figure(mean: float, deviation: float, decimals: int | None) -> str:
    """Mean ± standard deviation, with so many decimals; None: with three figures."""
    if math.isnan(mean):
        return NOTHING
    words = [
        _short(value) if decimals is None else f"{value:.{decimals}f}"
        for value in (mean, deviation)
        if not math.isnan(value)
    ]
    return " ± ".join(words)


def _short(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def _bold(text: str, good: bool) -> str:
    return f"**{text}**" if good and text != NOTHING else text


def _summary(tables: Sequence[Measured]) -> str | None:
    """Table 1, of those of its columns that were simulated."""
    columns = {
        table.name: (table.heading.split(" (")[0], robust(table))
        for table in tables
        if table.name in ("many-to-one", "all-to-all", "long-short")
    }
    if not columns:
        return None
    labels = dict.fromkeys(label for _, marks in columns.values() for label in marks)
    names = {True: "✓", False: "✗", None: NOTHING}
    header = ["controller"]
    for heading, _ in columns.values():
        header += [f"{heading}: published", "ours"]
    lines = [
        "## Who passes (table 1)\n",
        "✓ where no size has loss; with long and short flows, where the long one is back at 95 % "
        "of the line rate between two interruptions at every size.\n",
        *markdown.header(header),
    ]
    for label in labels:
        cells = [label]
        for _, marks in columns.values():
            cells += [names[mark] for mark in marks.get(label, (None, None))]
        lines.append(markdown.row(cells))
    return "\n".join(lines) + "\n"
