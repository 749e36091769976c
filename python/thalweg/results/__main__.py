# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m thalweg.results``: see :mod:`thalweg.results`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg import files
from thalweg.results import lists, pages
from thalweg.results.runs import Runs

if TYPE_CHECKING:
    from thalweg.results.controllers.judged import Judged


def arguments() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m thalweg.results",
        description="Run what a list of tables has no result of yet, and write its page. Results"
        " are kept: an interrupted call goes on where it stopped.",
    )
    parser.add_argument(
        "--tables", type=Path, required=True, metavar="FILE", help="list of the tables"
    )
    parser.add_argument(
        "--cache", type=Path, required=True, metavar="DIR", help="where results are kept"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE.md", help="the page; pictures beside it"
    )
    parser.add_argument(
        "--binary",
        default="thalweg-lab",
        metavar="FILE",
        help="the laboratory's program; default: %(default)s of PATH",
    )
    simulator = parser.add_argument_group("tables of rate controllers in the simulator")
    simulator.add_argument(
        "--jobs",
        type=_count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="simulations at a time; default: one for each processor",
    )
    simulator.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="run on a Ray cluster; without an address on the one that Ray finds, or a fresh one",
    )
    simulator.add_argument(
        "--duration",
        type=_seconds,
        metavar="SECONDS",
        help="simulate so long, with as much less warm-up: to see quickly that all works",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < 1e6:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text!r}")


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0; 1 after a failure, also of a run, which the page names; 2 for wrong
    arguments; 130 after SIGINT or SIGTERM."""
    options = arguments().parse_args(words)
    # A run in progress ends before this program does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        page = lists.load(options.tables)
        if options.duration is not None:
            page = lists.shortened(page, options.duration)
        # Checked before hours of runs.
        names = [getattr(table, "picture", None) for table in page.table]
        for name in [options.out.name, *filter(None, names)]:
            files.check_output(options.out.parent / name)
        runs = Runs(options.cache, options.binary)
        folder = options.tables.parent
        judged = _judged(page, folder, options)
        runs.make(pages.orders(page, folder))
        text, pictures = pages.render(page, folder, runs, judged)
        for name, picture in pictures.items():
            files.replace(options.out.parent / name, picture)
        files.replace(options.out, text.encode())
    except (OSError, ValueError) as why:
        print(f"error: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    print(options.out)
    if runs.failures:
        count = len(runs.failures)
        print(f"error: {count} runs could not be made; {options.out} says why", file=sys.stderr)
        return 1
    return 0


def _judged(page: lists.Page, folder: Path, options: argparse.Namespace) -> Judged | None:
    """The page's tables of the simulator alone, simulated; None where it has none."""
    if not pages.is_simulated(page):
        return None
    # Other pages do without the compiled simulator.
    from thalweg.results.controllers.judged import Judged

    found = Judged(page, folder)
    found.simulate(options.cache, options.jobs, options.ray)
    return found


if __name__ == "__main__":
    sys.exit(main())
