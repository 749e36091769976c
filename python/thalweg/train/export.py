"""Makes a model file from a checkpoint of ADPG: the network in floating point and in 8 bits.

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
from thalweg.train.networks import Mlp, Policy

#: Path through empty queues and line rate of the training scenarios, for the record; a model's
#: features are relative to those of the flow.
BASE_RTT_NS, LINE_RATE_BPS = 12_000, 100_000_000_000


def load(path: Path) -> tuple[adpg.Settings, Policy, dict[str, Any]]:
    """Settings, policy and state of a run from its checkpoint. Raises CheckpointError, and
    ValueError for a policy that model files cannot hold."""
    state = checkpoint.state(path, "adpg")
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in state["settings"].items()
    }
    settings = adpg.Settings(**fields)
    policy = adpg.new_policy(settings)
    if not isinstance(policy, Mlp):
        raise ValueError(f"{path}: network {settings.network}; expected mlp")
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


def export(
    path: Path, name: str, directory: Path, percentile: float = 100.0, rows: int = 20_000
) -> Path:
    """Writes ``directory/name.safetensors`` from the checkpoint at ``path``; where it is."""
    settings, policy, state = load(path)
    mlp = model.Mlp([model.Layer(np.asarray(weight, np.float32)) for weight in policy.weights])
    seen = observations(settings, policy, rows)
    mlp.quantised = quantize.quantise(mlp, quantize.calibrate(mlp, seen, percentile))
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
        policy=mlp,
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
