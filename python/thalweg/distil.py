# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A network's policy as decision trees: one small one, or boosted ones.

``python -m thalweg.distil MODEL --out FILE``. Trees learn the network's answers to the inputs of
flows. Those inputs depend on who decides: in the first round the network, in later ones the trees,
while the network says what it would have done (DAgger: Ross, Gordon, Bagnell 2011, "A reduction of
imitation learning and structured prediction to no-regret online learning").

Inputs and thresholds are the integers of docs/reference/model.md: a tree that was trained here decides in
the simulator and in the kernel bit for bit as :func:`thalweg.fixed.infer_forest` does.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import fixed, quantize
from thalweg.fixed import Integers
from thalweg.model import Forest, Mlp, Model, ModelError, read, write

MAX_NODES, MAX_TREES, MAX_DEPTH, MAX_LEAF = 2048, 128, 16, 1 << 20

#: Actions in Q15 [n] for inputs in Q15 [n, inputs].
Policy = Callable[[Integers], Integers]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Size of the trees, and the library that grows them.

    trees: 1 for one tree, more for boosted ones. leaves: most leaves of each. library:
    ``"sklearn"`` or ``"lightgbm"`` (boosted ones only). seed: of the random choices in growing.
    """

    trees: int = 1
    leaves: int = 128
    library: str = "sklearn"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.trees <= MAX_TREES:
            raise ValueError(f"trees: expected 1 to {MAX_TREES}, found {self.trees}")
        nodes = self.trees * (2 * self.leaves - 1)
        if self.leaves < 2 or nodes > MAX_NODES:
            most = (MAX_NODES // self.trees + 1) // 2
            raise ValueError(
                f"leaves: {self.trees} trees of {self.leaves} leaves have {nodes} nodes; expected "
                f"at most {MAX_NODES}, so 2 to {most} leaves"
            )
        if self.library not in ("sklearn", "lightgbm"):
            raise ValueError(f"library: expected sklearn or lightgbm, found {self.library!r}")
        if self.library == "lightgbm" and self.trees == 1:
            raise ValueError("library: lightgbm boosts; expected sklearn for one tree")


def teacher(model: Model) -> Policy:
    """The network in floating point. Raises ModelError for another kind of policy."""
    mlp = model.policy
    if not isinstance(mlp, Mlp):
        raise ModelError(f"{model.name}: expected a model of kind mlp to learn from")

    def decide(inputs: Integers) -> Integers:
        actions = quantize.infer_float(mlp, inputs / 32768.0)
        actions_q15 = np.rint(actions * 32768.0)
        return np.clip(actions_q15, -fixed.ONE_Q15, fixed.ONE_Q15).astype(np.int64)

    return decide


def record(
    model: Model, policy: Policy, scenarios: Sequence[Any], seeds: Sequence[int], most: int
) -> Integers:
    """Inputs of flows while this policy decides, in Q15, int64 [n, inputs], n at most ``most``
    for each scenario, evenly chosen from the beginning to the end.

    scenarios: as for :class:`thalweg.sim.Batch`, one a seed.
    """
    from thalweg.sim import Batch  # compiled; growing trees needs none of it

    parts = []
    for scenario, seed in zip(scenarios, seeds, strict=True):
        # At higher rates thousands of flows lose most of their probes, and hardly decide.
        batch = Batch(scenario, [seed], initial=0.01)
        flows = fixed.Flows.of(
            model.features, model.history, model.target, model.offset, batch.flows
        )
        seen = []
        while (decisions := batch.advance()) is not None:
            line = decisions.line_rate_bps.astype(np.int64)
            rate = decisions.rate_bps.astype(np.int64)
            inputs = flows.observe(
                _nanoseconds(decisions.rtt_ps),
                _nanoseconds(decisions.base_rtt_ps),
                rate,
                line,
                decisions.key,
                decisions.probe_lost,
            )
            actions = policy(inputs)
            flows.action[decisions.key] = actions
            # The simulator keeps rates between floor and line rate.
            after = fixed.next_rate(rate, actions, np.ones_like(rate), line)
            batch.decide(after / decisions.rate_bps)
            seen.append(inputs)
        inputs = np.concatenate(seen)
        chosen = np.linspace(0, len(inputs) - 1, min(most, len(inputs))).astype(int)
        parts.append(inputs[chosen])
    return np.concatenate(parts)


def _nanoseconds(time_ps: NDArray[np.int64]) -> Integers:
    return (time_ps + 500) // 1000


def grow(inputs: Integers, actions: Integers, shape: Shape) -> Forest:
    """Trees that answer inputs [n, features] in Q15 with about these actions [n] in Q15. Raises
    ModuleNotFoundError without the library."""
    x, y = inputs.astype(np.float64), actions / 32768.0
    if shape.trees == 1:
        tree = _sklearn("tree").DecisionTreeRegressor(
            max_leaf_nodes=shape.leaves,
            max_depth=MAX_DEPTH,
            min_samples_leaf=5,
            random_state=shape.seed,
        )
        return _forest([_sklearn_nodes(tree.fit(x, y).tree_, 1.0)], 0.0)
    rate = min(0.5, 8.0 / shape.trees)
    if shape.library == "sklearn":
        boosted = _sklearn("ensemble").GradientBoostingRegressor(
            n_estimators=shape.trees,
            learning_rate=rate,
            max_leaf_nodes=shape.leaves,
            max_depth=MAX_DEPTH,
            min_samples_leaf=5,
            random_state=shape.seed,
        )
        boosted.fit(x, y)
        trees = [_sklearn_nodes(one.tree_, rate) for one in boosted.estimators_[:, 0]]
        return _forest(trees, float(np.ravel(boosted.init_.constant_)[0]))
    import lightgbm

    options = {
        "objective": "regression",
        "learning_rate": rate,
        "num_leaves": shape.leaves,
        "max_depth": MAX_DEPTH,
        "min_data_in_leaf": 5,
        "max_bin": 1023,
        "boost_from_average": False,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "seed": shape.seed,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(x, y, params={"verbosity": -1, "max_bin": 1023})
    booster = lightgbm.train(options, data, shape.trees)
    return _forest(
        [_lightgbm_nodes(one["tree_structure"]) for one in booster.dump_model()["tree_info"]], 0.0
    )


def _sklearn(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"sklearn.{module}")
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            'trees are grown by scikit-learn: pip install "thalweg[distil]"'
        ) from missing


@dataclasses.dataclass(frozen=True)
class _Node:
    """A node of a tree whose children come after it. ``left`` is 0 at a leaf."""

    feature: int
    threshold: float
    left: int
    right: int
    value: float


def _sklearn_nodes(tree: Any, factor: float) -> list[_Node]:
    """Both builders of scikit-learn number children after their parents."""
    return [
        _Node(
            max(0, int(tree.feature[at])),
            float(tree.threshold[at]),
            max(0, int(tree.children_left[at])),
            max(0, int(tree.children_right[at])),
            factor * float(tree.value[at, 0, 0]) if tree.children_left[at] < 0 else 0.0,
        )
        for at in range(tree.node_count)
    ]


def _lightgbm_nodes(root: dict[str, Any]) -> list[_Node]:
    nodes: list[_Node] = []

    def add(part: dict[str, Any]) -> int:
        own = len(nodes)
        if "split_feature" not in part:
            nodes.append(_Node(0, 0.0, 0, 0, float(part["leaf_value"])))
            return own
        nodes.append(_Node(0, 0.0, 0, 0, 0.0))
        left, right = add(part["left_child"]), add(part["right_child"])
        nodes[own] = _Node(int(part["split_feature"]), float(part["threshold"]), left, right, 0.0)
        return own

    add(root)
    return nodes


def _forest(trees: Sequence[Sequence[_Node]], base: float) -> Forest:
    """Nodes of all trees in one list; ``base`` goes into every leaf of the first. Inputs are
    integers, so a threshold may be rounded down."""
    rows: list[tuple[int, int, int, int, int]] = []
    roots = []
    for number, tree in enumerate(trees):
        start = len(rows)
        roots.append(start)
        for at, node in enumerate(tree):
            own = start + at
            if node.left == 0:
                value = round((node.value + (base if number == 0 else 0.0)) * 32768.0)
                rows.append((0, 0, own, own, max(-MAX_LEAF, min(MAX_LEAF, value))))
                continue
            threshold = max(-32768, min(32767, int(np.floor(node.threshold))))
            rows.append((node.feature, threshold, start + node.left, start + node.right, 0))
    columns = list(zip(*rows, strict=True))
    feature, limit, left, right, leaf = columns
    return Forest(
        np.array(feature, np.uint8),
        np.array(limit, np.int16),
        np.array(left, np.uint16),
        np.array(right, np.uint16),
        np.array(leaf, np.int32),
        np.array(roots, np.uint16),
    )


def distil(
    model: Model,
    shape: Shape,
    scenarios: Sequence[Any],
    *,
    rounds: int = 3,
    most: int = 50_000,
    say: Callable[[str], None] = lambda _: None,
) -> Model:
    """A model whose trees decide as the network of ``model``, an MLP, does.

    scenarios: where flows are watched, as for :class:`thalweg.sim.Batch`. rounds: in the first the
    network decides, in the others the trees so far. most: samples of each scenario and
    round. The last round's samples are for the figures of ``evaluation`` alone, so at least 2.
    """
    if rounds < 2:
        raise ValueError(f"rounds: expected at least 2, the last of which judges, found {rounds}")
    if not scenarios:
        raise ValueError("scenarios: expected at least one")
    answer = teacher(model)
    policy, samples = answer, np.empty((0, model.inputs), np.int64)
    for number in range(rounds - 1):
        seeds = [1 + number * len(scenarios) + place for place in range(len(scenarios))]
        samples = np.concatenate([samples, record(model, policy, scenarios, seeds, most)])
        forest = grow(samples, answer(samples), shape)
        policy = _decider(forest)
        say(f"round {number + 1}: {len(samples)} samples, {len(forest.feature)} nodes")
    seeds = [1 + (rounds - 1) * len(scenarios) + place for place in range(len(scenarios))]
    unseen = record(model, policy, scenarios, seeds, most)
    wanted, found = answer(unseen), policy(unseen)
    rms = float(np.sqrt(np.mean(((found - wanted) / 32768.0) ** 2)))
    deviation = float(np.std(wanted / 32768.0))
    say(
        f"on what the trees see: {rms:.4f} off (root mean square) of actions that spread {deviation:.4f}"
    )
    return dataclasses.replace(
        model,
        name=f"{model.name[:50]}-{'tree' if shape.trees == 1 else 'trees'}",
        policy=forest,
        evaluation={
            "distilled_from": model.name,
            "trees": shape.trees,
            "nodes": len(forest.feature),
            "action_rms_error": rms,
            "action_deviation": deviation,
        },
    )


def _decider(forest: Forest) -> Policy:
    return lambda inputs: fixed.infer_forest(forest, inputs)


#: Scenarios of the samples: those of training, and many flows; all short.
SCENARIOS = ("many-to-one-2", "many-to-one-4", "many-to-one-16", "many-to-one-128")


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m thalweg.distil", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("model", type=Path, help="the file of a network")
    parser.add_argument("--out", type=Path, required=True, help="the file of the trees")
    parser.add_argument("--trees", type=int, default=1, help="1 (default), or more: boosted")
    parser.add_argument("--leaves", type=int, help="most leaves of a tree; default 128 or 16")
    parser.add_argument("--library", choices=["sklearn", "lightgbm"], default="sklearn")
    parser.add_argument("--rounds", type=int, default=3, help="the last judges; default 3")
    parser.add_argument("--seed", type=int, default=0, help="of what is random in growing")
    parser.add_argument(
        "--scenario",
        type=Path,
        action="append",
        help="what to watch; may be given several times; default: 2, 4, 16 and 128 flows to one "
        "for --duration seconds each",
    )
    parser.add_argument("--duration", type=float, default=0.01, help="default 0.01")
    parser.add_argument("--samples", type=int, default=50_000, help="of each scenario and round")
    options = parser.parse_args(words)
    try:
        from thalweg.sim import Scenario

        leaves = options.leaves or (128 if options.trees == 1 else 16)
        shape = Shape(options.trees, leaves, options.library, options.seed)
        files = options.scenario or [Path(f"scenarios/sim/{name}.toml") for name in SCENARIOS]
        scenarios = [
            Scenario.load(file).replace(duration_s=options.duration, warmup_s=0.0) for file in files
        ]
        model = distil(
            read(options.model),
            shape,
            scenarios,
            rounds=options.rounds,
            most=options.samples,
            say=lambda words: print(words, file=sys.stderr),
        )
        write(model, options.out)
    except (ModuleNotFoundError, OSError, ValueError) as why:
        print(f"error: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
