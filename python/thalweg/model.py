# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The model file: its content, reading and writing it. docs/reference/model.md describes the
format.

The Rust crate `thalweg-rate` reads the same files and checks them more closely;
`thalweg-lab model check FILE` asks it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from thalweg import files

FORMAT_VERSION = "1"
FEATURES = ("action", "error", "log_rate", "queue", "error_change")
MAX_INPUTS, MAX_WIDTH, MAX_HIDDEN = 16, 32, 2
LSTM_WIDTH = 16
#: Arithmetic of a policy: floating point, 8-bit integers, comparisons.
INFERENCES = ("float", "int8", "tree")

#: Keys of an entry of `evaluation.runs`: how a model did in a scenario of the simulator.
RUN: dict[str, Any] = {
    "scenario": str,
    "inference": str,
    "initial_fraction": int | float,
    "duration_s": int | float,
    "warmup_s": int | float,
    "seeds": int,
    "utilisation_percent": int | float,
    "fairness_percent": int | float,
    "queue_us": int | float,
    "dropped_percent": int | float,
}


class ModelError(ValueError):
    """A model or file that cannot be used. The message names the part, its value and the expected
    ones."""


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature of one decision: its name, and the factor it has before it is limited to +-1."""

    name: str
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Training:
    """Origin of a model."""

    scenarios: list[str]
    seed: int
    commit: str
    base_rtt_ns: int
    line_rate_bps: int


@dataclasses.dataclass
class Layer:
    """`weight` [rows, columns] and `bias` [rows] (or none), float32."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None = None


@dataclasses.dataclass
class QuantisedLayer:
    """A layer in integers: its output is a row's sum times `multiplier[row] / 2**shift`.

    `weight_q` int8 [rows, columns], `bias_q` int32 [rows], `scale` float32 [rows] (a weight is
    `weight_q * scale`), `multiplier` int32 [rows].
    """

    weight_q: NDArray[np.int8]
    bias_q: NDArray[np.int32]
    scale: NDArray[np.float32]
    multiplier: NDArray[np.int32]
    shift: int


@dataclasses.dataclass
class Quantised:
    """An MLP in integers. `activation_amax[i]` is the largest magnitude that enters layer i."""

    activation_amax: list[float]
    input_multiplier: int
    input_shift: int
    layers: list[QuantisedLayer]


@dataclasses.dataclass
class Mlp:
    """ReLU between the layers, tanh after the last, which has one row."""

    layers: list[Layer]
    quantised: Quantised | None = None


@dataclasses.dataclass
class Lstm:
    """Fully connected (ReLU), LSTM, output (tanh). Gates in the order input, forget, candidate,
    output: `weight_input`, `weight_hidden` float32 [64, 16], `bias` float32 [64]."""

    entry: Layer
    weight_input: NDArray[np.float32]
    weight_hidden: NDArray[np.float32]
    bias: NDArray[np.float32]
    output: Layer


@dataclasses.dataclass
class Forest:
    """Trees, whose leaves add up to the action. Arrays by node [n]: a decision goes `left` where
    `input[feature] <= threshold` (Q15), else `right`, both after itself; a leaf's children are
    itself, its `value` is in Q15. `root` [trees]: the first node of each tree."""

    feature: NDArray[np.uint8]
    threshold: NDArray[np.int16]
    left: NDArray[np.uint16]
    right: NDArray[np.uint16]
    value: NDArray[np.int32]
    root: NDArray[np.uint16]


@dataclasses.dataclass
class Model:
    """A model and its origin."""

    name: str
    features: list[Feature]
    history: int
    target: float
    offset: float
    training: Training
    policy: Mlp | Lstm | Forest
    evaluation: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """Inputs of the network: features times history."""
        return len(self.features) * self.history

    @property
    def inferences(self) -> tuple[str, ...]:
        """The policy's kinds of arithmetic, of :data:`INFERENCES`."""
        if isinstance(self.policy, Forest):
            return ("tree",)
        if isinstance(self.policy, Mlp) and self.policy.quantised is not None:
            return ("float", "int8")
        return ("float",)


def write(model: Model, path: str | os.PathLike[str]) -> None:
    """Checks the model and writes it; a file of that name is replaced in one step. Raises
    ModelError, OSError."""
    check(model)
    document: dict[str, Any] = {
        "name": model.name,
        "kind": _kind(model.policy),
        "features": [dataclasses.asdict(feature) for feature in model.features],
        "history": model.history,
        "target": model.target,
        "offset": model.offset,
        "training": dataclasses.asdict(model.training),
        "evaluation": model.evaluation,
    }
    policy = model.policy
    if isinstance(policy, Mlp):
        document["hidden"] = [layer.weight.shape[0] for layer in policy.layers[:-1]]
        if policy.quantised is not None:
            document["activation_amax"] = policy.quantised.activation_amax
    metadata = {
        "format_version": FORMAT_VERSION,
        "thalweg": json.dumps(document, sort_keys=True, allow_nan=False),
    }
    tensors = {name: np.ascontiguousarray(array) for name, array in _tensors(policy).items()}
    files.replace(pathlib.Path(path), save(tensors, metadata))


def read(path: str | os.PathLike[str]) -> Model:
    """Reads a model. Raises OSError, or ModelError with the file's name."""
    # The limit of the reader in Rust (crates/rate).
    files.check(pathlib.Path(path), 4 << 20)
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ModelError(f"{path}: header: {error}") from error
    try:
        return _model(metadata, tensors)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def check(model: Model) -> None:
    """Raises ModelError unless the model is one that every reader takes."""
    for number, feature in enumerate(model.features):
        field = f"features[{number}]"
        _expect(feature.name in FEATURES, f"{field}.name", feature.name, f"one of {FEATURES}")
        most = 1.0 if feature.name == "action" else 4096.0
        least = 1.0 if feature.name == "action" else 2.0**-16
        good = least <= feature.scale <= most
        _expect(good, f"{field}.scale ({feature.name})", feature.scale, f"{least} to {most}")
    expected = f"1 to {MAX_INPUTS} inputs"
    _expect(1 <= model.inputs <= MAX_INPUTS, "features and history", model.inputs, expected)
    _expect(1 <= len(model.name) <= 64, "name", repr(model.name), "1 to 64 characters")
    _expect(1e-6 <= model.target <= 255.0, "target", model.target, "1e-6 to 255")
    _expect(0.0 <= model.offset <= 65535.0, "offset", model.offset, "0 to 65535")
    runs = model.evaluation.get("runs", [])
    _expect(isinstance(runs, list), "evaluation.runs", type(runs).__name__, "a list")
    for number, run in enumerate(runs):
        _check_run(f"evaluation.runs[{number}]", run)
    policy = model.policy
    shapes: dict[str, tuple[int, ...]] = {}
    if isinstance(policy, Mlp):
        count = len(policy.layers)
        _expect(1 <= count <= MAX_HIDDEN + 1, "layers", count, f"1 to {MAX_HIDDEN + 1}")
        columns = model.inputs
        for number, layer in enumerate(policy.layers):
            rows = layer.weight.shape[0] if number + 1 < count else 1
            field = f"layers.{number}"
            _expect(1 <= rows <= MAX_WIDTH, field, f"{rows} rows", f"1 to {MAX_WIDTH}")
            shapes |= {f"{field}.weight": (rows, columns), f"{field}.weight_q": (rows, columns)}
            for name in ("bias", "bias_q", "scale", "multiplier"):
                shapes[f"{field}.{name}"] = (rows,)
            columns = rows
        if policy.quantised is not None:
            for name in ("layers", "activation_amax"):
                found = len(getattr(policy.quantised, name))
                _expect(found == count, f"quantised {name}", found, str(count))
    elif isinstance(policy, Lstm):
        width = LSTM_WIDTH
        shapes = {
            "fc.weight": (width, model.inputs),
            "fc.bias": (width,),
            "lstm.weight_input": (4 * width, width),
            "lstm.weight_hidden": (4 * width, width),
            "lstm.bias": (4 * width,),
            "output.weight": (1, width),
            "output.bias": (1,),
        }
    else:
        nodes = policy.feature.shape
        names = ("feature", "threshold", "left", "right", "value")
        shapes = {f"tree.{name}": nodes for name in names}
    for name, array in _tensors(policy).items():
        dtype = _dtype(name)
        _expect(array.dtype == dtype, f"tensor `{name}`", array.dtype, np.dtype(dtype).name)
        if name in shapes:
            _expect(array.shape == shapes[name], f"tensor `{name}`", array.shape, shapes[name])
        if array.dtype == np.float32:
            good = bool(np.all(np.abs(array) <= 1e6))
            _expect(good, f"tensor `{name}`", "others", "finite numbers of 1e6 at most")


def _check_run(field: str, run: Any) -> None:
    """An entry of `evaluation.runs`; docs/reference/model.md describes it."""
    good = isinstance(run, dict) and run.keys() == RUN.keys()
    found = sorted(run) if isinstance(run, dict) else type(run).__name__
    _expect(good, field, found, f"these keys: {', '.join(sorted(RUN))}")
    for key, kind in RUN.items():
        good = isinstance(run[key], kind) and not isinstance(run[key], bool)
        _expect(good, f"{field}.{key}", repr(run[key]), "a text" if kind is str else "a number")
    _expect(run["inference"] in INFERENCES, f"{field}.inference", run["inference"], INFERENCES)
    _expect(run["seeds"] >= 1, f"{field}.seeds", run["seeds"], "1 at least")
    for key, most in (
        ("initial_fraction", 1.0),
        ("duration_s", 1e6),
        ("warmup_s", run["duration_s"]),
        ("utilisation_percent", 100.1),
        ("fairness_percent", 100.0),
        ("queue_us", 1e12),
        ("dropped_percent", 100.0),
    ):
        _expect(0.0 <= run[key] <= most, f"{field}.{key}", run[key], f"0 to {most}")


def _expect(good: bool, field: str, found: object, expected: object) -> None:
    if not good:
        raise ModelError(f"{field}: found {found}, expected {expected}")


def _kind(policy: Mlp | Lstm | Forest) -> str:
    return {Mlp: "mlp", Lstm: "lstm", Forest: "tree"}[type(policy)]


def _dtype(name: str) -> type[np.generic]:
    by_name: dict[str, type[np.generic]] = {
        "weight_q": np.int8,
        "bias_q": np.int32,
        "multiplier": np.int32,
        "shift": np.int32,
        "feature": np.uint8,
        "threshold": np.int16,
        "left": np.uint16,
        "right": np.uint16,
        "value": np.int32,
        "root": np.uint16,
    }
    return by_name.get(name.rsplit(".", 1)[1], np.float32)


def _tensors(policy: Mlp | Lstm | Forest) -> dict[str, NDArray[Any]]:
    if isinstance(policy, Forest):
        return {f"tree.{f.name}": getattr(policy, f.name) for f in dataclasses.fields(policy)}
    named = (
        {"fc": policy.entry, "output": policy.output}
        if isinstance(policy, Lstm)
        else {f"layers.{number}": layer for number, layer in enumerate(policy.layers)}
    )
    tensors: dict[str, NDArray[Any]] = {}
    for name, layer in named.items():
        tensors[f"{name}.weight"] = layer.weight
        if layer.bias is not None:
            tensors[f"{name}.bias"] = layer.bias
    if isinstance(policy, Lstm):
        tensors["lstm.weight_input"] = policy.weight_input
        tensors["lstm.weight_hidden"] = policy.weight_hidden
        tensors["lstm.bias"] = policy.bias
    elif policy.quantised is not None:
        quantised = policy.quantised
        tensors["input.multiplier"] = np.array([quantised.input_multiplier], np.int32)
        tensors["input.shift"] = np.array([quantised.input_shift], np.int32)
        for number, part in enumerate(quantised.layers):
            for name in ("weight_q", "bias_q", "scale", "multiplier"):
                tensors[f"layers.{number}.{name}"] = getattr(part, name)
            tensors[f"layers.{number}.shift"] = np.array([part.shift], np.int32)
    return tensors


def _model(metadata: dict[str, str], tensors: dict[str, NDArray[Any]]) -> Model:
    version = metadata.get("format_version")
    _expect(version == FORMAT_VERSION, "metadata `format_version`", version, FORMAT_VERSION)
    try:
        document = json.loads(metadata["thalweg"])
        hidden = document.pop("hidden", [])
        amax = document.pop("activation_amax", None)
        kind = document.pop("kind")
        document["features"] = [Feature(**feature) for feature in document["features"]]
        document["training"] = Training(**document["training"])
        left = dict(tensors)
        policy = _policy(kind, left, len(hidden), amax)
        model = Model(**document, policy=policy)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ModelError):
            raise
        what = f"no {error}" if isinstance(error, KeyError) else error
        raise ModelError(f"metadata and tensors: {what}") from error
    _expect(not left, f"tensor `{next(iter(left), '')}`", "it in the file", f"those of an {kind}")
    check(model)
    return model


def _policy(
    kind: str, left: dict[str, NDArray[Any]], hidden: int, amax: list[float] | None
) -> Mlp | Lstm | Forest:
    def layer(name: str) -> Layer:
        return Layer(left.pop(f"{name}.weight"), left.pop(f"{name}.bias", None))

    def number(name: str) -> int:
        return int(left.pop(name).reshape(-1)[0])

    if kind == "tree":
        return Forest(**{f.name: left.pop(f"tree.{f.name}") for f in dataclasses.fields(Forest)})
    if kind == "lstm":
        inputs, hidden_weights, bias = (
            left.pop(f"lstm.{name}") for name in ("weight_input", "weight_hidden", "bias")
        )
        return Lstm(layer("fc"), inputs, hidden_weights, bias, layer("output"))
    _expect(kind == "mlp", "kind", kind, "mlp, lstm or tree")
    policy = Mlp([layer(f"layers.{i}") for i in range(hidden + 1)])
    if amax is not None:
        parts_q = [
            QuantisedLayer(
                left.pop(f"layers.{i}.weight_q"),
                left.pop(f"layers.{i}.bias_q"),
                left.pop(f"layers.{i}.scale"),
                left.pop(f"layers.{i}.multiplier"),
                number(f"layers.{i}.shift"),
            )
            for i in range(hidden + 1)
        ]
        policy.quantised = Quantised(
            amax, number("input.multiplier"), number("input.shift"), parts_q
        )
    return policy
