# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``thalweg.distil``: trees for a network."""

import numpy as np
import pytest
import standin
from sim_support import many_to_one
from thalweg import distil, fixed, model
from thalweg.sim import Learned, run

pytest.importorskip("sklearn")


def inputs(count, seed):
    return np.random.default_rng(seed).integers(-32767, 32768, (count, 4))


SHAPES = [
    distil.Shape(1, 64),
    distil.Shape(16, 8),
    distil.Shape(16, 8, "lightgbm"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.library}-{shape.trees}")
def test_trees_answer_as_the_network(shape):
    if shape.library == "lightgbm":
        pytest.importorskip("lightgbm", reason="not here: lightgbm is no requirement")
    answer = distil.teacher(standin.model())
    seen, unseen = inputs(20_000, 1), inputs(2_000, 2)
    forest = distil.grow(seen, answer(seen), shape)
    assert len(forest.root) == shape.trees
    assert len(forest.feature) <= shape.trees * (2 * shape.leaves - 1)
    wanted, found = answer(unseen) / 32768, fixed.infer_forest(forest, unseen) / 32768
    # The action is tanh(0.8 x), x in +-1. In 64 even steps it would be 0.8 * 2 / 64 / sqrt(12) =
    # 0.007 off; always answering 0 is about 0.4 off.
    assert np.sqrt(np.mean((found - wanted) ** 2)) < 0.05


def test_nodes_are_those_of_the_library():
    from sklearn.tree import DecisionTreeRegressor

    seen = inputs(5_000, 3)
    actions = np.clip(seen[:, 3] * seen[:, 1] // 32768, -32767, 32767)
    forest = distil.grow(seen, actions, distil.Shape(1, 40, seed=5))
    tree = DecisionTreeRegressor(
        max_leaf_nodes=40, max_depth=16, min_samples_leaf=5, random_state=5
    ).fit(seen.astype(np.float64), actions / 32768)
    unseen = inputs(3_000, 4)
    found = fixed.infer_forest(forest, unseen)
    assert found == pytest.approx(tree.predict(unseen.astype(np.float64)) * 32768, abs=0.51)


def test_a_distilled_model_controls(tmp_path):
    teacher = standin.model()
    student = distil.distil(
        teacher, distil.Shape(1, 64), [many_to_one(4), many_to_one(16)], rounds=3, most=5_000
    )
    file = tmp_path / "tree.safetensors"
    model.write(student, file)
    assert model.read(file).evaluation["distilled_from"] == "stand-in"
    assert student.evaluation["action_rms_error"] < 0.2 * student.evaluation["action_deviation"]
    by_tree = run(many_to_one(8), Learned(file, "tree", initial=0.05), seed=3)
    by_network = run(many_to_one(8), Learned(standin.file(tmp_path), initial=0.05), seed=3)
    assert by_tree.utilisation_percent == pytest.approx(by_network.utilisation_percent, abs=5)
    assert by_tree.loss_percent == 0


def test_what_cannot_be_is_refused():
    for arguments, words in [
        ((0,), "trees: expected 1 to 128"),
        ((128, 16), "128 trees of 16 leaves have 3968 nodes; expected at most 2048, so 2 to 8"),
        ((1, 2, "xgboost"), "library: expected sklearn or lightgbm"),
        ((1, 2, "lightgbm"), "expected sklearn for one tree"),
    ]:
        with pytest.raises(ValueError, match=words):
            distil.Shape(*arguments)
    with pytest.raises(ValueError, match="rounds: expected at least 2"):
        distil.distil(standin.model(), distil.Shape(), [many_to_one(2)], rounds=1)
    seen = inputs(500, 6)
    tree = distil.grow(seen, seen[:, 0], distil.Shape(1, 4))
    student = standin.model()
    student.policy = tree
    with pytest.raises(model.ModelError, match="expected a model of kind mlp"):
        distil.teacher(student)
