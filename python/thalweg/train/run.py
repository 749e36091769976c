"""A training run around an algorithm's gradient steps: episodes, checkpoints, curves, command
line."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import equinox as eqx
import jax
import numpy as np
import optax
from numpy.typing import NDArray
from tqdm import tqdm

from thalweg import files
from thalweg.train import PINNED, checkpoint
from thalweg.train.environment import seeds
from thalweg.train.rollouts import Diverged, Rollouts
from thalweg.train.settings import Settings, as_json, parse

P = TypeVar("P")

#: Name of the checkpoint in a run's directory.
CHECKPOINT = "checkpoint.safetensors"

#: Settings that do not change the result. A run may go on with others.
BESIDE = ("output", "ray", "quiet")


class Pool(Protocol):
    """Collectors that work on the same policy, such as :class:`thalweg.train.rollouts.LocalPool`."""

    def start(self, seeds: NDArray[np.int64]) -> None: ...

    def collect(self, policy: Any) -> Rollouts: ...


class Run(Generic[P]):
    """Iterates over the rollouts of a run until ``settings.updates``; :meth:`step` must answer
    each. Goes on from the checkpoint in ``settings.output`` if there is one, for more updates if
    asked for more.

        with Run("name", settings, policy, optimiser, pool, columns, shown) as run:
            for rollouts in run:
                run.step(*learn(run.policy, run.state, rollouts))

    An episode is one set of simulations from start to end, with as many steps as fit. Its seeds
    follow from the run's seed and its number. Checkpoints are written between episodes: a killed
    run repeats its last episode and gives the same curve.

    kind: the algorithm, as checkpoints name it. columns: of the curves; ``objective`` is one.
    shown: the column of the progress line. may_fall_silent: where flows come to decide so rarely
    that an episode is too short to learn from, training ends with that result; otherwise, and in
    the first episode, it is a fault.

    Raises Diverged, CheckpointError, ValueError, OSError; the last good checkpoint is kept.
    """

    def __init__(
        self,
        kind: str,
        settings: Settings,
        policy: P,
        optimise: optax.GradientTransformation,
        pool: Pool,
        columns: Sequence[str],
        shown: str,
        may_fall_silent: bool = False,
    ) -> None:
        self._kind, self._settings, self._pool = kind, settings, pool
        self._shown, self._may_fall_silent = shown, may_fall_silent
        self._directory = Path(settings.output)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._path = self._directory / CHECKPOINT
        self._learned = {k: v for k, v in as_json(settings).items() if k not in BESIDE}
        self._commit = checkpoint.source_commit()
        #: The policy so far, and the optimiser's state.
        self.policy, self.state = policy, optimise.init(eqx.filter(policy, eqx.is_array))
        self.episode = self.update = self._decisions = 0
        #: Whether the next step is the last of an episode.
        self.ends = False
        if self._path.exists():
            # First: with other settings arrays may have other shapes, too.
            stored = checkpoint.state(self._path, kind)["settings"]
            checkpoint.same_settings(self._path, stored, self._learned)
            (self.policy, self.state), found = checkpoint.read(
                self._path, kind, (self.policy, self.state)
            )
            self.episode, self.update = found["episode"], found["update"]
            self._decisions = found["decisions"]
        elif settings.begin_with is not None:
            (self.policy, _), _ = checkpoint.read(
                Path(settings.begin_with), kind, (self.policy, self.state)
            )
        self._open = contextlib.ExitStack()
        self._curves = self._open.enter_context(
            Curves(self._directory / "curves.csv", ("episode", "decisions", *columns), self.update)
        )
        self._bar = self._open.enter_context(
            tqdm(
                total=settings.updates,
                initial=self.update,
                unit="update",
                disable=settings.quiet,
                dynamic_ncols=True,
            )
        )

    def __enter__(self) -> Run[P]:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def seed(self) -> tuple[int, int, int]:
        """A seed for the next step."""
        return self._settings.seed, self.episode, self.update

    @property
    def last(self) -> bool:
        """Whether the next step is the last of the run."""
        return self.update + 1 == self._settings.updates

    def __iter__(self) -> Iterator[Rollouts]:
        s = self._settings
        while self.update < s.updates:
            self._pool.start(seeds(s.seed, 0, self.episode, s.copies * len(s.scenarios)))
            before = self.update
            ended = False
            while not ended and self.update < s.updates:
                try:
                    rollouts = self._pool.collect(self.policy)
                except Diverged as error:
                    raise self._diverged(str(error)) from error
                ended = rollouts.ended
                self._decisions += int(rollouts.length.sum())
                # An episode's last rollouts may be too short to learn from.
                if rollouts.length.mean() >= max(2, s.rollout / 4):
                    self.ends = ended or self.last
                    yield rollouts
            if self.update == before:
                few = (
                    f"episode {self.episode}: the simulations ended after "
                    f"{rollouts.length.mean():.1f} decisions per flow, too few to learn from"
                )
                if not (self.episode and self._may_fall_silent):
                    raise ValueError(
                        f"{few}; lengthen them, or shorten the rollouts of {s.rollout}"
                    )
                # Earlier episodes sufficed: by now flows hardly send, or lose nearly all that they
                # send.
                print(f"{few}: ended at update {self.update} of {s.updates}", file=sys.stderr)
                return
            self.episode += 1
            self._write()

    def step(
        self,
        policy: P,
        state: optax.OptState,
        row: Mapping[str, float],
        evaluate: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Takes the policy after the last rollouts, and the row of the curves. ``evaluate`` gives
        more columns, and is called once all numbers are known to be finite."""
        if not np.isfinite(row["objective"]) or not finite((policy, state)):
            raise self._diverged(
                f"numbers that are not finite (objective {row['objective']})",
                ". Try a smaller learning rate",
            )
        more = evaluate()
        self.policy, self.state = policy, state
        self.update += 1
        counts = {"episode": self.episode, "decisions": self._decisions}
        self._curves.add(self.update, {**row, **more, **counts})
        self._bar.update()
        self._bar.set_postfix({self._shown: f"{row[self._shown]:.3g}"}, refresh=False)

    def _write(self) -> None:
        state = {
            "episode": self.episode,
            "update": self.update,
            "decisions": self._decisions,
            "settings": self._learned,
            "commit": self._commit,
        }
        checkpoint.write(self._path, self._kind, (self.policy, self.state), state)

    def _diverged(self, why: str, more: str = "") -> Diverged:
        return Diverged(f"update {self.update + 1}: {why}; {_kept(self._directory)}{more}")


class Curves:
    """Rows of named numbers in a CSV file, the same columns in each; the first is ``update``.

    Going on from a checkpoint, rows that came after it are removed first: the run writes them
    again. Each row is on disk when :meth:`add` returns, as far as the kernel is concerned.
    """

    def __init__(self, path: Path, columns: tuple[str, ...], after_update: int) -> None:
        self._columns = ("update", *columns)
        kept: list[list[str]] = []
        if after_update > 0 and path.exists():
            with open(path, newline="") as file:
                rows = csv.reader(file)
                found = tuple(next(rows, ()))
                if found != self._columns:
                    raise ValueError(f"{path}:1: columns {found}, expected {self._columns}")
                kept = [
                    row
                    for row in rows
                    # The end of the process may cut a row short.
                    if len(row) == len(self._columns) and int(row[0]) <= after_update
                ]
        text = io.StringIO(newline="")
        csv.writer(text).writerows([self._columns, *kept])
        files.replace(path, text.getvalue().encode())
        self._path = path
        self._file = open(path, "a", newline="")  # noqa: SIM115 (until close)
        self._writer = csv.writer(self._file)

    def add(self, update: int, values: Mapping[str, float]) -> None:
        """One row; a column without a value stays empty. Raises OSError that names the file."""
        try:
            self._writer.writerow(
                [update] + [f"{values[c]:.6g}" if c in values else "" for c in self._columns[1:]]
            )
            self._file.flush()
        except OSError as error:
            # Closing the file writes once more, and would raise instead.
            with contextlib.suppress(OSError):
                self._file.close()
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def __enter__(self) -> Curves:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def finite(tree: Any) -> bool:
    """Whether all numbers of a tree are."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in leaves)


def _kept(directory: Path) -> str:
    """The words for a run that ends early: the checkpoint that it leaves."""
    path = directory / CHECKPOINT
    return f"the last good checkpoint is {path}" if path.exists() else "there is no checkpoint yet"


def command_line(
    settings: type[Any],
    train: Callable[[Any], Any],
    arguments: Sequence[str] | None,
    about: str | None,
) -> int:
    """The command line of an algorithm: reads the settings and calls ``train``. Exit code: 0, 1
    after a failure, 130 if interrupted."""
    chosen = parse(settings, arguments, (about or "").split("\n")[0])
    if not PINNED:
        print("note: with this jaxlib, weights depend on the processor", file=sys.stderr)
    began = time.monotonic()
    try:
        train(chosen)
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
