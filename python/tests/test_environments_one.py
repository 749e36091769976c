# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``thalweg/OneFlow-v0``: Gymnasium's checker, the ends, seeds, faults."""

import copy
import pickle
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
import thalweg
from sim_support import many_to_one
from thalweg.features import FeatureSet, Signal
from thalweg.sim import Batch, Scenario, run

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402
from thalweg.environments import OneFlow, VectorFlows  # noqa: E402

KEEP = np.zeros(1, np.float32)


def play(environment, policy, **reset):
    """Observations, rewards and infos of a simulation, and how it ended."""
    observation, info = environment.reset(**reset)
    story = [(observation.tolist(), 0.0, info)]
    while True:
        observation, reward, terminated, truncated, info = environment.step(policy(observation))
        if terminated or truncated:
            return story, reward, terminated, truncated
        story.append((observation.tolist(), reward, info))


@pytest.mark.parametrize("objective", ["target", "aurora"])
def test_gymnasium_accepts_it_without_a_warning(objective):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment = gymnasium.make("thalweg/OneFlow-v0", objective=objective)
        check_env(environment.unwrapped)
        story, reward, terminated, truncated = play(environment, lambda _: KEEP)
    assert len(story) > 100 and reward == 0
    assert truncated and not terminated


def test_many_side_by_side():
    environments = gymnasium.make_vec(
        "thalweg/OneFlow-v0", num_envs=3, vectorization_mode="sync", scenario=many_to_one(2)
    )
    observation, _ = environments.reset(seed=1)
    assert observation.shape == (3, 4)
    reward = environments.step(np.ones((3, 1), np.float32))[1]
    assert reward.shape == (3,)


def test_the_others_run_their_controller():
    def rates(others, policy):
        environment = OneFlow(many_to_one(4), others)
        play(environment, policy, seed=1)
        return environment.outcome().flow_gbps

    alone = rates("fixed:fraction=0.1", lambda _: KEEP)
    assert alone == pytest.approx([10] * 4, rel=0.01)
    # Swift leaves the link to one who takes it; fixed flows keep their share.
    greedy = rates("swift", lambda _: KEEP + 1)
    assert greedy[0] > 90 and greedy[1:].max() < 5
    yielding = rates("swift", lambda _: KEEP - 1)
    assert yielding[0] < 1 and yielding.sum() > 90
    assert rates("fixed:fraction=0.3", lambda _: KEEP - 1)[1:] == pytest.approx([30] * 3, rel=0.01)


def test_seeds_repeat_and_resets_go_on():
    environment = OneFlow(many_to_one(4))
    first = play(environment, lambda seen: seen[3:4], seed=1)
    second = play(environment, lambda seen: seen[3:4])
    assert first != second
    assert play(OneFlow(many_to_one(4)), lambda seen: seen[3:4], seed=1) == first
    assert play(environment, lambda seen: seen[3:4], seed=2) not in (first, second)


def test_rewards_by_hand():
    features = FeatureSet(signal=Signal(target=0.3, offset=1.1))
    environment = OneFlow(many_to_one(4), features=features, initial=0.25)
    for _, reward, info in play(environment, lambda _: KEEP, seed=3)[0][1:]:
        assert info["rate_bps"] == 25e9 and not info["probe_lost"]
        signal = max(info["rtt_s"] / 12e-6 - 1.1, 0) * 0.5
        assert reward == pytest.approx(-((0.3 - signal) ** 2), rel=1e-3, abs=1e-6)
    selfish = OneFlow(many_to_one(4), objective="aurora", initial=0.25)
    for _, reward, info in play(selfish, lambda _: KEEP, seed=3)[0][1:]:
        expected = 5 * 0.25 - 0.1 * info["rtt_s"] / 12e-6
        assert reward == pytest.approx(expected, rel=1e-4)


def test_a_flow_that_ends_terminates():
    scenario = Scenario.from_text(
        """
        name = "short"
        duration = "2ms"
        topology = { kind = "star", hosts = 3 }
        link = { rate = "100gbit", delay = "1us" }
        network = { base_rtt = "12us" }
        workload = { kind = "flows" }
        flow = [{ from = 1, to = 0, size = "1mib" }, { from = 2, to = 0 }]
        """
    )
    environment = OneFlow(scenario, initial=0.5)
    _, reward, terminated, truncated = play(environment, lambda _: KEEP, seed=1)
    assert terminated and not truncated and reward == 0
    with pytest.raises(RuntimeError, match=r"reset\(\) begins again"):
        environment.step(KEEP)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scenario": "gone.toml"}, "gone.toml"),
        ({"scenario": 3}, "expected a Scenario or the path of its file, found int"),
        ({"others": "sift"}, "cc: no controller is called `sift`"),
        ({"objective": "speed"}, "objective: expected target or aurora, found 'speed'"),
        ({"features": 4}, "features: expected a FeatureSet, found 4"),
        ({"initial": 2}, "initial: expected .* found 2"),
        ({"render_mode": "human"}, "render_mode: expected None, found 'human'"),
    ],
)
def test_bad_arguments_are_one_clear_error(arguments, words):
    with pytest.raises((OSError, ValueError, TypeError), match=words) as caught:
        OneFlow(**arguments)
    assert "\n" not in str(caught.value)


def test_bad_actions_are_refused():
    environment = OneFlow()
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        environment.step(KEEP)
    environment.reset(seed=1)
    for action in (np.full(1, 1.5), np.zeros(2), np.full(1, np.nan)):
        with pytest.raises(ValueError, match="action"):
            environment.step(action)


def test_without_seeds_there_is_one_simulation_a_scenario():
    flows = VectorFlows([many_to_one(2), many_to_one(3)], initial=0.1)
    assert flows.reset() is not None
    assert flows.batch.envs == 2
    assert VectorFlows(many_to_one(2)).reset() is not None


def test_a_batch_among_others_hands_out_the_first_flow_of_each():
    batch = Batch([many_to_one(3), many_to_one(5)], seeds=[1, 2], initial=0.2, others="swift")
    keys = set()
    while (decisions := batch.advance()) is not None:
        assert set(decisions.flow) == {0}
        keys.update(decisions.key)
        assert np.allclose(decisions.base_rtt_s, 12e-6)
    assert keys == {0, 3}
    assert batch.flows == 8
    # The same flows without a decision are those of two controllers of the simulator.
    assert batch.result(0).flow_gbps[0] == pytest.approx(20, rel=0.02)
    assert run(many_to_one(3), "swift", seed=1).flow_gbps[0] > 25


def test_the_version_is_that_of_the_package():
    with open(Path(__file__).parents[2] / "pyproject.toml", "rb") as file:
        assert thalweg.__version__ == tomllib.load(file)["project"]["version"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_goes_on_where_the_original_is(copied):
    original = OneFlow(many_to_one(2))
    assert copied(original).observation_space == original.observation_space
    original.reset(seed=5)
    for number in range(20):
        original.step(np.array([number / 20], np.float32))
    twin = copied(original)
    for action in (KEEP, KEEP + 1, KEEP - 1):
        expected, found = original.step(action), twin.step(action)
        assert found[0].tolist() == expected[0].tolist() and found[1:] == expected[1:]
    assert original.reset()[0].tolist() == twin.reset()[0].tolist()
