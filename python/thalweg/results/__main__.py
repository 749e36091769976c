# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m thalweg.results``: see :mod:`thalweg.results`."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from thalweg import files
from thalweg.results import lists, pages
from thalweg.results.runs import Runs


def arguments() -> argparse.ArgumentParser:
    """What the command takes."""
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
        default="thalweg",
        metavar="FILE",
        help="the program that is run; default: %(default)s of PATH",
    )
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0; 1 where something failed, runs too, which the page then names; 2
    for wrong arguments; 130 after SIGINT or SIGTERM."""
    options = arguments().parse_args(words)
    # A run in progress ends before this program does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        page = lists.load(options.tables)
        # Before hours of runs.
        names = [getattr(table, "picture", None) for table in page.table]
        for name in [options.out.name, *filter(None, names)]:
            files.check_output(options.out.parent / name)
        runs = Runs(options.cache, options.binary)
        folder = options.tables.parent
        runs.make(pages.orders(page, folder))
        text, pictures = pages.render(page, folder, runs)
        for name, picture in pictures.items():
            files.replace(options.out.parent / name, picture.encode())
        files.replace(options.out, text.encode())
    except (OSError, ValueError, subprocess.CalledProcessError) as why:
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


if __name__ == "__main__":
    sys.exit(main())
