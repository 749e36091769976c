# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Model files: read as written; invalid ones are refused."""

import dataclasses
import json

import numpy as np
import pytest
import sample
from safetensors.numpy import save_file
from thalweg import quantize
from thalweg.model import (
    Feature,
    Forest,
    Layer,
    Lstm,
    Mlp,
    Model,
    ModelError,
    Training,
    read,
    write,
)

TRAINING = Training(["2-to-1", "4-to-1"], 7, "0123abc", 12_000, 100_000_000_000)


def model(policy):
    features = [Feature("action"), Feature("error", 4.0)]
    return Model("test", features, 2, 0.5, 1.0, TRAINING, policy, {"su": 92.5})


def mlp():
    random = np.random.default_rng(1)
    layers = [
        Layer(random.normal(size=(rows, columns)).astype(np.float32))
        for columns, rows in ((4, 12), (12, 12), (12, 1))
    ]
    layers[2].bias = np.array([0.25], np.float32)
    return Mlp(layers)


def quantised():
    network = mlp()
    network.quantised = quantize.quantise(network, [1.0, 4.0, 9.0])
    return network


def lstm():
    f = lambda *shape: np.full(shape, 0.125, np.float32)  # noqa: E731
    return Lstm(Layer(f(16, 4), f(16)), f(64, 16), f(64, 16), f(64), Layer(f(1, 16)))


def forest():
    return Forest(
        np.array([1, 0, 0], np.uint8),
        np.array([100, 0, 0], np.int16),
        np.array([1, 1, 2], np.uint16),
        np.array([2, 1, 2], np.uint16),
        np.array([0, -5, 700], np.int32),
        np.array([0], np.uint16),
    )


def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in names
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("policy", [mlp, quantised, lstm, forest])
def test_what_is_written_is_read_again(tmp_path, policy):
    path = tmp_path / "m.safetensors"
    written = model(policy())
    write(written, path)
    assert same(read(path), written)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"features": [Feature("speed")]}, r"features\[0\].name: found speed"),
        ({"features": [Feature("action", 2.0)]}, r"features\[0\].scale \(action\): found 2.0"),
        ({"features": [Feature("error", float("nan"))]}, "scale .error.: found nan"),
        ({"history": 9}, "found 18, expected 1 to 16 inputs"),
        ({"history": 1}, r"tensor `layers.0.weight`: found \(12, 4\), expected \(12, 2\)"),
        ({"target": 0.0}, "target: found 0.0"),
        ({"target": float("nan")}, "target: found nan"),
        ({"offset": -1.0}, "offset: found -1.0"),
        ({"name": ""}, "name: found ''"),
    ],
)
def test_models_that_cannot_be_are_not_written(tmp_path, change, expected):
    with pytest.raises(ModelError, match=expected):
        write(dataclasses.replace(model(mlp()), **change), tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_cannot_be_are_not_written(tmp_path):
    path = tmp_path / "m.safetensors"
    network = mlp()
    network.layers[1].weight[3, 3] = np.inf
    with pytest.raises(ModelError, match="tensor `layers.1.weight`: found others, expected finite"):
        write(model(network), path)
    network = mlp()
    network.layers[0].weight = network.layers[0].weight.astype(np.float64)
    with pytest.raises(ModelError, match="found float64, expected float32"):
        write(model(network), path)
    network = mlp()
    network.layers = network.layers[:1]
    with pytest.raises(ModelError, match=r"found \(12, 4\), expected \(1, 4\)"):
        write(model(network), path)


def spoilt(path, change, tensors=None):
    """Writes a file whose metadata was changed, and reads it."""
    write(model(forest()), path)
    document = {
        "name": "test",
        "kind": "tree",
        "features": [{"name": "action"}, {"name": "error", "scale": 4.0}],
        "history": 2,
        "target": 0.5,
        "offset": 1.0,
        "training": dataclasses.asdict(TRAINING),
    }
    metadata = {"format_version": "1"}
    change(metadata, document)
    metadata["thalweg"] = json.dumps(document)
    good = {f"tree.{f.name}": getattr(forest(), f.name) for f in dataclasses.fields(Forest)}
    save_file(good | (tensors or {}), path, metadata)
    return read(path)


def test_files_that_are_none_are_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    assert spoilt(path, lambda metadata, document: None).name == "test"

    def refused(expected, change=lambda metadata, document: None, tensors=None):
        with pytest.raises(ModelError, match=expected) as caught:
            spoilt(path, change, tensors)
        assert str(caught.value).startswith(f"{path}: ")

    refused("`format_version`: found 2", lambda m, d: m.update(format_version="2"))
    refused("`format_version`: found None", lambda m, d: m.clear())
    refused("no 'target'|target", lambda m, d: d.pop("target"))
    refused("extra", lambda m, d: d.update(extra=1))
    refused("kind: found gru", lambda m, d: d.update(kind="gru"))
    refused("no 'layers.0.weight'", lambda m, d: d.update(kind="mlp"))
    refused("tensor `more`: found it", tensors={"more": np.zeros(1, np.float32)})
    refused(
        "tensor `tree.value`: found int64, expected int32",
        tensors={"tree.value": np.zeros(3, np.int64)},
    )
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match="header"):
        read(path)
    with pytest.raises(OSError, match="absent"):
        read(tmp_path / "absent")


def test_the_committed_sample_is_what_is_written_today():
    found, expected = read(sample.PATH), sample.model()
    # The last digits of floating-point sums depend on the library.
    pairs = zip(found.evaluation.pop("actions"), expected.evaluation.pop("actions"), strict=True)
    assert all(abs(one - other) < 1e-6 for one, other in pairs)
    found.policy.quantised.activation_amax = [
        round(value, 12) for value in found.policy.quantised.activation_amax
    ]
    expected.policy.quantised.activation_amax = [
        round(value, 12) for value in expected.policy.quantised.activation_amax
    ]
    assert same(found, expected)
