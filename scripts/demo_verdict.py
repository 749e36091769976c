#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sums up repeated runs of `thalweg-lab run`, given by their results.json: the default, the published
rule (classic) and the learner; and whether the published rule beats the learner by more than noise."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

Mode = dict[str, Any]
#: Goodputs of each run, bit/s.
Goodputs = list[list[float]]

DRAWS = 2_000


def rate(bits: float) -> str:
    """A rate in bit/s with a unit, three figures."""
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= factor:
            return f"{bits / factor:.3g} {unit}"
    return f"{bits / 1e3:.3g} kbit/s"


def everything(mode: Mode) -> list[float]:
    """Goodput of all connections, those before something was learned included."""
    return [float(one["goodput_bps"] or 0) for one in mode["connections"]]


def last_half(mode: Mode) -> list[float]:
    """Goodput of the connections of the last half of the rounds."""
    late = [one for one in mode["connections"] if 2 * one["round"] >= mode["rounds"]]
    return [float(one["goodput_bps"] or 0) for one in late]


def drawn(runs: Goodputs, chance: random.Random) -> float:
    """The median of the runs' medians, of runs drawn with replacement, and of connections of each."""
    return median(
        median(chance.choices(run, k=len(run))) for run in chance.choices(runs, k=len(runs))
    )


def interval(base: Goodputs, ours: Goodputs) -> tuple[float, float]:
    """The 95 % interval of ours / base, by a bootstrap of runs and their connections."""
    chance = random.Random(1)
    ratios = sorted(drawn(ours, chance) / max(drawn(base, chance), 1.0) for _ in range(DRAWS))
    return ratios[DRAWS // 40], ratios[-DRAWS // 40 - 1]


def spread(runs: Goodputs) -> str:
    """Median of the runs' medians, the least and the greatest."""
    medians = sorted(median(run) for run in runs)
    return f"{rate(median(medians))} ({rate(medians[0])} to {rate(medians[-1])})"


def compared(base: Goodputs, ours: Goodputs) -> tuple[str, str]:
    """The ratio with its interval, and `better`, `WORSE` or `no different`."""
    low, high = interval(base, ours)
    ratio = median(map(median, ours)) / max(median(map(median, base)), 1.0)
    word = "WORSE" if high < 1 else "better" if low > 1 else "no different"
    return f"{ratio:.2f} × [{low:.2f} to {high:.2f}]", word


def verdict(name: str, default: str, runs: Sequence[dict[str, Mode]]) -> list[str]:
    """What the runs of a scenario show, in lines."""

    def of(mode: str, part: Callable[[Mode], list[float]]) -> Goodputs:
        return [part(run[mode]) for run in runs]

    base, ours = of("baseline", everything), of("thalweg", last_half)
    gains = [median(one) / max(median(other), 1.0) for one, other in zip(ours, base, strict=True)]
    least = min(range(len(runs)), key=gains.__getitem__)
    lines = [
        f"{name}, {len(runs)} runs: median of the runs (least to most)",
        f"  default ({default})        {spread(base)}",
        f"  classic, last half     {spread(of('classic', last_half))}",
        f"  Thalweg, last half     {spread(ours)}",
        f"  Thalweg / default      {compared(base, ours)[0]}; the worst is run {least + 1}, {gains[least]:.2f} ×",
    ]
    for part, words in ((everything, "all, from a cold start"), (last_half, "last half")):
        ratio, word = compared(of("classic", part), of("thalweg", part))
        lines.append(f"  Thalweg / classic      {ratio} {words}: {word}")
    return lines


def main(files: Sequence[str]) -> None:
    """Prints the verdict on each scenario."""
    runs: dict[str, list[dict[str, Mode]]] = {}
    defaults: dict[str, str] = {}
    for file in files:
        with open(file, encoding="utf-8") as results:
            (scenario,) = json.load(results)["scenarios"]
        name = scenario["scenario"]["name"]
        defaults[name] = scenario["scenario"]["system"]["default_cc"]
        runs.setdefault(name, []).append({mode["mode"]: mode for mode in scenario["modes"]})
    beaten = []
    for name, of_it in runs.items():
        lines = verdict(name, defaults[name], of_it)
        print("\n".join(lines))
        if any(line.endswith(": WORSE") for line in lines):
            beaten.append(name)
    if beaten:
        print(f"Thalweg is BEATEN by the published rule, by more than noise: {', '.join(beaten)}.")
    else:
        print("Nowhere does the published rule beat Thalweg by more than noise.")


if __name__ == "__main__":
    main(sys.argv[1:])
