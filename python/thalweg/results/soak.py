# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m thalweg.results.soak LOOKS.jsonl PICTURE.svg``: the curves of ``scripts/soak.sh``."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from thalweg import files
from thalweg.results.pictures import Line, Panel, panels

#: Points of a curve: each is the median of a stretch, with its least and greatest value.
POINTS = 12

Look = Mapping[str, float]

FIGURES: tuple[tuple[str, Callable[[Look], float]], ...] = (
    ("memory of the agent's own, MiB", lambda look: look["anonymous_kib"] / 1024),
    ("open files", lambda look: look["files"]),
    ("store and its journal, MB", lambda look: look["disk_bytes"] / 1e6),
    ("kernel memory of the maps, MiB", lambda look: look["map_bytes"] / 2**20),
)


def picture(looks: Sequence[Look]) -> str:
    """The curves as SVG. Raises ValueError for fewer looks than points."""
    if len(looks) < POINTS:
        raise ValueError(f"expected at least {POINTS} looks at the agent, found {len(looks)}")
    bounds = [len(looks) * number // POINTS for number in range(POINTS + 1)]
    stretches = [looks[begin:end] for begin, end in itertools.pairwise(bounds)]
    shown = []
    for title, figure in FIGURES:
        points = []
        for place, stretch in enumerate(stretches):
            values = [figure(look) for look in stretch]
            points.append((place, (min(values), statistics.median(values), max(values))))
        shown.append(Panel(title, [Line("median, least and greatest", points)]))
    minutes = [f"{stretch[-1]['seconds'] / 60:.0f}" for stretch in stretches]
    return panels("The agent over a long time", "minutes", minutes, shown)


def main(words: Sequence[str]) -> int:
    """Returns the exit code: 0, 1 after a failure, 2 for wrong arguments."""
    if len(words) != 2:
        print("usage: python -m thalweg.results.soak LOOKS.jsonl PICTURE.svg", file=sys.stderr)
        return 2
    source, out = map(Path, words)
    try:
        looks = [json.loads(line) for line in source.read_text().splitlines()]
        files.replace(out, picture(looks).encode())
    except (OSError, ValueError, KeyError) as why:
        print(f"error: {source}: {why}", file=sys.stderr)
        return 1
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
