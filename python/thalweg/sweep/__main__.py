# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m thalweg.sweep``: see :mod:`thalweg.sweep`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from thalweg.sweep import table, workers
from thalweg.sweep.cells import Store
from thalweg.sweep.plan import Plan, SweepError


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
        help="where results go: DIR/results.parquet, and DIR/cells.jsonl with those so far",
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
        plan, results = Plan.load(given.sweep), given.out / "results.parquet"
        with Store(given.out / "cells.jsonl").opened() as store:
            done = len(plan.cells) - len(store.missing(plan.cells))
            print(f"{len(plan.cells)} simulations, {done} of them done before", file=sys.stderr)
            failed = sum(1 for _ in workers.simulate(store, plan.cells, given.jobs, given.ray))
            if failed:
                print(f"error: {failed} simulations failed; there are no results", file=sys.stderr)
                return 1
            table.write(results, store, plan.cells)
        print(results)
        return 0
    except (SweepError, OSError) as why:
        print(f"error: {why}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
