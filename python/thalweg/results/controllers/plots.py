# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Pictures as SVG: rates and the queue over time, curves of a training run. Needs matplotlib."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.sim import Outcome

#: Most rates in one picture, before lines fill it.
MOST_RATES = 16


def traces(outcomes: Sequence[tuple[str, Outcome]]) -> bytes:
    """Rates (above) and the fullest queue (below) over time, a column for each outcome, which
    must have series. Of many flows an even choice is drawn, the first among them."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        2,
        len(outcomes),
        figsize=(3.6 * len(outcomes), 4.4),
        sharex="col",
        squeeze=False,
        layout="constrained",
    )
    for (title, outcome), (rates, queue) in zip(outcomes, axes.T, strict=True):
        series = outcome.series
        if series is None:
            raise ValueError(f"{title}: the outcome has no series")
        flows, intervals = series.flow_gbps.shape
        at_ms = (np.arange(intervals) + 0.5) * series.interval_us * 1e-3
        for flow in np.unique(np.linspace(0, flows - 1, min(flows, MOST_RATES)).astype(int)):
            rates.plot(at_ms, series.flow_gbps[flow], linewidth=0.8)
        rates.set_title(title)
        rates.set_ylim(bottom=0)
        fullest = max(series.queues, key=lambda one: one.bytes.max(initial=0))
        queue.plot(fullest.at_us * 1e-3, fullest.bytes / 1024, linewidth=0.8, color="black")
        queue.set_ylim(bottom=0)
        queue.set_xlabel("ms")
    axes[0, 0].set_ylabel("rate of a flow, Gbit/s")
    axes[1, 0].set_ylabel("queue, KiB")
    return _svg(figure)


def training(curves: Path) -> bytes:
    """The columns of a training run's CSV over its updates, a panel each. Raises ValueError with
    the file's name and line."""
    with open(curves, newline="") as source:
        rows = list(csv.reader(source))
    if not rows or rows[0][:1] != ["update"] or len(rows[0]) < 2:
        found = rows[0] if rows else "nothing"
        raise ValueError(f"{curves}:1: found {found}, expected `update` and further columns")
    columns: dict[str, list[tuple[int, float]]] = {name: [] for name in rows[0][1:]}
    for number, row in enumerate(rows[1:], 2):
        try:
            update = int(row[0])
            for name, value in zip(columns, row[1:], strict=True):
                if value:
                    columns[name].append((update, float(value)))
        except (ValueError, IndexError) as why:
            raise ValueError(f"{curves}:{number}: {why}") from why
    drawn = {name: points for name, points in columns.items() if points}
    if not drawn:
        raise ValueError(f"{curves}:2: found no rows, expected one for each update")
    pyplot = _pyplot()
    across = min(3, len(drawn))
    down = -(-len(drawn) // across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(3.6 * across, 2.2 * down), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    for axis, (name, points) in zip(axes.flat, drawn.items()):
        axis.plot(*zip(*points, strict=True), linewidth=0.9)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("update", fontsize=8)
    return _svg(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            'pictures need matplotlib: pip install "thalweg[results]"'
        ) from missing
    # No display, and the same bytes from the same figures.
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "thalweg"
    from matplotlib import pyplot

    return pyplot


def _svg(figure: Any) -> bytes:
    sink = io.BytesIO()
    figure.savefig(sink, metadata={"Date": None})
    _pyplot().close(figure)
    return sink.getvalue()
