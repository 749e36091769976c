"""The loop around the stochastic baselines: episodes, checkpoints, curves.

ADPG has its own, in its file, with evaluations in between.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax

from thalweg.train import checkpoint, flags, log, scenarios
from thalweg.train.collect import Collected, Diverged, Pool
from thalweg.train.stochastic import ActorCritic

#: policy, optimiser's state, optimiser, rollouts, seed: the first two anew, and a row of figures.
Learn = Callable[
    [ActorCritic, optax.OptState, optax.GradientTransformation, Collected, tuple[int, ...]],
    tuple[ActorCritic, optax.OptState, dict[str, float]],
]


def finite(tree: Any) -> bool:
    """Whether all numbers of a tree are."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in leaves)


def train(
    kind: str,
    settings: Any,
    policy: ActorCritic,
    optimise: optax.GradientTransformation,
    pool: Pool,
    learn: Learn,
    columns: tuple[str, ...],
) -> ActorCritic:
    """Trains ``policy`` on flows until ``settings.updates``.

    Checkpoints are written between episodes, whose seeds follow from the run's seed and their
    number, so a run that was killed arrives at the same curve. A policy under which flows no longer
    decide has nothing left to learn from: training ends with it. ``settings`` has output, seed,
    scenarios, copies, updates, rollout and quiet. Raises Diverged, CheckpointError.
    """
    directory = Path(settings.output)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "checkpoint.safetensors"
    state = optimise.init(eqx.filter(policy, eqx.is_array))
    learned = {k: v for k, v in flags.as_json(settings).items() if k not in ("output", "quiet")}
    episode = update = decisions = 0
    if path.exists():
        (policy, state), found = checkpoint.read(path, kind, (policy, state))
        checkpoint.same_settings(path, found["settings"], learned)
        episode, update, decisions = found["episode"], found["update"], found["decisions"]
    commit = checkpoint.source_commit()
    with (
        log.Curves(
            directory / "curves.csv", ("episode", "decisions", *columns), update
        ) as curves,
        log.progress(settings.updates, update, settings.quiet) as bar,
    ):
        while update < settings.updates:
            count = settings.copies * len(settings.scenarios)
            pool.start(scenarios.seeds(settings.seed, 0, episode, count))
            ended, before = False, update
            while not ended and update < settings.updates:
                kept = "there is no checkpoint yet"
                if episode:
                    kept = f"the last good checkpoint is {path}"
                try:
                    rollouts = pool.collect(policy)
                except Diverged as error:
                    raise Diverged(f"update {update + 1}: {error}; {kept}") from error
                ended = rollouts.ended
                decisions += int(rollouts.length.sum())
                if rollouts.length.mean() < max(2, settings.rollout / 4):
                    continue
                new, new_state, row = learn(
                    policy, state, optimise, rollouts, (settings.seed, episode, update)
                )
                update += 1
                if not np.isfinite(row["objective"]) or not finite((new, new_state)):
                    raise Diverged(
                        f"update {update}: numbers that are not finite (objective "
                        f"{row['objective']}); {kept}. Try a smaller learning rate"
                    )
                policy, state = new, new_state
                curves.add(update, row | {"episode": episode, "decisions": decisions})
                bar.update()
                bar.set_postfix(reward=f"{row['reward']:.3g}", refresh=False)
            if update == before:
                few = (
                    f"episode {episode}: the simulations ended after "
                    f"{rollouts.length.mean():.1f} decisions per flow, too few to learn from"
                )
                if not episode:
                    raise ValueError(
                        f"{few}; lengthen them, or shorten the rollouts of {settings.rollout}"
                    )
                # It was enough before: by now flows hardly send, or lose nearly all they send.
                print(f"{few}: ended at update {update} of {settings.updates}", file=sys.stderr)
                break
            episode += 1
            checkpoint.write(
                path,
                kind,
                (policy, state),
                {
                    "episode": episode,
                    "update": update,
                    "decisions": decisions,
                    "settings": learned,
                    "commit": commit,
                },
            )
    return policy


def main(
    settings: type, train_: Callable[[Any], Any], arguments: Sequence[str] | None, about: str | None
) -> int:
    """The command line of a baseline."""
    chosen = flags.parse(settings, arguments, (about or "").split("\n")[0])
    began = time.monotonic()
    try:
        train_(chosen)
    except (Diverged, checkpoint.CheckpointError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{chosen.output}: {time.monotonic() - began:.0f} s")
    return 0
