# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The packet-level datacenter simulator.

:func:`run` simulates a whole scenario with a controller that is part of the simulator;
:class:`Batch` runs simulations side by side and lets the caller decide the flows' rates.
The simulator itself is compiled (``thalweg._native``); the same scenario and seed give the same
run on any machine and any number of threads.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

try:
    from thalweg import _native
    from thalweg._native import (
        Batch,
        Decisions,
        Learned,
        Scenario,
        canonical_controller,
        controllers,
        run,
    )
except ImportError as missing:
    raise ImportError(
        'the native module is missing: run "pip install ." in the root of the sources, and '
        "programs elsewhere than in python/, which hides what is installed"
    ) from missing

__all__ = [
    "Batch",
    "Counts",
    "Decisions",
    "Latency",
    "Learned",
    "LongShort",
    "Outcome",
    "QueueSeries",
    "Scenario",
    "Series",
    "SmoothedDelay",
    "canonical_controller",
    "controllers",
    "run",
    "simulator",
]


@functools.cache
def simulator() -> str:
    """Identity of the simulator: the SHA-256 of its compiled part, in hexadecimal. Another build
    need not repeat its results, so stores keep it beside them."""
    return hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()


@dataclass(frozen=True)
class Latency:
    """A distribution of times, microseconds. Percentiles are within 1.6 %, mean and greatest
    are exact."""

    mean_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    p999_us: float
    max_us: float


@dataclass(frozen=True)
class Counts:
    """Packets and events of the whole run, warm-up included."""

    #: Size of every data packet, bytes.
    packet_bytes: int
    #: Data packets that left a host.
    sent_packets: int
    #: Data packets that reached their receiver.
    delivered_packets: int
    #: Delivered packets that the receiver discarded (go-back-N).
    wasted_packets: int
    #: Data packets that a full queue dropped.
    dropped_packets: int
    #: Data packets in flight at the end.
    underway_packets: int
    #: Answers to probes that controllers handled.
    decisions: int
    #: Congestion notification packets.
    notifications: int
    #: Events that the simulator handled.
    events: int


@dataclass(frozen=True)
class LongShort:
    """The long flow among short ones."""

    #: Recovery time (RT), seconds: mean time from the arrival of the short flows' last byte to the
    #: first 10 us in which at least 95 % of the line rate arrives from the long flow. None where
    #: that once did not happen before the next interruption, or nothing was measured.
    recovery_s: float | None
    #: The least that RT can be, seconds: the same mean, in which an interruption without recovery
    #: counts with the time until the next one. None where nothing was measured.
    recovery_least_s: float | None
    #: Number of recoveries measured.
    recovered: int
    #: Number of interruptions that came before the long flow had recovered.
    not_recovered: int
    #: The long flow's rate (LBW), Gbit/s.
    long_gbps: float


@dataclass(frozen=True)
class SmoothedDelay:
    """Smoothed round-trip times of all connections, read every 100 ms, less the shortest
    round-trip time of all, microseconds."""

    p50_us: float
    p95_us: float


@dataclass(frozen=True, eq=False)
class QueueSeries:
    """The queue of a port over time."""

    #: Number of the port; port n leads to host n.
    port: int
    #: Times of the samples, microseconds, float64[samples].
    at_us: NDArray[np.float64]
    #: Bytes queued or being sent, int64[samples].
    bytes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Series:
    """Rates and queues over time, in the whole run."""

    #: Distance of the samples, microseconds.
    interval_us: float
    #: Rate at which new data arrived in each interval, Gbit/s, float64[flows, intervals].
    flow_gbps: NDArray[np.float64]
    #: One for each port to a receiver.
    queues: tuple[QueueSeries, ...]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Measurements of a run, from the end of the warm-up to the end unless said otherwise."""

    #: Name of the scenario.
    scenario: str
    seed: int
    #: Simulated time, seconds.
    duration_s: float
    #: The part of it that is not measured, seconds.
    warmup_s: float
    #: Switch utilisation (SU): egress of the ports to the receivers, percent of their line rate;
    #: their mean where there are several.
    utilisation_percent: float
    #: Fairness (FR): least rate of a flow over the greatest, percent; 0 where nothing arrived. Of
    #: the endless flows, if there are any.
    fairness_percent: float
    #: The same of the sums of each sending host's flows.
    host_fairness_percent: float
    #: Jain's index of the flows' rates, 1/flows to 1; 0 where nothing arrived.
    jain: float
    #: Queueing delay in switches of the packets that arrived (QL).
    queue_latency: Latency
    #: Drops in switches, Gbit/s.
    dropped_gbps: float
    #: Drops in switches, percent of the packets that those ports sent or dropped.
    dropped_percent: float
    #: Drops in switches, percent of the line rates of all links to receivers.
    loss_percent: float
    #: Packets of the whole run.
    counts: Counts
    #: Where long and short flows compete.
    long_short: LongShort | None
    #: Queueing delay as TCP sees it. None but with hosts of the sender "linux".
    smoothed_delay: SmoothedDelay | None
    #: Rate at which each flow's new data arrived, Gbit/s, float64[flows].
    flow_gbps: NDArray[np.float64]
    #: Each flow's sending and receiving host, int32[flows].
    flow_from: NDArray[np.int32]
    flow_to: NDArray[np.int32]
    #: Ports of switches that were used; port n leads to host n, ports between switches follow.
    #: int32[ports].
    port: NDArray[np.int32]
    #: Egress of each, percent of its line rate, float64[ports].
    port_utilisation_percent: NDArray[np.float64]
    #: Packets dropped at each, int64[ports].
    port_dropped_packets: NDArray[np.int64]
    #: Each time that all of a flow's data had arrived, in the whole run, in order of time:
    #: the flow, int32[completions],
    completion_flow: NDArray[np.int32]
    #: when it began to send that data, microseconds, float64[completions],
    completion_start_us: NDArray[np.float64]
    #: and how long it took until the last byte arrived, microseconds, float64[completions].
    completion_time_us: NDArray[np.float64]
    #: Rates and queues over time, if the scenario or the caller asked for them.
    series: Series | None

    def to_dict(self) -> dict[str, int | float | None]:
        """The figures that are one number each, by name, as in the columns of sweeps: without
        arrays, scenario and seed."""
        counts, long_short = self.counts, self.long_short
        # Where nothing arrived, nothing has waited: 0 would be the best of all queues.
        arrived = self.utilisation_percent > 0
        latency = dataclasses.asdict(self.queue_latency)
        smoothed = self.smoothed_delay
        times = self.completion_time_us
        return {
            "flows": len(self.flow_gbps),
            "duration_s": self.duration_s,
            "warmup_s": self.warmup_s,
            "utilisation_percent": self.utilisation_percent,
            "fairness_percent": self.fairness_percent,
            "host_fairness_percent": self.host_fairness_percent,
            "jain": self.jain,
            **{f"queue_{name}": value if arrived else None for name, value in latency.items()},
            "smoothed_p50_us": smoothed.p50_us if smoothed else None,
            "smoothed_p95_us": smoothed.p95_us if smoothed else None,
            "dropped_gbps": self.dropped_gbps,
            "dropped_percent": self.dropped_percent,
            "loss_percent": self.loss_percent,
            "recovery_s": long_short.recovery_s if long_short else None,
            "recovery_least_s": long_short.recovery_least_s if long_short else None,
            "not_recovered": long_short.not_recovered if long_short else None,
            "long_gbps": long_short.long_gbps if long_short else None,
            "completions": len(times),
            "completion_mean_us": float(times.mean()) if len(times) else None,
            "sent_packets": counts.sent_packets,
            "delivered_packets": counts.delivered_packets,
            "dropped_packets": counts.dropped_packets,
            "decisions": counts.decisions,
            "notifications": counts.notifications,
            "events": counts.events,
        }
