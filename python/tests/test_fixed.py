# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The array arithmetic against the golden vectors, which plain Python integers made."""

import importlib.util
import pathlib

import numpy as np
import pytest
from thalweg import fixed
from thalweg.model import Forest, Quantised, QuantisedLayer

VECTORS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "vectors" / "network.py"


@pytest.fixture(scope="module")
def document():
    spec = importlib.util.spec_from_file_location("network_vectors", VECTORS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.whole()


def decider(network):
    """A function from inputs [n, inputs] to actions [n]."""
    if network["kind"] == "tree":
        types = (np.uint8, np.int16, np.uint16, np.uint16, np.int32)
        nodes = [
            np.array(column, t)
            for column, t in zip(zip(*network["nodes"], strict=True), types, strict=True)
        ]
        forest = Forest(*nodes, np.array(network["roots"], np.uint16))
        return lambda inputs: fixed.infer_forest(forest, inputs)
    layers = [
        QuantisedLayer(
            np.array(layer["weights"], np.int8),
            np.array(layer["bias"], np.int32),
            np.ones(len(layer["bias"]), np.float32),
            np.array(layer["multipliers"], np.int32),
            layer["shift"],
        )
        for layer in network["layers"]
    ]
    scale = network["input"]
    quantised = Quantised([], scale["multiplier"], scale["shift"], layers)
    return lambda inputs: fixed.infer_mlp(quantised, inputs)


def test_actions(document):
    for which, network in enumerate(document["networks"]):
        cases = [case for case in document["vectors"] if case[0] == which]
        assert len(cases) >= 500
        found = decider(network)(np.array([case[1] for case in cases]))
        assert found.tolist() == [case[2] for case in cases], network["name"]


def test_sequences(document):
    top = (1 << 63) - 1
    for sequence in document["sequences"]:
        network = document["networks"][sequence["network"]]
        parameters = (network[k] for k in ("features", "history", "target_q24", "offset_q16"))
        flows, decide = fixed.Flows(*parameters, 1), decider(network)
        # Numbers of 2^63 and more do not fit int64; all above 2^40 count alike.
        array = lambda value: np.array([min(value, top)])  # noqa: E731
        for rtt, rate, inputs, action, following in sequence["steps"]:
            seen = flows.observe(
                array(rtt),
                array(sequence["base_rtt_ns"]),
                array(rate),
                array(sequence["line_rate"]),
            )
            assert seen[0].tolist() == inputs
            flows.action = decide(seen)
            assert flows.action.tolist() == [action]
            rates = fixed.next_rate(
                array(rate), flows.action, array(sequence["floor"]), array(sequence["cap"])
            )
            assert rates.tolist() == [following]


def test_flows_are_not_mixed(document):
    """Two flows at once do what each does alone."""
    one, other = [s for s in document["sequences"] if s["network"] == 0][:2]
    network = document["networks"][0]
    flows = fixed.Flows(
        network["features"], network["history"], network["target_q24"], network["offset_q16"], 2
    )
    decide, both = decider(network), (one, other)
    for steps in zip(one["steps"], other["steps"], strict=True):
        seen = flows.observe(
            *(
                np.array([min(v, (1 << 63) - 1) for v in values])
                for values in (
                    [step[0] for step in steps],
                    [sequence["base_rtt_ns"] for sequence in both],
                    [step[1] for step in steps],
                    [sequence["line_rate"] for sequence in both],
                )
            )
        )
        flows.action = decide(seen)
        assert flows.action.tolist() == [step[3] for step in steps]


def test_rates(document):
    top = (1 << 63) - 1
    cases = np.array([[min(v, top) for v in case] for case in document["rates"]])
    found = fixed.next_rate(cases[:, 0], cases[:, 1], cases[:, 2], cases[:, 3])
    assert found.tolist() == cases[:, 4].tolist()


def test_root_is_exact_next_to_squares():
    roots = np.array([0, 1, 2, 3, 1000, (1 << 24) - 1, 1 << 24])
    assert fixed.root(roots * roots).tolist() == roots.tolist()
    assert fixed.root(roots[1:] ** 2 - 1).tolist() == (roots[1:] - 1).tolist()
