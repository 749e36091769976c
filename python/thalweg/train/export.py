"""Makes a model file from a checkpoint of ADPG: the network in floating point and, but for an
LSTM, in 8 bits.

The ranges of the integers come from observations of the trained policy at work on the scenarios
it was trained on, with seeds of their own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from thalweg import model, quantize
from thalweg.features import feature
from thalweg.train import adpg, checkpoint, scenarios
from thalweg.train.networks import Lstm, Mlp, Policy

#: Path through empty queues and line rate of the training scenarios, for the record; a model's
#: features are relative to those of the flow.
BASE_RTT_NS, LINE_RATE_BPS = 12_000, 100_000_000_000


def load(path: Path) -> tuple[adpg.Settings, Policy, dict[str, Any]]:
    """Settings, policy and state of a run from its checkpoint. Raises CheckpointError, and
    ValueError for a policy that model files cannot hold."""
    state = checkpoint.state(path, "adpg")
    settings = checkpoint.settings(path, adpg.Settings, state["settings"])
    policy = adpg.new_policy(settings)
    if isinstance(policy, Lstm) and settings.hidden[0] != model.LSTM_WIDTH:
        raise ValueError(
            f"{path}: an LSTM of width {settings.hidden[0]}; files hold those of {model.LSTM_WIDTH}"
        )
    optimiser = adpg.optimiser(settings).init(jax.tree.map(lambda x: x, policy))
    (policy, _), _ = checkpoint.read(path, "adpg", (policy, optimiser))
    return settings, policy, state


def observations(settings: adpg.Settings, policy: Policy, rows: int) -> NDArray[np.float32]:
    """What the policy sees, [up to rows, inputs]: of one simulation of each scenario, spread over
    its whole length."""
    collector = adpg.make_collector(settings)
    # Purpose 2: neither the training's simulations nor the evaluations'.
    collector.start(scenarios.seeds(settings.seed, 2, 0, len(settings.scenarios)))
    parts = []
    while True:
        collected = collector.collect(policy)
        parts.append(collected["observation"][collected.mask()])
        if collected.ended:
            break
    seen = np.concatenate(parts)
    return seen[:: max(1, len(seen) // rows)]


def _layers(policy: Mlp) -> model.Mlp:
    return model.Mlp([model.Layer(np.asarray(weight, np.float32)) for weight in policy.weights])


def _lstm(policy: Lstm) -> model.Lstm:
    """As files have it: with biases, of which training knows only the forget gate's 1."""
    width = model.LSTM_WIDTH
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


def export(
    path: Path, name: str, directory: Path, percentile: float = 100.0, rows: int = 20_000
) -> Path:
    """Writes ``directory/name.safetensors`` from the checkpoint at ``path``; where it is."""
    settings, policy, state = load(path)
    if isinstance(policy, Lstm):
        made_of: model.Mlp | model.Lstm = _lstm(policy)
    elif isinstance(policy, Mlp):
        made_of = _layers(policy)
        seen = observations(settings, policy, rows)
        made_of.quantised = quantize.quantise(
            made_of, quantize.calibrate(made_of, seen, percentile)
        )
    else:
        raise TypeError(f"a policy of {type(policy).__name__}: files hold Mlp and Lstm")
    features = settings.feature_set()
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
            scenarios=[scenarios.column(scenario) for scenario in settings.scenarios],
            seed=settings.seed,
            commit=state["commit"],
            base_rtt_ns=BASE_RTT_NS,
            line_rate_bps=LINE_RATE_BPS,
        ),
        policy=made_of,
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
