"""Aurora: a baseline with its own observation and reward, trained by PPO.

After "A Deep Reinforcement Learning Perspective on Internet Congestion Control" (Jay et al.,
2019). It was made for one flow on a link with random loss. Among many flows it is expected to fail:
its reward is selfish. An interval lies between two decisions of a flow.

Observation: of the last ten intervals the latency gradient (change of the round-trip time per
time), the latency ratio (round-trip time / smallest so far) and the send ratio (sent / delivered).
Action a: the rate is multiplied by 1 + 0.025 a, or divided by 1 - 0.025 a where a is negative.
Reward: (10 * throughput - 1000 * latency - 2000 * loss) / 1000.

Departures from the source: throughput (packets per second) and latency (seconds) are those of a
reference link, in the middle of Aurora's training range, at the same fraction of the line rate and
the same inflation. A datacenter's link has 10^5 times the rate and 10^-4 of the latency, which
would make one of the two terms vanish. "Sent" counts packets delivered or lost in the interval.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from thalweg.features import Floats
from thalweg.train import ppo
from thalweg.train.environment import Decisions, MakeBatch, maker
from thalweg.train.rollouts import LocalPool
from thalweg.train.run import Run, command_line
from thalweg.train.settings import Settings as Common
from thalweg.train.settings import flag
from thalweg.train.stochastic import ActorCritic, Gaussian, Stochastic

#: Numbers of an interval in the observation.
SIGNALS = 3

#: Change of the rate by an action of 1.
STEP = 0.025

#: Bound of an action, as more would be no congestion control, and of the send ratio.
MOST = 10.0


@dataclass(frozen=True)
class Settings(ppo.Algorithm, Common):
    """Settings of a run."""

    output: str = flag("runs/aurora", "directory of the checkpoint and the curves")
    intervals: int = flag(10, "intervals that an observation spans")
    throughput_weight: float = flag(10.0, "reward of a packet per second on the reference link")
    latency_weight: float = flag(1000.0, "cost of a second of round-trip time there")
    loss_weight: float = flag(2000.0, "cost of losing everything")
    reward_scale: float = flag(0.001, "factor of the reward")
    reference_packets_per_s: float = flag(500.0, "rate of the reference link")
    reference_base_rtt_s: float = flag(0.1, "base round-trip time of the reference link, seconds")


class Intervals:
    """Aurora's view of flows; an :class:`thalweg.train.stochastic.Encoder`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.size = SIGNALS * settings.intervals

    def reset(self, keys: int) -> None:
        # An interval without events: no gradient, both ratios 1.
        empty = np.array([0, 1, 1], np.float32)
        self._window = np.tile(empty, (keys, self._settings.intervals))
        self._smallest = np.full(keys, np.inf, np.float32)
        self._rtt = np.full(keys, np.nan, np.float32)
        self._time = np.zeros(keys)

    def observe(self, decisions: Decisions) -> tuple[Floats, Floats]:
        key, rtt = decisions.key, np.asarray(decisions.rtt_s, np.float32)
        elapsed = np.maximum(decisions.time_s - self._time[key], 1e-9)
        first = np.isnan(self._rtt[key])
        gradient = np.where(first, 0, (rtt - np.where(first, rtt, self._rtt[key])) / elapsed)
        smallest = np.minimum(self._smallest[key], rtt)
        sent = decisions.acked_bytes + decisions.lost_bytes
        ratio = np.where(sent > 0, sent / np.maximum(decisions.acked_bytes, 1e-9), 1)
        loss = np.where(sent > 0, decisions.lost_bytes / np.maximum(sent, 1e-9), 0)

        row = np.empty((len(key), self.size), np.float32)
        row[:, :-SIGNALS] = self._window[key, SIGNALS:]
        row[:, -3] = np.clip(gradient, -MOST, MOST)
        row[:, -2] = np.minimum(rtt / smallest, MOST)
        row[:, -1] = np.minimum(ratio, MOST)
        self._window[key] = row
        self._smallest[key], self._rtt[key], self._time[key] = smallest, rtt, decisions.time_s

        s = self._settings
        delivered = decisions.rate * (1 - loss)
        reward = (
            s.throughput_weight * delivered * s.reference_packets_per_s
            - s.latency_weight * rtt / decisions.base_rtt_s * s.reference_base_rtt_s
            - s.loss_weight * loss
        )
        return row, (reward * s.reward_scale).astype(np.float32)

    def answer(self, decisions: Decisions, action: Floats) -> Floats:
        a = np.clip(action[:, 0], -MOST, MOST)
        up, down = 1 + STEP * np.maximum(a, 0), 1 - STEP * np.minimum(a, 0)
        return (up / down).astype(np.float32)


def new_policy(settings: Settings) -> ActorCritic:
    """An untrained policy and its critic."""
    size = SIGNALS * settings.intervals
    return ActorCritic(size, settings.hidden, Gaussian(1), jax.random.key(settings.seed))


def agent(settings: Settings, explore: bool = True) -> Stochastic:
    """The agent that acts by a policy of such settings; without ``explore`` it takes the likeliest
    action."""
    return Stochastic(Intervals(settings), Gaussian(1), explore)


optimiser = ppo.optimiser


def train(settings: Settings, make: MakeBatch | None = None) -> ActorCritic:
    """Trains: see :func:`thalweg.train.ppo.train`."""
    make = make or maker(settings.scenarios, settings.duration_s)
    pool = LocalPool(make, functools.partial(agent, settings), settings.rollout)
    untrained, optimise = new_policy(settings), optimiser(settings)
    with Run(
        "aurora", settings, untrained, optimise, pool, ppo.COLUMNS, "reward", may_fall_silent=True
    ) as run:
        for rollouts in run:
            run.step(*ppo.learn(settings, run.policy, run.state, rollouts, run.seed))
    return run.policy


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    return command_line(Settings, train, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
