"""Checkpoints, from which a killed training run goes on. There is always a whole one.

A checkpoint is a safetensors file: the arrays of any tree (networks, optimiser states), in the
order of its leaves, and JSON in the metadata. It is no model file, which is for use, not for going
on.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

import thalweg
from thalweg import files

Tree = TypeVar("Tree")

#: Grows whenever content or meaning of checkpoints changes.
VERSION = 1

#: Keys of the state of every run: episodes, gradient steps and decisions so far, the settings as
#: :func:`thalweg.train.settings.as_json` makes them, and the commit of the source.
STATE = {"episode": int, "update": int, "decisions": int, "settings": dict, "commit": str}


class CheckpointError(Exception):
    """A file that is no usable checkpoint for this run. The message names it, and what was found
    and expected."""


def write(path: Path, kind: str, tree: Any, state: dict[str, Any]) -> None:
    """Replaces the checkpoint at ``path`` in one step: readers find the old or the new one, even if
    the process is killed.

    kind: the algorithm. tree: any PyTree; its arrays are kept. state: JSON, with the keys of
    :data:`STATE`. Raises OSError that names the file, and leaves the old one.
    """
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    tensors = {f"{i:04}": np.array(leaf, order="C") for i, leaf in enumerate(leaves)}
    head = {"version": VERSION, "kind": kind, "state": state}
    metadata = {"thalweg_checkpoint": json.dumps(head)}
    files.replace(path, save(tensors, metadata=metadata))


def read(path: Path, kind: str, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """The tree and the state. ``like`` has the expected shapes.

    Raises CheckpointError for a file that is damaged, of another version or algorithm, of other
    shapes, or with numbers that are not finite, and for one that cannot be read.
    """
    head, found = _open(path, kind)
    arrays, rest = eqx.partition(like, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    names = [f"{i:04}" for i in range(len(leaves))]
    if sorted(found) != names:
        raise CheckpointError(f"{path}: holds {len(found)} arrays, expected {len(names)}")
    for name, leaf in zip(names, leaves):
        if found[name].shape != leaf.shape or found[name].dtype != leaf.dtype:
            raise CheckpointError(
                f"{path}: array {name} is {found[name].dtype}{found[name].shape}, "
                f"expected {leaf.dtype}{leaf.shape}; was it trained with other settings?"
            )
        if not np.isfinite(found[name]).all():
            raise CheckpointError(f"{path}: array {name} holds numbers that are not finite")
    filled = jax.tree.unflatten(structure, [jax.numpy.asarray(found[name]) for name in names])
    return eqx.combine(filled, rest), head["state"]


def _open(path: Path, kind: str | None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Head and arrays of a checkpoint that is whole."""
    try:
        with safe_open(path, "np") as file:
            head = json.loads((file.metadata() or {}).get("thalweg_checkpoint", "null"))
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator)
    except (SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: not a checkpoint: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(head, dict) or "version" not in head:
        raise CheckpointError(f"{path}: no checkpoint: thalweg_checkpoint is not in its metadata")
    if head["version"] != VERSION:
        raise CheckpointError(
            f"{path}: version {head['version']}, this program reads version {VERSION}; "
            "go on with the program that wrote it, or start anew in another directory"
        )
    if kind is not None and head.get("kind") != kind:
        raise CheckpointError(f"{path}: of algorithm {head.get('kind')!r}, expected {kind!r}")
    state = head.get("state")
    for name, expected in STATE.items():
        value = state.get(name) if isinstance(state, dict) else None
        if type(value) is not expected:
            raise CheckpointError(
                f"{path}: state.{name} is {value!r}, expected {expected.__name__}"
            )
    return head, found


def algorithm(path: Path) -> str:
    """The algorithm of a checkpoint. Raises CheckpointError for a file that is damaged or of
    another version."""
    return _open(path, None)[0].get("kind", "")


def state(path: Path, kind: str) -> dict[str, Any]:
    """The state alone, as :func:`write` got it. Raises CheckpointError for a file that is damaged,
    of another version or algorithm."""
    return _open(path, kind)[0]["state"]


def settings(path: Path, of: type[Tree], stored: dict[str, Any]) -> Tree:
    """Settings of a run, of the dataclass ``of``, as :func:`thalweg.train.settings.as_json` wrote
    them. Raises CheckpointError for those of another program."""
    try:
        return of(**{k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()})
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: settings: {error}") from error


def load(path: Path, kind: str, of: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Settings, policy and state of a run; ``of`` is the algorithm's module. Raises CheckpointError
    as :func:`read` and :func:`settings` do."""
    stored = state(path, kind)["settings"]
    chosen = settings(path, of.Settings, stored)
    policy = of.new_policy(chosen)
    optimiser = of.optimiser(chosen).init(eqx.filter(policy, eqx.is_array))
    (policy, _), found = read(path, kind, (policy, optimiser))
    return chosen, policy, found


def same_settings(path: Path, found: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raises CheckpointError for other settings than the run began with; it may be longer."""
    for name, value in asked.items():
        longer = name == "updates" and type(found.get(name)) is int and value > found[name]
        if found.get(name) != value and not longer:
            raise CheckpointError(
                f"{path}: trained with {name} {found.get(name)}, asked for {value}; "
                "use the same, or start anew in another directory"
            )


def source_commit() -> str:
    """The commit of the running source, with "+" if files differ from it. Of an installed package
    its version and the start of the SHA-256 of its Python files."""
    here = Path(__file__)
    try:
        # An environment may lie in a repository of something else.
        _, commit, changes = (
            subprocess.run(
                ["git", "-C", here.parent, *words],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            ).stdout.strip()
            for words in (
                ("ls-files", "--error-unmatch", here.name),
                ("rev-parse", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no", "--", "."),
            )
        )
    except (OSError, subprocess.SubprocessError):
        digest = hashlib.sha256()
        package = Path(thalweg.__file__).parent
        for path in sorted(package.rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0")
            digest.update(path.read_bytes())
        return f"{thalweg.__version__}, sha256 {digest.hexdigest()[:16]}"
    return commit + ("+" if changes else "")
