"""The loop of every training run: episodes, gradient steps, checkpoints, curves; and its command
line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
import optax

from thalweg.train import PINNED, checkpoint, flags, log, scenarios
from thalweg.train.collect import Collected, Diverged, Pool

P = TypeVar("P")

#: Name of the checkpoint in a run's directory.
CHECKPOINT = "checkpoint.safetensors"

#: Settings that do not decide what is learned. A run may go on with others.
BESIDE = ("output", "ray", "quiet")

#: policy, optimiser's state, optimiser, rollouts, seed: the first two anew, and a row of figures,
#: of which ``objective`` must be one.
Learn = Callable[
    [P, optax.OptState, optax.GradientTransformation, Collected, tuple[int, ...]],
    tuple[P, optax.OptState, dict[str, float]],
]

#: policy, episode, whether it is the last row: more figures for the last row of an episode.
Evaluate = Callable[[P, int, bool], dict[str, float]]


def finite(tree: Any) -> bool:
    """Whether all numbers of a tree are."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in leaves)


def train(
    kind: str,
    settings: Any,
    policy: P,
    optimise: optax.GradientTransformation,
    pool: Pool,
    learn: Learn[P],
    columns: tuple[str, ...],
    *,
    shown: str,
    evaluate: Evaluate[P] | None = None,
    may_fall_silent: bool = False,
) -> P:
    """Trains ``policy`` until ``settings.updates``, going on from the checkpoint in
    ``settings.output`` if there is one.

    An episode is one set of simulations from start to end, with as many gradient steps as fit.
    Its seeds follow from the run's seed and its number, and checkpoints are written between
    episodes: a run that was killed repeats its last episode and arrives at the same curve.

    kind: the algorithm, as checkpoints name it. settings: has output, seed, scenarios, copies,
    updates, rollout and quiet. columns: of the curves, those of ``learn`` and ``evaluate``.
    shown: the one that the progress line shows. may_fall_silent: a policy under which flows come
    to decide so rarely that an episode holds too little to learn from is a result, and ends
    training; otherwise, and in the first episode, it is a fault.

    Raises Diverged, CheckpointError, ValueError, OSError; the last good checkpoint is kept.
    """
    directory = Path(settings.output)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / CHECKPOINT
    state = optimise.init(eqx.filter(policy, eqx.is_array))
    learned = {k: v for k, v in flags.as_json(settings).items() if k not in BESIDE}
    episode = update = decisions = 0
    if path.exists():
        # First, for of other settings arrays may be of other shapes, too.
        checkpoint.same_settings(path, checkpoint.state(path, kind)["settings"], learned)
        (policy, state), found = checkpoint.read(path, kind, (policy, state))
        episode, update, decisions = found["episode"], found["update"], found["decisions"]
    commit = checkpoint.source_commit()
    with (
        log.Curves(directory / "curves.csv", ("episode", "decisions", *columns), update) as curves,
        log.progress(settings.updates, update, settings.quiet) as bar,
    ):
        while update < settings.updates:
            count = settings.copies * len(settings.scenarios)
            pool.start(scenarios.seeds(settings.seed, 0, episode, count))
            ended, before = False, update
            while not ended and update < settings.updates:
                try:
                    rollouts = pool.collect(policy)
                except Diverged as error:
                    raise Diverged(f"update {update + 1}: {error}; {_kept(directory)}") from error
                ended = rollouts.ended
                decisions += int(rollouts.length.sum())
                # The end of an episode may leave too little to learn from.
                if rollouts.length.mean() < max(2, settings.rollout / 4):
                    continue
                new, new_state, row = learn(
                    policy, state, optimise, rollouts, (settings.seed, episode, update)
                )
                update += 1
                if not np.isfinite(row["objective"]) or not finite((new, new_state)):
                    raise Diverged(
                        f"update {update}: numbers that are not finite (objective "
                        f"{row['objective']}); {_kept(directory)}. Try a smaller learning rate"
                    )
                policy, state = new, new_state
                if evaluate is not None and (ended or update == settings.updates):
                    row |= evaluate(policy, episode, update == settings.updates)
                curves.add(update, row | {"episode": episode, "decisions": decisions})
                bar.update()
                bar.set_postfix({shown: f"{row[shown]:.3g}"}, refresh=False)
            if update == before:
                few = (
                    f"episode {episode}: the simulations ended after "
                    f"{rollouts.length.mean():.1f} decisions per flow, too few to learn from"
                )
                if not (episode and may_fall_silent):
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


def _kept(directory: Path) -> str:
    """What a run that ends early leaves."""
    path = directory / CHECKPOINT
    return f"the last good checkpoint is {path}" if path.exists() else "there is no checkpoint yet"


def main(
    settings: type, run: Callable[[Any], Any], arguments: Sequence[str] | None, about: str | None
) -> int:
    """The command line of an algorithm: reads the settings and has ``run`` train by them. The exit
    code: 0, 1 where something failed, 130 if interrupted."""
    chosen: Any = flags.parse(settings, arguments, (about or "").split("\n")[0])
    if not PINNED:
        print("note: with this jaxlib, weights depend on the processor", file=sys.stderr)
    began = time.monotonic()
    try:
        run(chosen)
    except (Diverged, checkpoint.CheckpointError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}; {_kept(Path(chosen.output))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; {_kept(Path(chosen.output))}", file=sys.stderr)
        return 130
    print(f"{chosen.output}: {time.monotonic() - began:.0f} s")
    return 0
