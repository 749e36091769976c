"""Flows at one bottleneck as a fluid with bursts: fast, and close enough for training.

It serves tests, and trials of a training run in seconds. Figures come from the packet simulator.

Model. Flow i of N sends at the fraction x_i of the line rate. The queue (in seconds of the
bottleneck) grows by the flows' excess over the bottleneck's rate:

    dq/dt = sum(x) / c - 1, bounded by 0 and the limit, beyond which packets are lost,

where c is the bottleneck's rate as a fraction of the senders' line rate; the load is sum(x) / c.

Bursts that meet by chance add waiting. Of N senders with periodic bursts, at load r, the number w
of bursts ahead of an arriving packet has, near full load, about the tail

    P(w > v) = exp(-2 v (v / N + 1 - r))

(the Brownian bridge approximation of the N*D/D/1 queue: Hajek, "Heavy traffic limit theorems for
queues with periodic arrivals"; Roberts, Mocci, Virtamo, "Broadband network teletraffic", part
III). At full load its mean is sqrt(pi N / 8) bursts: waiting grows with the square root of the
number of flows, and the controller's signal builds on that. With unequal rates N is replaced by
sum(x)^2 / sum(x^2).

A flow has one probe under way, which is never lost. It meets the queue half a base RTT after it
left. Its answer, at which the flow decides, is back half a base RTT later. The next probe leaves
with the next packet. Time advances in steps of ``step`` base RTTs: decisions within a step are one
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.train.environment import Given


@dataclass(frozen=True)
class Bottleneck:
    """One link that some flows share. First rates are drawn log-uniformly."""

    flows: int
    duration_s: float = 10e-3
    warm_up_s: float = 5e-3  # warm-up, not part of the outcome
    line_rate_bps: float = 100e9
    capacity: float = 1.0  # the bottleneck's rate, as a fraction of the line rate
    random_loss: float = 0.0  # probability that a packet is lost on the way, whatever the load
    base_rtt_s: float = 12e-6
    packet_bytes: int = 1024
    burst_bytes: int = 8192
    limit_bytes: int = 10 << 20
    mark_bytes: int = 400_000  # packets that meet a longer queue are marked
    start_rate: tuple[float, float] = (0.01, 1.0)
    start_spread_s: float = 1e-4
    minimum_rate: float = 1e-5
    noise: bool = True  # off: waiting due to bursts is its mean

    def __post_init__(self) -> None:
        if self.flows < 1:
            raise ValueError(f"bottleneck: {self.flows} flows; expected at least 1")
        if not (0 < self.capacity <= 1 and 0 <= self.random_loss < 1):
            raise ValueError(
                f"bottleneck: capacity {self.capacity} or random_loss {self.random_loss} is no "
                "fraction"
            )
        if not 0 < self.start_rate[0] <= self.start_rate[1] <= 1:
            raise ValueError(f"bottleneck: start_rate {self.start_rate} is no range within (0, 1]")
        if not 0 <= self.warm_up_s < self.duration_s:
            raise ValueError(
                f"bottleneck: warm_up_s {self.warm_up_s} must be below duration_s {self.duration_s}"
            )


class FluidBatch:
    """See :class:`thalweg.train.environment.Batch`. The outcome depends on all scenarios and
    seeds of the batch: they share one stream of random numbers."""

    def __init__(
        self, scenarios: Sequence[Bottleneck], seeds: Sequence[int], step: float = 0.25
    ) -> None:
        if len(scenarios) != len(seeds):
            raise ValueError(f"{len(scenarios)} scenarios but {len(seeds)} seeds")
        if not scenarios:
            raise ValueError("no scenarios; expected at least one")
        self._rng = np.random.default_rng([int(seed) for seed in seeds])
        self.scenarios = tuple(scenarios)

        def each(name: str) -> NDArray[np.float64]:
            return np.array([getattr(scenario, name) for scenario in scenarios], np.float64)

        count = np.array([scenario.flows for scenario in scenarios])
        self._starts = np.concatenate([[0], np.cumsum(count)[:-1]])
        self._env = np.repeat(np.arange(len(scenarios), dtype=np.int32), count)
        keys = len(self._env)
        self._flow = (np.arange(keys) - self._starts[self._env]).astype(np.int32)

        # Per simulation.
        self._capacity = each("capacity")
        line_byte_s = 8 / each("line_rate_bps")
        byte_s = line_byte_s / self._capacity
        self._duration, self._warm_up = each("duration_s"), each("warm_up_s")
        self._dt = each("base_rtt_s") * step
        self._limit = each("limit_bytes") * byte_s
        self._mark = each("mark_bytes") * byte_s
        self._time = np.zeros(len(scenarios))
        self._queue = np.zeros(len(scenarios))
        # Integrals over time of the packets of a flow of rate 1 that are delivered, marked and
        # lost.
        self._delivered, self._marked, self._lost = np.zeros((3, len(scenarios)))
        self._egress = np.zeros(len(scenarios))
        self._dropped = np.zeros(len(scenarios))
        self._counted = np.zeros(len(scenarios))

        # Per flow.
        self._base = each("base_rtt_s")[self._env]
        self._bytes_per_s = 1 / line_byte_s[self._env]
        self._burst_s = (each("burst_bytes") * byte_s)[self._env]
        self._packet_s = (each("packet_bytes") * line_byte_s)[self._env]
        self._packet_bytes = each("packet_bytes")[self._env]
        self._random_loss = each("random_loss")[self._env]
        self._floor = each("minimum_rate")[self._env]
        self._noisy = np.array([s.noise for s in scenarios])[self._env]
        low = np.log([s.start_rate[0] for s in scenarios])[self._env]
        high = np.log([s.start_rate[1] for s in scenarios])[self._env]
        self._rate = np.exp(self._rng.uniform(low, high))
        self._sent_at = self._rng.uniform(0, 1, keys) * each("start_spread_s")[self._env]
        self._meets_at = self._sent_at + self._base / 2
        self._answer_at = np.full(keys, np.inf)
        self._wait = np.zeros(keys)
        # The integrals as they stood at the flow's last decision.
        self._seen = np.zeros((3, keys))
        self._got = np.zeros(keys)  # bytes after the warm-up
        self._waited = np.zeros(keys)
        self._probes = np.zeros(keys)
        self._pending: NDArray[np.intp] | None = None
        self._sum_rates()

    @property
    def flows(self) -> int:
        return len(self._env)

    def _sum_rates(self) -> None:
        total = np.add.reduceat(self._rate, self._starts)
        self._load = total / self._capacity
        self._senders = total**2 / np.add.reduceat(self._rate**2, self._starts)

    def advance(self) -> Given | None:
        if self._pending is not None:
            raise RuntimeError("advance() before the last decisions were answered by decide()")
        while True:
            running = self._time < self._duration
            if not running.any():
                return None
            self._move(np.where(running, self._dt, 0.0))
            due = np.flatnonzero(self._answer_at <= self._time[self._env])
            if not running.all():
                due = due[running[self._env[due]]]
            if due.size:
                return self._report(due)

    def _move(self, dt: NDArray[np.float64]) -> None:
        before = self._queue
        level = before + (self._load - 1) * dt
        over = np.maximum(level - self._limit, 0)
        self._queue = np.clip(level, 0, self._limit)
        sent = self._load * dt
        lost = np.divide(over, sent, out=np.zeros_like(sent), where=sent > 0) * dt
        self._lost += lost
        egress = np.minimum(sent + before, dt)
        delivered = egress / self._load
        self._delivered += delivered
        self._marked += np.where(self._queue > self._mark, delivered, 0)
        counts = np.where(self._time >= self._warm_up, dt, 0)
        self._counted += counts
        self._egress += egress * (counts > 0)
        self._dropped += over * (counts > 0)
        self._time = self._time + dt

        meets = np.flatnonzero(self._meets_at <= self._time[self._env])
        if meets.size:
            env = self._env[meets]
            spare = np.maximum(1 - self._load[env], 0)
            n = self._senders[env]
            chance = self._rng.exponential(size=len(meets))
            bursts = chance / (spare + np.sqrt(spare**2 + 2 * chance / n))
            if not self._noisy.all():
                # The mean of the same law: with c = spare * sqrt(n / 2) it is
                # sqrt(pi n / 8) * erfcx(c), where erfcx(c) = exp(c^2) erfc(c).
                from scipy.special import erfcx

                mean = np.sqrt(np.pi * n / 8) * erfcx(spare * np.sqrt(n / 2))
                bursts = np.where(self._noisy[meets], bursts, mean)
            self._wait[meets] = self._queue[env] + bursts * self._burst_s[meets]
            self._answer_at[meets] = (
                self._meets_at[meets] + self._wait[meets] + self._base[meets] / 2
            )
            self._meets_at[meets] = np.inf

    def _report(self, key: NDArray[np.intp]) -> Given:
        self._pending = key
        env = self._env[key]
        rate = self._rate[key]
        now = np.stack([self._delivered[env], self._marked[env], self._lost[env]])
        acked, marked, lost = (now - self._seen[:, key]) * rate * self._bytes_per_s[key]
        self._seen[:, key] = now
        if self._random_loss.any():
            size = self._packet_bytes[key]
            gone = self._rng.poisson(self._random_loss[key] * acked / size) * size
            gone = np.minimum(gone, acked)
            acked, lost = acked - gone, lost + gone
        late = self._answer_at[key] >= self._warm_up[env]
        self._got[key] += np.where(late, acked, 0)
        self._waited[key] += np.where(late, self._wait[key], 0)
        self._probes[key] += late
        return Given(
            env=env,
            flow=self._flow[key],
            key=key.astype(np.int32),
            time_s=self._answer_at[key],
            rtt_s=(self._base[key] + self._wait[key]).astype(np.float32),
            base_rtt_s=self._base[key].astype(np.float32),
            rate=rate.astype(np.float32),
            acked_bytes=acked.astype(np.float32),
            marked_bytes=marked.astype(np.float32),
            lost_bytes=lost.astype(np.float32),
            probe_lost=np.zeros(len(key), np.bool_),
        )

    def decide(self, multiplier: NDArray[np.float32]) -> None:
        key = self._pending
        if key is None:
            raise RuntimeError("decide() without decisions that wait for an answer")
        multiplier = np.asarray(multiplier)
        if multiplier.shape != key.shape:
            raise ValueError(f"multiplier has shape {multiplier.shape}, expected {key.shape}")
        if not (np.isfinite(multiplier) & (multiplier > 0)).all():
            raise ValueError("multiplier: found a number that is not finite and above 0")
        self._rate[key] = np.clip(self._rate[key] * multiplier, self._floor[key], 1.0)
        spaced = self._sent_at[key] + self._packet_s[key] / self._rate[key]
        self._sent_at[key] = np.maximum(self._answer_at[key], spaced)
        self._meets_at[key] = self._sent_at[key] + self._base[key] / 2
        self._answer_at[key] = np.inf
        self._pending = None
        self._sum_rates()

    def rates(self, env: int) -> NDArray[np.float64]:
        """The flows' rates now, fractions of the line rate."""
        return self._rate[self._env == env].copy()

    def outcome(self, env: int) -> dict[str, float]:
        mine = self._env == env
        counted = self._counted[env]
        if counted <= 0:
            raise RuntimeError(f"simulation {env} has not passed its warm-up")
        got = self._got[mine]
        return {
            "su": 100 * self._egress[env] / counted,
            "fr": 100 * got.min() / got.max() if got.max() > 0 else 0.0,
            "ql_us": 1e6 * self._waited[mine].sum() / max(self._probes[mine].sum(), 1),
            "loss": 100 * self._dropped[env] / counted,
        }
