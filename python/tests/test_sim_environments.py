# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``thalweg.environments``: the libraries' checkers, and tests of what these cannot know."""

import multiprocessing

import numpy as np
import pytest
import standin
from sim_support import many_to_one
from thalweg.features import FeatureSet, Signal
from thalweg.sim import Learned, run

pettingzoo_test = pytest.importorskip("pettingzoo.test")

from thalweg.environments import VectorFlows, aec_env, parallel_env  # noqa: E402

# Not faults: an environment without pictures, an agent that has not decided yet and sees zeros.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Environment has not defined a render"),
    pytest.mark.filterwarnings("ignore:Observation numpy array is all zeros"),
]


def scenario(flows=5):
    return many_to_one(flows, duration="2ms")


def test_pettingzoo_accepts_the_parallel_environment():
    pettingzoo_test.parallel_api_test(parallel_env(scenario()), num_cycles=2_000)
    pettingzoo_test.parallel_seed_test(lambda: parallel_env(scenario()))


def test_pettingzoo_accepts_the_environment_in_turn():
    pettingzoo_test.api_test(aec_env(scenario()), num_cycles=2_000)
    pettingzoo_test.seed_test(lambda: aec_env(scenario()))


def action_of(agent, time_s):
    """A pseudo-random action, the same in any order of agents."""
    number = agent.removeprefix("flow_")
    return np.array([np.sin(time_s * 1e9 + int(number))], np.float32)


def play(environment, seed):
    """A simulation of a parallel environment: observation and action of each decision."""
    observations, infos = environment.reset(seed=seed)
    story = []
    while environment.agents:
        pending = [agent for agent in environment.agents if infos.get(agent, {}).get("pending")]
        actions = {agent: action_of(agent, infos[agent]["time_s"]) for agent in pending}
        story += [(infos[a]["time_s"], a, *observations[a], *actions[a]) for a in pending]
        observations, _, terminations, truncations, infos = environment.step(actions)
        assert not any(terminations.values())
    assert set(truncations) == set(environment.possible_agents) and all(truncations.values())
    return sorted(story)


def test_all_forms_are_the_same_simulation():
    full, pending = (parallel_env(scenario(), initial=0.2, pending_only=p) for p in (False, True))
    story = play(full, seed=3)
    assert len(story) > 200
    assert play(pending, seed=3) == story
    turns = aec_env(scenario(), initial=0.2)
    turns.reset(seed=3)
    found = []
    for agent in turns.agent_iter():
        observation, _, termination, truncation, info = turns.last()
        if termination or truncation:
            turns.step(None)
            continue
        action = action_of(agent, info["time_s"])
        found.append((info["time_s"], agent, *observation, *action))
        turns.step(action)
    assert not turns.agents
    assert sorted(found) == story
    for environment in (pending, turns):
        assert (environment.outcome().flow_gbps == full.outcome().flow_gbps).all()


def test_only_pending_agents_where_asked():
    environment = parallel_env(scenario(), initial=0.2, pending_only=True)
    observations, infos = environment.reset(seed=1)
    some = False
    for _ in range(30):
        assert set(observations) == set(infos) and observations
        some |= len(observations) < len(environment.agents)
        observations, rewards, _, _, infos = environment.step({})
        assert set(rewards) == set(observations)
        assert all(info["pending"] for info in infos.values())
    assert some


def test_seeds_repeat_and_resets_go_on():
    environment = parallel_env(scenario(), initial=0.2)
    first, second = play(environment, seed=1), play(environment, seed=None)
    assert first != second != play(environment, seed=2) != first
    assert play(environment, seed=1) == first
    assert play(environment, seed=None) == second


def test_observations_and_rewards_by_hand():
    features = FeatureSet(signal=Signal(target=0.04, offset=1.2, scale=3.0))
    environment = VectorFlows([scenario(2), scenario(8)], features, initial=0.3)
    assert environment.single_observation_space.shape == (4,)
    step = environment.reset([1, 2])
    history, actions = {}, np.random.default_rng(1)
    while step is not None:
        n = len(step.key)
        assert step.observation.shape == (n, 4) and step.observation.dtype == np.float32
        assert step.reward.shape == (n,) and step.reward.dtype == np.float32
        d = step.decisions
        rows = zip(step.key, step.observation, step.reward, d.rtt_s, d.rate)
        chosen = actions.uniform(-1, 1, n).astype(np.float32)
        for (key, seen, reward, rtt, rate), action in zip(rows, chosen):
            assert environment.single_observation_space.contains(seen)
            error = 0.04 - max(rtt / 12e-6 - 1.2, 0) * rate**0.5
            action_before, *older = history.get(key, (0.0, 0.0, 0.0))
            limited = min(max(3 * error, -1), 1)
            assert seen == pytest.approx([*older, action_before, limited], abs=2e-5)
            expected = -(error**2) if key in history else 0
            assert reward == pytest.approx(expected, rel=1e-3, abs=1e-6)
            # A decision's newer half is the next one's older half.
            history[key] = (action, action_before, seen[3])
        step = environment.step(chosen[:, None])
    assert len(history) == 10
    with pytest.raises(RuntimeError, match="reset"):
        environment.step([])


def test_lost_probes_are_told():
    # At the line rate eight flows offer eight times the rate of the receiver's link.
    features = FeatureSet(signal=Signal(target=0.04, offset=1.0, scale=0.5))
    environment = VectorFlows(scenario(8), features)
    step, lost, decided = environment.reset([1]), 0, set()
    while step is not None:
        d = step.decisions
        lost += d.probe_lost.sum()
        known = 0.04 - np.maximum(d.rtt_s / 12e-6 - 1, 0) * np.sqrt(d.rate)
        error = np.where(d.probe_lost, -1, np.clip(0.5 * known, -1, 1))
        np.testing.assert_allclose(step.observation[:, 3], error, rtol=1e-4, atol=1e-5)
        reward = -(np.where(d.probe_lost, np.minimum(known, -1), known) ** 2)
        reward = np.where([key in decided for key in step.key], reward, 0)
        np.testing.assert_allclose(step.reward, reward, rtol=1e-3, atol=1e-6)
        decided.update(step.key)
        step = environment.step(np.where(d.probe_lost, -1, 0))
    assert lost > 20
    parallel = parallel_env(scenario(8), features)
    parallel.reset(seed=1)
    told = False
    while parallel.agents:
        *_, infos = parallel.step({})
        told |= any(info.get("probe_lost", False) for info in infos.values())
    assert told


def test_what_a_model_in_the_simulator_sees(tmp_path):
    # The stand-in's action is tanh(0.8 * error).
    learned = Learned(standin.file(tmp_path, target=0.07, error_scale=4.0), initial=1 / 16)
    features = FeatureSet(signal=Signal(0.07, 1.0, 4.0))
    environment = VectorFlows(scenario(16), features, initial=1 / 16)
    step = environment.reset([6])
    while step is not None:
        step = environment.step(np.tanh(0.8 * step.observation[:, 3].astype(np.float64)))
    inside, outside = run(scenario(16), learned, seed=6), environment.batch.result(0)
    # Features within the simulator have 15 bits.
    assert outside.utilisation_percent == pytest.approx(inside.utilisation_percent, rel=0.02)
    assert outside.counts.decisions == pytest.approx(inside.counts.decisions, rel=0.02)


def test_bad_actions_are_refused():
    environment = VectorFlows(scenario())
    with pytest.raises(RuntimeError, match="before reset"):
        _ = environment.batch
    n = len(environment.reset([1]).key)
    for action, words in [
        (np.zeros(n + 1), "expected the shape"),
        (np.zeros((n, 2)), "expected the shape"),
        (np.full(n, 1.5), r"action\[0\]: expected -1 to 1, found 1.5"),
        (np.full(n, np.nan), r"action\[0\]: expected -1 to 1, found nan"),
    ]:
        with pytest.raises(ValueError, match=words):
            environment.step(action)
    turns = aec_env(scenario())
    turns.reset(seed=1)
    for action in (None, np.full(1, 2.0), np.zeros(2)):
        with pytest.raises(ValueError, match=f"expected .* for {turns.agent_selection}"):
            turns.step(action)


@pytest.mark.filterwarnings("ignore:This process")  # is multi-threaded: that is what is tested.
def test_simulations_go_on_in_a_forked_child():
    flows, parallel = VectorFlows([scenario(), scenario()], jobs=2), parallel_env(scenario())
    step, _ = flows.reset(), parallel.reset(seed=1)
    parallel.step({agent: np.zeros(1, np.float32) for agent in parallel.agents})

    def work():
        flows.step(np.zeros(len(step.key), np.float32))
        parallel.step({agent: np.zeros(1, np.float32) for agent in parallel.agents})
        assert VectorFlows([scenario(), scenario()], jobs=2).reset() is not None

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    is_stuck = child.is_alive()
    child.kill()
    child.join()
    assert not is_stuck and child.exitcode == 0
    work()
