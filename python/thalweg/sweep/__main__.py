# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m thalweg.sweep``: see :mod:`thalweg.sweep`."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from thalweg.sweep import workers
from thalweg.sweep.plan import Cell, Plan, SweepError
from thalweg.sweep.store import Store


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a sweep. 0: all results are there; 1: some cells failed; 2: it could not begin; 130:
    interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m thalweg.sweep",
        description="Simulate every scenario with every controller and every seed of a sweep file."
        " What has been done before is not done again.",
    )
    parser.add_argument("sweep", type=Path, metavar="SWEEP.toml", help="what to simulate")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="where results go: DIR/results.parquet, and a part for each simulation",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--jobs",
        type=_positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="simulations at once on this machine; default: one for each processor",
    )
    where.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="run on a Ray cluster; without an address on the one that Ray finds, or a fresh one",
    )
    given = parser.parse_args(arguments)
    try:
        needed = ["pyarrow"] + (["ray"] if given.ray is not None else [])
        for module in needed:
            if importlib.util.find_spec(module) is None:
                extra = "sweep" if given.ray is None else "ray"
                raise SweepError(f'{module} is not installed: pip install "thalweg[{extra}]"')
        plan = Plan.load(given.sweep)
        store = Store(given.out)
        with store.locked():
            missing = store.missing(plan.cells)
            done = len(plan.cells) - len(missing)
            print(f"{len(plan.cells)} simulations, {done} of them done before", file=sys.stderr)
            if given.ray is None:
                finished = workers.local(missing, given.jobs)
            else:
                finished = workers.ray(missing, given.ray or None)
            with contextlib.closing(finished):
                failed = _follow(store, missing, finished)
            if failed:
                print(f"error: {failed} simulations failed; there are no results", file=sys.stderr)
                return 1
            store.merge(plan.cells)
            print(store.results)
            return 0
    except (SweepError, OSError) as why:
        print(f"error: {why}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _follow(
    store: Store, cells: Sequence[Cell], finished: Iterable[tuple[Cell, dict[str, Any] | Exception]]
) -> int:
    """Stores what finishes and says how long the rest will take: how many failed."""
    begin = time.monotonic()
    # By simulated time: what of all differs most, and is known.
    total, past, failed = sum(cell.scenario.duration_s for cell in cells), 0.0, 0
    for number, (cell, result) in enumerate(finished, 1):
        past += cell.scenario.duration_s
        line = f"[{number}/{len(cells)}] {cell}"
        if isinstance(result, Exception):
            failed += 1
            print(f"{line}: failed: {result}", file=sys.stderr)
            continue
        store.add(cell, result)
        left = (time.monotonic() - begin) * (total - past) / past
        print(f"{line}; about {_words(left)} left", file=sys.stderr, flush=True)
    return failed


def _words(seconds: float) -> str:
    """A time as people say it.

    >>> _words(7.6), _words(100), _words(5400)
    ('8 s', '2 min', '1 h 30 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
