# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Figures of laboratory runs: read from the document, put side by side for the pages.

The laboratory computes them (``definitions.statistics`` of a document). Two are of the pages alone:
utilisation, and the interval of a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Result = dict[str, Any]
Flow = dict[str, Any]


def quantile(values: Sequence[float], share: float) -> float | None:
    """Interpolated linearly between the nearest two (Hyndman and Fan 1996, type 7); None of
    nothing. Values may be infinite."""
    if not values:
        return None
    place = share * (len(values) - 1)
    ordered = sorted(values)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below if below == above else below + (above - below) * (place % 1)


def median(values: Sequence[float]) -> float | None:
    """The middle; None of nothing."""
    return quantile(values, 0.5)


# `thalweg-lab compare` has the same interval, for the same mode in two documents. Tables also set two modes
# of one document beside each other, and the last halves of their connections.
def interval(base: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the ratio of two medians, ours / base: percentiles of 10,000 draws of
    both with replacement (Efron 1979). Neither may be empty."""
    resamples, sizes = 10_000, (len(base), len(ours))
    # splitmix64 (Steele, Lea, Flood 2014) from seed 1: the n-th number follows from n alone.
    count = np.arange(1, resamples * sum(sizes) + 1, dtype=np.uint64)
    z = count * np.uint64(0x9E37_79B9_7F4A_7C15) + np.uint64(1)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    z = (z ^ (z >> np.uint64(31))).reshape(resamples, sum(sizes))
    medians = []
    for values, drawn in zip((base, ours), np.split(z, sizes[:1], axis=1)):
        # Below the length, evenly: the upper half of a product of 128 bits.
        length, half = np.uint64(len(values)), np.uint64(32)
        low = ((drawn & np.uint64(0xFFFF_FFFF)) * length) >> half
        place = ((drawn >> half) * length + low) >> half
        medians.append(np.median(np.sort(values)[place.astype(np.int64)], axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (medians[1] / medians[0]).tolist()
    return quantile(ratios, 0.025) or 0.0, quantile(ratios, 0.975) or 0.0


def _mode(result: Result, mode: str) -> dict[str, Any]:
    """A mode's part of the document; empty where it was not run."""
    modes = result["scenarios"][0]["modes"]
    return next((dict(entry) for entry in modes if entry["mode"] == mode), {})


def flows(result: Result, mode: str) -> list[Flow]:
    """The connections of a mode, in order."""
    return list(_mode(result, mode).get("connections", []))


def goodputs(result: Result, mode: str) -> list[float]:
    """Goodput of a mode's connections in order, bit/s."""
    return [flow["goodput_bps"] for flow in flows(result, mode)]


def statistic(result: Result, mode: str, key: str) -> float | None:
    """A statistic of a whole run, in its unit; None where the mode does not have it."""
    summary = _mode(result, mode).get("summary") or {}
    return _reached(summary.get("statistics", {}), key)


def _reached(statistics: dict[str, float | None], key: str) -> float | None:
    """A value, None where there is none; the document's null is a value that was not reached."""
    if key not in statistics:
        return None
    value = statistics[key]
    return math.inf if value is None else value


@dataclass(frozen=True)
class Round:
    """One round of all modes, as ``by_round`` of a document has it. ``capacity_bps``: payload that
    the bottleneck can carry."""

    modes: dict[str, dict[str, Any]]
    capacity_bps: float | None

    def figure(self, key: str, mode: str, class_: str | None) -> float | None:
        """A figure of the flows of a class, or of all but incumbents, in its unit; None where the
        round does not have it."""
        of = self.modes.get(mode, {})
        found = of.get("classes", {}).get(class_, {}) if class_ else of.get("statistics", {})
        if key != "utilisation":
            return _reached(found, key)
        total = _reached(found, "total")
        return total / self.capacity_bps if total is not None and self.capacity_bps else None

    def has_flows(self, mode: str, class_: str | None) -> bool:
        """Whether the mode had flows in the round, of the class if one is given; they may all have
        failed."""
        return mode in self.modes and (not class_ or class_ in self.modes[mode].get("classes", {}))


def rounds(result: Result) -> list[Round]:
    """The rounds of a result, in order. Raises ValueError for one of a build that did not give
    figures of rounds."""
    modes = result["scenarios"][0]["modes"]
    if not all("by_round" in entry for entry in modes):
        name = result["scenarios"][0]["scenario"]["name"]
        raise ValueError(f"{name}: a result without figures of rounds; remove it and run again")
    capacity = capacity_bps(result)
    numbers = sorted({one["round"] for entry in modes for one in entry["by_round"]})
    return [
        Round(
            {
                entry["mode"]: one
                for entry in modes
                for one in entry["by_round"]
                if one["round"] == number
            },
            capacity,
        )
        for number in numbers
    ]


def capacity_bps(result: Result) -> float | None:
    """Payload that the bottleneck can carry: TCP with timestamps has 20 + 32 bytes of each IPv4
    packet, and Ethernet 14 more, which the forwarded path has not."""
    path = result["scenarios"][0]["scenario"]["path"]
    if path.get("rate") is None:
        return None
    header = 72 if path.get("family") == "ipv6" else 52
    frame = path["mtu"] + (0 if result["environment"]["backend"]["name"] == "link" else 14)
    return float(path["rate"] * (path["mtu"] - header) / frame)


@dataclass(frozen=True)
class Figure:
    """A figure of rounds that tables can show. ``words``, ``unit``: as documents have them, for
    tables of runs that could not be made."""

    words: str
    unit: str

    @property
    def shown(self) -> tuple[float, int]:
        """From its unit to that of pages (%, ms, Mbit/s), and the digits behind the point."""
        units = {"share": (100.0, 1), "us": (1e-3, 2), "bit/s": (1e-6, 1), "number": (1.0, 3)}
        return units[self.unit]


FIGURES = {
    "utilisation": Figure("utilisation", "share"),
    "median": Figure("median goodput", "bit/s"),
    "total": Figure("goodput of a round's flows together", "bit/s"),
    "fairness": Figure("least goodput over the greatest", "share"),
    "retransmission-share": Figure("share of segments retransmitted", "share"),
    "queue-delay-median": Figure("median queue delay", "us"),
    "fct-median": Figure("median flow-completion time", "us"),
    "fct-p95": Figure("95th percentile of flow-completion time", "us"),
    "fct-p99": Figure("99th percentile of flow-completion time", "us"),
    "share": Figure("share of the bottleneck", "share"),
    "jain": Figure("Jain's fairness index", "number"),
    "harm": Figure("harm to the incumbents", "number"),
}


@dataclass(frozen=True)
class Spread:
    """A figure over ``count`` rounds or seeds, as ``runs`` says, of which ``measured`` have it. Median
    and range leave out the others, in most of which nothing arrived."""

    median: float
    least: float
    greatest: float
    measured: int
    count: int
    runs: str

    @property
    def coverage(self) -> str:
        """How many have the figure, in words behind it; empty where all do."""
        if self.measured == self.count:
            return ""
        return f" ({self.measured} of {self.count} {self.runs})"

    def text(self, digits: int) -> str:
        """With so many digits behind the point."""
        ends = f"{self.least:.{digits}f} … {self.greatest:.{digits}f}"
        return f"{self.median:.{digits}f} [{ends}]{self.coverage}"


def spread_over(found: Sequence[float | None], runs: str) -> Spread | None:
    """A figure over rounds or seeds, of which some may lack it; None where all do."""
    values = [value for value in found if value is not None]
    middle = median(values)
    if middle is None:
        return None
    return Spread(middle, min(values), max(values), len(values), len(found), runs)


def spread(of: Sequence[Round], mode: str, figure: str, class_: str | None = None) -> Spread | None:
    """A figure over the rounds in which the mode had such flows, in the unit of pages; None where no
    round has it."""
    factor, _ = FIGURES[figure].shown
    of_mode = [each for each in of if each.has_flows(mode, class_)]
    found = [each.figure(figure, mode, class_) for each in of_mode]
    return spread_over([None if one is None else one * factor for one in found], "rounds")
