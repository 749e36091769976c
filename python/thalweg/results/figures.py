# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Figures of laboratory runs, a round at a time.

Each is the statistic of ``thalweg lab`` by the same name, with its words and its unit (see
``definitions.statistics`` of a result); utilisation alone is of the pages.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Result = dict[str, Any]
Flow = dict[str, Any]

#: The class of flows that are there to be competed with.
INCUMBENT = "incumbent"


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


def flows(result: Result, mode: str) -> list[Flow]:
    """The connections of a mode, in order."""
    for entry in result["scenarios"][0]["modes"]:
        if entry["mode"] == mode:
            return list(entry["connections"])
    return []


def goodputs(result: Result, mode: str) -> list[float]:
    """Of a mode's connections in order, bit/s."""
    return [flow["goodput_bps"] for flow in flows(result, mode)]


@dataclass(frozen=True)
class Round:
    """One round of all modes. ``least_rtt_us``: the scenario's. ``capacity_bps``: of payload."""

    modes: dict[str, list[Flow]]
    least_rtt_us: float | None
    capacity_bps: float | None

    def chosen(self, mode: str, class_: str | None) -> list[Flow]:
        """The flows of a class, or all but incumbents."""
        return [
            flow
            for flow in self.modes.get(mode, [])
            if (flow.get("class", "") == class_ if class_ else flow.get("class", "") != INCUMBENT)
        ]


def rounds(result: Result) -> list[Round]:
    """The rounds of a result, in order."""
    modes = result["scenarios"][0]["modes"]
    least = [entry["least_rtt_us"] for entry in modes if entry.get("least_rtt_us") is not None]
    numbers = sorted({flow["round"] for entry in modes for flow in entry["connections"]})
    return [
        Round(
            {
                entry["mode"]: [flow for flow in entry["connections"] if flow["round"] == number]
                for entry in modes
            },
            min(least, default=None),
            capacity_bps(result),
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


def _median(of: Round, mode: str, class_: str | None) -> float | None:
    return median([flow["goodput_bps"] for flow in of.chosen(mode, class_)])


def _parts(of: Round, mode: str, class_: str | None) -> list[float]:
    parts = [flow.get("part_bps") for flow in of.chosen(mode, class_)]
    return [part for part in parts if part is not None]


def _total(of: Round, mode: str, class_: str | None) -> float | None:
    parts = _parts(of, mode, class_)
    return sum(parts) if parts else None


def _utilisation(of: Round, mode: str, class_: str | None) -> float | None:
    total = _total(of, mode, class_)
    return total / of.capacity_bps if total is not None and of.capacity_bps else None


def _fairness(of: Round, mode: str, class_: str | None) -> float | None:
    parts = _parts(of, mode, class_)
    return min(parts) / max(parts) if len(parts) > 1 and max(parts) > 0 else None


def _retransmitted(of: Round, mode: str, class_: str | None) -> float | None:
    known = [one for one in of.chosen(mode, class_) if one.get("sent_segments") is not None]
    sent = sum(one["sent_segments"] for one in known)
    return min(sum(one["retransmits"] for one in known) / sent, 1.0) if sent else None


def _queue_delay(of: Round, mode: str, class_: str | None) -> float | None:
    least = of.least_rtt_us
    if least is None:
        return None
    samples = (us for one in of.chosen(mode, class_) for us in one.get("srtt_us", []))
    return median([max(us - least, 0.0) for us in samples])


def _completion(share: float) -> Callable[[Round, str, str | None], float | None]:
    def of(of: Round, mode: str, class_: str | None) -> float | None:
        times = []
        for flow in of.chosen(mode, class_):
            # A failed flow is the worst of all, not one that may be left out.
            if flow.get("flow_bytes") is not None and flow.get("error") is not None:
                times.append(math.inf)
            elif flow.get("fct_us") is not None:
                times.append(flow["fct_us"])
        return quantile(times, share)

    return of


def _incumbents(of: Round, mode: str) -> list[Flow]:
    return of.chosen(mode, INCUMBENT)


def _share(of: Round, mode: str, class_: str | None) -> float | None:
    old = sum(flow["goodput_bps"] for flow in _incumbents(of, mode))
    new = sum(flow["goodput_bps"] for flow in of.chosen(mode, None))
    return new / (old + new) if _incumbents(of, mode) and old + new > 0 else None


def _jain(of: Round, mode: str, class_: str | None) -> float | None:
    """Jain, Chiu, Hawe 1984."""
    rates = [flow["goodput_bps"] for flow in of.modes.get(mode, [])]
    squares = sum(rate * rate for rate in rates)
    known = _incumbents(of, mode) and squares > 0
    return sum(rates) ** 2 / (len(rates) * squares) if known else None


def _harm(of: Round, mode: str, class_: str | None) -> float | None:
    there = _incumbents(of, mode)
    arm = next((flow["arm"] for flow in there if flow["arm"]), None)
    same = _incumbents(of, f"fixed:{arm}")
    if not there or not same:
        return None
    mean = [statistics.fmean(flow["goodput_bps"] for flow in some) for some in (there, same)]
    return 1 - mean[0] / mean[1] if mean[1] > 0 else None


@dataclass(frozen=True)
class Figure:
    """What is computed of a mode's flows in a round. ``unit``: as results have it."""

    words: str
    unit: str
    of: Callable[[Round, str, str | None], float | None]

    @property
    def shown(self) -> tuple[float, int]:
        """From its unit to that of pages (%, ms, Mbit/s), and the digits behind the point."""
        units = {"share": (100.0, 1), "us": (1e-3, 2), "bit/s": (1e-6, 1), "number": (1.0, 3)}
        return units[self.unit]


FIGURES = {
    "utilisation": Figure("utilisation", "share", _utilisation),
    "median": Figure("median goodput", "bit/s", _median),
    "total": Figure("goodput of a round's flows together", "bit/s", _total),
    "fairness": Figure("least goodput over the greatest", "share", _fairness),
    "retransmission-share": Figure("share of segments retransmitted", "share", _retransmitted),
    "queue-delay-median": Figure("median queue delay", "us", _queue_delay),
    "fct-median": Figure("median flow-completion time", "us", _completion(0.5)),
    "fct-p95": Figure("95th percentile of flow-completion time", "us", _completion(0.95)),
    "fct-p99": Figure("99th percentile of flow-completion time", "us", _completion(0.99)),
    "share": Figure("share of the bottleneck", "share", _share),
    "jain": Figure("Jain's fairness index", "number", _jain),
    "harm": Figure("harm to the incumbents", "number", _harm),
}


@dataclass(frozen=True)
class Spread:
    """Over the rounds."""

    median: float
    least: float
    greatest: float

    def text(self, digits: int) -> str:
        """With so many digits behind the point."""
        ends = f"{self.least:.{digits}f} … {self.greatest:.{digits}f}"
        return f"{self.median:.{digits}f} [{ends}]"


def spread(of: Sequence[Round], mode: str, figure: str, class_: str | None = None) -> Spread | None:
    """A figure over the rounds that have it, in the unit of pages; None where none has."""
    one = FIGURES[figure]
    found = [one.of(each, mode, class_) for each in of]
    values = [value * one.shown[0] for value in found if value is not None]
    middle = median(values)
    return None if middle is None else Spread(middle, min(values), max(values))
