"""Makes a model file from a checkpoint of ADPG: the network in floating point and, but for an
LSTM, in 8 bits.

The ranges of the integers come from observations of the trained policy on its training scenarios,
with seeds of their own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thalweg import model, quantize
from thalweg.features import feature
from thalweg.train import adpg, checkpoint
from thalweg.train.environment import column, seeds, sender
from thalweg.train.networks import Lstm, Mlp, Policy
from thalweg.train.rollouts import Collector

#: Base round-trip time, nanoseconds, and line rate, bits per second, of the training scenarios by
#: their sender, for the record; a model's features are relative to those of the flow. With the
#: sender "linux": the references of the kernel's rules.
TRAINED_AT = {"nic": (12_000, 100_000_000_000), "linux": (2_000_000, 10_000_000_000)}


def observations(settings: adpg.Settings, policy: Policy, rows: int) -> NDArray[np.float32]:
    """The policy's observations, [up to rows, inputs], spread over one simulation of each
    scenario."""
    make = settings.maker()
    agent = adpg.Deterministic(settings.feature_set())
    collector = Collector(make, agent, settings.rollout)
    # Purpose 2: other simulations than those of training and evaluation.
    collector.start(seeds(settings.seed, 2, 0, len(settings.scenarios)))
    parts = []
    ended = False
    while not ended:
        rollouts = collector.collect(policy)
        parts.append(rollouts["observation"][rollouts.mask()])
        ended = rollouts.ended
    seen = np.concatenate(parts)
    return seen[:: max(1, len(seen) // rows)]


def _mlp(settings: adpg.Settings, policy: Mlp) -> model.Mlp:
    made = model.Mlp([model.Layer(np.asarray(weight, np.float32)) for weight in policy.weights])
    seen = observations(settings, policy, 20_000)
    made.quantised = quantize.quantise(made, quantize.calibrate(made, seen, 100.0))
    return made


def _lstm(path: Path, policy: Lstm) -> model.Lstm:
    """The LSTM of a file, with biases: training has the forget gate's 1 alone."""
    width = model.LSTM_WIDTH
    if len(policy.out) != width:
        raise ValueError(f"{path}: an LSTM of width {len(policy.out)}; files hold those of {width}")
    gates = np.asarray(policy.gates, np.float32)
    bias = np.zeros(4 * width, np.float32)
    bias[width : 2 * width] = 1
    none = np.zeros(width, np.float32)
    return model.Lstm(
        model.Layer(np.asarray(policy.layer, np.float32), none),
        np.ascontiguousarray(gates[:, :width]),
        np.ascontiguousarray(gates[:, width:]),
        bias,
        model.Layer(np.asarray(policy.out, np.float32)[None], np.zeros(1, np.float32)),
    )


def export(path: Path, name: str, directory: Path) -> Path:
    """Writes ``directory/name.safetensors`` from the checkpoint at ``path``; returns its path.
    Raises CheckpointError, and ValueError for a policy that model files cannot hold."""
    settings, policy, state = checkpoint.load(path, "adpg", adpg)
    features = settings.feature_set()
    base_rtt_ns, line_rate_bps = TRAINED_AT[sender(settings.scenarios)]
    made = model.Model(
        name=name,
        features=[
            model.Feature(feature(named)[0], float(scale))
            for named, scale in zip(features.names, features.scales, strict=True)
        ],
        history=features.history,
        target=settings.target,
        offset=settings.offset,
        training=model.Training(
            scenarios=[column(scenario) for scenario in settings.scenarios],
            seed=settings.seed,
            commit=state["commit"],
            base_rtt_ns=base_rtt_ns,
            line_rate_bps=line_rate_bps,
        ),
        policy=_lstm(path, policy) if settings.network == "lstm" else _mlp(settings, policy),
    )
    directory.mkdir(parents=True, exist_ok=True)
    to = directory / f"{name}.safetensors"
    model.write(made, to)
    return to


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m thalweg.train.export", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("checkpoint", type=Path, help="checkpoint.safetensors of a run")
    parser.add_argument("--name", required=True, help="name of the model and of its file")
    parser.add_argument("--output", type=Path, default=Path("models"), help="directory (models)")
    asked = parser.parse_args(arguments)
    try:
        print(export(asked.checkpoint, asked.name, asked.output))
    except (checkpoint.CheckpointError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
