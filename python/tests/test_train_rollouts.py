"""Rollouts: decisions of many flows come interleaved, and must not mix."""

import functools
from pathlib import Path

import numpy as np
import pytest
from thalweg.train import adpg
from thalweg.train.adpg import Settings
from thalweg.train.environment import Given, maker, seeds
from thalweg.train.rollouts import Collector, LocalPool, RayPool, Rollouts, outcomes


class Interleaved:
    """Flows that decide in a random order, unevenly; their reports encode flow and number."""

    def __init__(self, flows, decisions, seed):
        self.flows = flows
        self._rng = np.random.default_rng(seed)
        self._left = decisions
        self._count = np.zeros(flows, int)

    def advance(self):
        if self._left <= 0:
            return None
        # Some flows decide four times as often as others.
        often = np.where(np.arange(self.flows) % 2, 0.8, 0.2)
        key = np.flatnonzero(self._rng.random(self.flows) < often)
        key = self._rng.permutation(key if key.size else np.array([0])).astype(np.int32)
        self._left -= len(key)
        number = self._count[key]
        self._count[key] += 1
        ones = np.ones(len(key), np.float32)
        return Given(
            env=key * 0,
            flow=key,
            key=key,
            time_s=number.astype(float),
            rtt_s=(1000 * key + number).astype(np.float32),
            base_rtt_s=ones,
            rate=ones,
            acked_bytes=ones,
            marked_bytes=ones,
            lost_bytes=ones,
            probe_lost=ones < 0,
        )

    def decide(self, multiplier):
        pass

    def outcome(self, env):
        return {}


class Recorder:
    """An agent that records its calls."""

    fields = {"told": (), "at": (2,)}

    def reset(self, keys, seed):
        self.keys = keys

    def load(self, policy):
        pass

    def memory(self):
        return np.zeros((self.keys, 0), np.float32)

    def decide(self, d):
        return np.ones(len(d.key), np.float32), {
            "told": d.rtt_s,
            "at": np.stack([d.key, d.time_s], 1),
        }


def test_rollouts_of_interleaved_flows_never_mix():
    flows, length = 40, 25
    collector = Collector(lambda s: Interleaved(flows, 10_000, s[0]), Recorder(), length)
    collector.start(np.array([3]))
    expected = np.zeros(flows, int)
    total = 0
    while True:
        rollouts = collector.collect(None)
        for key in range(flows):
            n = rollouts.length[key]
            numbers = expected[key] + np.arange(n)
            np.testing.assert_array_equal(rollouts["told"][key, :n], 1000 * key + numbers)
            np.testing.assert_array_equal(rollouts["at"][key, :n, 0], key)
            np.testing.assert_array_equal(rollouts["told"][key, n:], 0)
            expected[key] += n
        total += rollouts.length.sum()
        if rollouts.ended:
            break
        # A set ends when its mean length is reached, or a row is full.
        assert rollouts.length.sum() >= flows * length or rollouts.length.max() == 2 * length
    assert total >= 10_000
    assert expected[1] > 2 * expected[0]  # they were uneven indeed


def test_a_full_row_is_not_written_past_its_end():
    rollouts = Rollouts.empty(2, 2, {"x": ()})
    for value in (1.0, 2.0):
        rollouts.append(np.array([1]), x=value)
    assert not rollouts.room()
    with pytest.raises(IndexError):
        rollouts.append(np.array([1]), x=3.0)
    np.testing.assert_array_equal(rollouts["x"], [[0, 0], [1, 2]])
    with pytest.raises(KeyError, match="expected"):
        rollouts.append(np.array([0]), y=1.0)


def test_outcomes_and_masks_by_hand():
    rollouts = Rollouts.empty(2, 3, {"x": ()})
    for value in (1.0, 2.0):
        rollouts.append(np.array([0]), x=value)
    rollouts.append(np.array([1]), x=7.0)
    np.testing.assert_array_equal(outcomes(rollouts["x"]), [[2, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(rollouts.mask(), [[1, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(rollouts.mask(drop_last=1), [[1, 0, 0], [0, 0, 0]])


def test_seeds_differ_between_episodes_and_from_those_of_evaluations():
    every = [tuple(seeds(1, purpose, n, 4)) for purpose in (0, 1) for n in range(50)]
    assert len({seed for four in every for seed in four}) == 400
    assert every[0] == tuple(seeds(1, 0, 0, 4))


SETTINGS = Settings(copies=4, rollout=16, duration_s=1e-3, workers=2, quiet=True)


def assert_same(one, other):
    assert one.ended == other.ended
    np.testing.assert_array_equal(one.length, other.length)
    for name in one.data:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.slow
def test_a_ray_cluster_gives_the_rollouts_that_this_process_gives():
    ray = pytest.importorskip("ray", reason="ray is not installed")
    make = maker(SETTINGS.scenarios, SETTINGS.duration_s)
    agent = functools.partial(adpg.Deterministic, SETTINGS.feature_set())
    policy = adpg.new_policy(SETTINGS)
    # Workers of the cluster are other programs, which need the path of the package.
    environment = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[1])}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    try:
        remote, local = (pool(make, agent, SETTINGS.rollout, 2) for pool in (RayPool, LocalPool))
        for pool in (remote, local):
            pool.start(seeds(1, 0, 0, 12))
        compared = 0
        while True:
            one, other = remote.collect(policy), local.collect(policy)
            assert_same(one, other)
            compared += int(one.length.sum())
            if one.ended:
                break
        # Two workers with 6 simulations each, 28 flows each, some fifty decisions each.
        assert compared > 1000
    finally:
        ray.shutdown()
