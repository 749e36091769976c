#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A table of the scenarios of scripts/web.sh: times of pages and objects, all seeds together.

Each ratio is that of mode thalweg to baseline, with a 95 % interval: a percentile bootstrap over
the pages of a host in a round of a seed, which both modes share.

    scripts/web_times.py DIR        # DIR/SEED/NAME/results.json
"""

import json
import math
import random
import sys
from collections import defaultdict
from pathlib import Path

RESAMPLES = 2000
MODES = ("baseline", "thalweg")

Cluster = tuple[str, int, str, str]
Times = dict[Cluster, list[float]]


def of_mode(connections: list[dict], seed: str) -> tuple[Times, Times]:
    """Pages and objects of a mode, ms by cluster; infinite where one failed."""
    pages: dict[tuple[Cluster, int], float] = defaultdict(float)
    objects: Times = defaultdict(list)
    for one in connections:
        cluster = (seed, one["round"], one.get("host", ""), one.get("address", ""))
        time = one.get("page_us", math.inf) / 1e3
        pages[cluster, one["page"]] = max(pages[cluster, one["page"]], time)
        objects[cluster].append(math.inf if one["error"] else one["fct_us"] / 1e3)
    by_cluster: Times = defaultdict(list)
    for (cluster, _), time in pages.items():
        by_cluster[cluster].append(time)
    return by_cluster, objects


def mean(times: list[float]) -> float:
    """The mean."""
    return sum(times) / len(times)


def p99(times: list[float]) -> float:
    """The 99th percentile, the nearest of the times."""
    return sorted(times)[round(0.99 * (len(times) - 1))]


def shown(ms: float) -> str:
    """A time with its unit, three figures."""
    return f"{ms / 1e3:.3g} s" if ms >= 1e3 else f"{ms:.3g} ms"


def compared(baseline: Times, thalweg: Times, figure) -> str:
    """Both figures, and their ratio with its interval."""
    clusters = sorted(baseline.keys() & thalweg.keys())
    draw = random.Random(1)

    def both(chosen: list[Cluster]) -> tuple[float, float]:
        return tuple(figure([t for one in chosen for t in of[one]]) for of in (baseline, thalweg))

    ratios = []
    for _ in range(RESAMPLES):
        first, second = both(draw.choices(clusters, k=len(clusters)))
        ratios.append(second / first)
    ratios.sort()
    low, high = (ratios[round(share * (RESAMPLES - 1))] for share in (0.025, 0.975))
    first, second = both(clusters)
    return f"{shown(first)} → {shown(second)}, {second / first:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Print the table."""
    runs = defaultdict(list)
    for file in sorted(Path(sys.argv[1]).glob("*/*/results.json")):
        runs[file.parent.name].append(file)
    print("| scenario | seeds | pages | page, mean | page, p99 | object, mean | object, p99 |")
    print("|---|---|---|---|---|---|---|")
    for name, files in runs.items():
        found: dict[str, tuple[Times, Times]] = {mode: ({}, {}) for mode in MODES}
        for file in files:
            for mode in json.loads(file.read_text())["scenarios"][0]["modes"]:
                parts = of_mode(mode["connections"], file.parent.parent.name)
                for all_of, part in zip(found[mode["mode"]], parts, strict=True):
                    all_of.update(part)
        pages = sum(len(times) for times in found["baseline"][0].values())
        cells = [
            compared(found["baseline"][what], found["thalweg"][what], figure)
            for what in (0, 1)
            for figure in (mean, p99)
        ]
        print(f"| {name} | {len(files)} | {pages} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
