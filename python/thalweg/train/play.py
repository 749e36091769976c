"""A model file at work on the packet simulator, on flows that start at unlike rates.

The simulator runs model files itself, and faster. Here every flow has a first rate of its own,
which shows how soon flows become equal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg import fixed, model, quantize
from thalweg.features import SCALES, FeatureSet, Observer, Signal, multiplier
from thalweg.sim import Scenario
from thalweg.train.environment import Decisions, PacketBatch


def feature_set(read: model.Model) -> FeatureSet:
    """The features of a model file, as training names them."""
    errors = [f.scale for f in read.features if f.name in ("error", "error_change")]
    law = Signal(read.target, read.offset, errors[0] if errors else None)
    names = []
    for feature in read.features:
        factor = feature.scale / SCALES.get(feature.name, law.error_scale)
        names.append(feature.name if factor == 1 else f"{feature.name}*{factor!r}")
    return FeatureSet(tuple(names), read.history, law)


class Player:
    """A model file that answers the decisions of ``keys`` flows: its network in floating point, or
    with ``int8`` its integers, which see the features rounded to Q15."""

    def __init__(self, read: model.Model, keys: int, int8: bool = False) -> None:
        if not isinstance(read.policy, model.Mlp):
            raise ValueError(f"{read.name}: expected an mlp")
        if int8 and read.policy.quantised is None:
            raise ValueError(f"{read.name}: expected one with integers")
        self._mlp = read.policy
        self._quantised = read.policy.quantised if int8 else None
        self._observer = Observer(feature_set(read), keys)

    def act(self, decisions: Decisions) -> NDArray[np.float32]:
        """Multipliers [n]."""
        key = decisions.key
        row, _, _ = self._observer.observe(
            key, decisions.rtt_s, decisions.base_rtt_s, decisions.rate, decisions.probe_lost
        )
        if self._quantised is None:
            u = quantize.infer_float(self._mlp, row).astype(np.float32)
        else:
            inputs = np.clip(np.rint(row * 32768.0), -32767, 32767).astype(np.int64)
            u = (fixed.infer_mlp(self._quantised, inputs) / 32768).astype(np.float32)
        self._observer.acted(key, u)
        return multiplier(u)


def play(
    read: model.Model,
    scenario: Scenario,
    seeds: Sequence[int],
    start: tuple[float, float],
    int8: bool = False,
) -> list[dict[str, float]]:
    """Outcomes, one a seed, of flows that start at rates drawn log-uniformly from ``start``,
    shares of the line rate; ``int8`` as for :class:`Player`."""
    batch = PacketBatch([scenario] * len(seeds), seeds, start)
    player = Player(read, batch.flows, int8)
    while (decisions := batch.advance()) is not None:
        batch.decide(player.act(decisions))
    return [dict(batch.outcome(env)) for env in range(len(seeds))]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m thalweg.train.play", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("model", help="model file")
    parser.add_argument("scenario", help="scenario file")
    parser.add_argument("--warmup-s", type=float, help="instead of the scenario's, seconds")
    parser.add_argument("--duration-s", type=float, help="instead of the scenario's, seconds")
    parser.add_argument(
        "--start", type=float, nargs=2, default=(1e-4, 1e-2), metavar=("LOW", "HIGH"),
        help="rates of the start, shares of the line rate (0.0001 0.01)",
    )  # fmt: skip
    parser.add_argument("--int8", action="store_true", help="decide with the integers")
    parser.add_argument("--seeds", type=int, default=8, help="runs, with seeds from 1 on (8)")
    asked = parser.parse_args(arguments)
    try:
        scenario = Scenario.load(asked.scenario).replace(
            duration_s=asked.duration_s, warmup_s=asked.warmup_s
        )
        seeds = range(1, asked.seeds + 1)
        outcomes = play(model.read(asked.model), scenario, seeds, tuple(asked.start), asked.int8)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("median [least … greatest; # the worst seed]")
    for name, worst in (("su", min), ("fr", min), ("ql_us", max), ("loss", max)):
        values = [outcome[name] for outcome in outcomes]
        ends = f"{min(values):.2f} … {max(values):.2f}"
        print(f"{name:6} {np.median(values):8.2f}  [{ends}; #{seeds[values.index(worst(values))]}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
