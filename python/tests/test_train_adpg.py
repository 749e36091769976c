"""ADPG: its gradient, its result, and interruptions of a run."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from thalweg.features import multiplier
from thalweg.train import adpg, checkpoint
from thalweg.train.adpg import Settings
from thalweg.train.environment import maker, seeds
from thalweg.train.fluid import Bottleneck, FluidBatch
from thalweg.train.networks import Acting, Lstm, Mlp
from thalweg.train.rollouts import Collector, Diverged
from thalweg.train.run import command_line

PYTHON = Path(__file__).parents[1]


def flatten(policy):
    leaves, structure = jax.tree.flatten(policy)
    shapes = [leaf.shape for leaf in leaves]
    sizes = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def build(vector):
        parts = jnp.split(vector, sizes)
        return jax.tree.unflatten(structure, [p.reshape(s) for p, s in zip(parts, shapes)])

    return jnp.concatenate([leaf.ravel() for leaf in leaves]), build


def differences(function, at, step=1e-6):
    """Central differences, one component at a time."""
    out = np.zeros(at.size)
    for i in range(at.size):
        change = np.zeros(at.size)
        change[i] = step
        out[i] = (float(function(at + change)) - float(function(at - change))) / (2 * step)
    return out


def wide(policy):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float64), policy)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def cosine(a, b):
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_gradient_of_the_loss_is_that_of_differences(float64, kind):
    rng = np.random.default_rng(3)
    key = jax.random.key(1)
    policy = wide(Mlp((4, 5, 1), key, 1.0) if kind == "mlp" else Lstm(4, 3, key, 1.0))
    observation = rng.normal(size=(3, 6, 4))
    memory = rng.normal(size=(3, policy.memory))
    g = rng.normal(size=(3, 6))
    mask = (np.arange(6) < np.array([6, 4, 0])[:, None]).astype(float)
    vector, build = flatten(policy)

    @jax.jit
    def loss(v):
        return adpg.loss(build(v), observation, memory, g, mask, 0.7)

    gradient = np.asarray(jax.grad(loss)(vector))
    np.testing.assert_allclose(gradient, differences(loss, np.asarray(vector)), atol=1e-7)
    assert np.linalg.norm(gradient) > 0.01


def test_the_loss_is_the_formula(float64):
    rng = np.random.default_rng(4)
    policy = wide(Mlp((4, 5, 1), jax.random.key(1), 1.0))
    observation, g = rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 5))
    lengths = [5, 3]
    mask = (np.arange(5) < np.array(lengths)[:, None]).astype(float)
    expected = 0.0
    for flow, length in enumerate(lengths):
        u = [float(policy(observation[flow, t])) for t in range(length)]
        push = sum(u[t] * g[flow, t] for t in range(length)) / length
        unlike = sum(
            sum((u[i] - u[j]) ** 2 / 2 for j in range(i + 1, length)) / (length - i)
            for i in range(length)
        )
        expected += (push + 0.3 * unlike / length) / 2
    loss = adpg.loss(policy, observation, np.zeros((2, 0)), g, mask, 0.3)
    assert float(loss) == pytest.approx(expected, abs=1e-12)


def test_advantages_by_hand():
    # Errors at four decisions; three actions have an outcome, with gamma 1/2:
    # -(0.2 + 0.4/2 - 0.8/4) / 3, -(0.4 - 0.8/2) / 2, 0.8.
    error = np.array([[9.0, 0.2, 0.4, -0.8, 0.0]], np.float32)
    g = adpg.advantages(error, np.array([4]), 0.5)
    np.testing.assert_allclose(g, [[-0.2 / 3, 0, 0.8, 0, 0]], atol=1e-6)


def bottleneck_signal(rate, others):
    """A differentiable bottleneck without memory: inflation rises with the load."""
    return (1 + 3 * (rate + others) ** 2 - 1.1) * jnp.sqrt(rate)


@pytest.mark.parametrize("target", [0.2, 2.0])
def test_for_one_decision_the_analytic_gradient_is_the_rewards_up_to_a_positive_factor(
    float64, target
):
    policy = wide(Mlp((4, 6, 1), jax.random.key(5), 1.0))
    vector, build = flatten(policy)
    observation = np.array([0.1, -0.4, 0.3, 0.5])
    rate, others = 0.3, 0.5

    @jax.jit
    def reward(v):
        u = build(v)(observation)
        factor = jnp.where(u >= 0, 1 + 0.2 * u, 1 / (1 - 0.2 * u))
        return -((target - bottleneck_signal(rate * factor, others)) ** 2)

    u = float(policy(observation))
    factor = 1 + 0.2 * u if u >= 0 else 1 / (1 - 0.2 * u)
    s = float(bottleneck_signal(rate * factor, others))
    assert (s < target) == (target == 2.0)  # one case below the target, one above
    # The decision itself and the one at which its outcome is seen.
    error = np.array([[0.0, target - s]], np.float32)
    g = adpg.advantages(error, np.array([2]), 0.99).astype(float)
    mask = np.array([[1.0, 0.0]])
    rows = np.stack([observation, np.zeros(4)])[None]
    analytic = -np.asarray(
        jax.grad(lambda v: adpg.loss(build(v), rows, np.zeros((1, 0)), g, mask, 0.0))(vector)
    )
    true = differences(reward, np.asarray(vector))
    assert cosine(analytic, true) == pytest.approx(1, abs=1e-6)


def test_over_many_decisions_of_many_flows_it_points_uphill(float64):
    """The closed loop of six flows that share a queue, differentiated as a whole by differences,
    against the analytic form on the same rollouts."""
    target, steps = 0.4, 12
    start = np.array([0.02, 0.05, 0.1, 0.15, 0.2, 0.05])
    policy = wide(Mlp((4, 6, 1), jax.random.key(7), 1.0))
    vector, build = flatten(policy)

    def rollout(v):
        policy = build(v)
        rate, queue = start, 0.0
        last = jnp.zeros((len(start), 4))
        observations, errors = [], []
        for _ in range(steps):
            load = rate.sum()
            # A soft floor, so that differences exist everywhere.
            queue = jax.nn.softplus(20 * (queue + load - 1)) / 20
            s = (queue + load) * jnp.sqrt(rate)
            error = target - s
            last = jnp.concatenate([last[:, 2:3], last[:, 3:], last[:, 2:3] * 0, error[:, None]], 1)
            last = last.at[:, 2].set(observations[-1][1] if observations else 0.0)
            u = policy(last)
            observations.append((last, u))
            errors.append(error)
            rate = rate * jnp.where(u >= 0, 1 + 0.2 * u, 1 / (1 - 0.2 * u))
        return jnp.stack([o for o, _ in observations], 1), jnp.stack(errors, 1)

    @jax.jit
    def reward(v):
        return -(rollout(v)[1] ** 2).mean()

    observation, error = (np.asarray(x) for x in rollout(vector))
    lengths = np.full(len(start), steps)
    g = adpg.advantages(error.astype(np.float32), lengths, 0.9).astype(float)
    mask = np.repeat((np.arange(steps) < steps - 1)[None].astype(float), len(start), 0)
    analytic = -np.asarray(
        jax.grad(lambda v: adpg.loss(build(v), observation, np.zeros((6, 0)), g, mask, 0.0))(vector)
    )
    assert cosine(analytic, differences(reward, np.asarray(vector))) > 0.5


def test_a_flow_below_target_learns_to_send_faster_and_above_slower(float64):
    policy = wide(Mlp((4, 6, 1), jax.random.key(2), 1.0))
    observation = np.tile([0.1, 0.2, -0.1, 0.3], (1, 4, 1))
    for error, direction in ((0.5, 1), (-0.5, -1)):
        g = adpg.advantages(np.full((1, 4), error, np.float32), np.array([4]), 0.99).astype(float)
        mask = np.array([[1.0, 1, 1, 0]])
        gradient = eqx.filter_grad(adpg.loss)(policy, observation, np.zeros((1, 0)), g, mask, 1.0)
        after = jax.tree.map(lambda p, d: p - 1e-3 * d, policy, gradient)
        change = float(after(observation[0, 0]) - policy(observation[0, 0]))
        assert change * direction > 1e-6


def test_one_decision_at_a_time_or_whole_rollouts_give_the_same_actions():
    rng = np.random.default_rng(0)
    key = jax.random.key(1)
    for policy in (Mlp((4, 12, 12, 1), key, 1.0), Lstm(4, 16, key, 1.0)):
        rows = rng.normal(size=(3, 20, 4)).astype(np.float32)
        whole = np.asarray(policy.sequence(rows, np.zeros((3, policy.memory), np.float32)))
        acting = Acting(policy, 3)
        single = np.zeros((3, 20), np.float32)
        at = np.zeros(3, int)
        # Flows come unevenly.
        while (at < 20).any():
            flow = np.flatnonzero((rng.random(3) < 0.5) & (at < 20))
            if flow.size:
                single[flow, at[flow]] = acting.act(flow, rows[flow, at[flow]])
                at[flow] += 1
        np.testing.assert_allclose(single, whole, atol=1e-5)
        assert np.abs(whole).max() > 0.1


QUICK = Settings(
    copies=4, updates=12, rollout=32, duration_s=1.5e-3, evaluate_every=0, quiet=True, seed=5
)


def settings(directory, base=QUICK, **changes):
    return Settings(**(base.__dict__ | {"output": str(directory)} | changes))


def curve(directory):
    with open(Path(directory) / "curves.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run on 2, 4 and 8 flows, within the time of continuous integration."""
    chosen = Settings(
        output=str(tmp_path_factory.mktemp("trained")),
        copies=12,
        updates=90,
        evaluate_every=0,
        quiet=True,
    )
    return chosen, adpg.train(chosen)


def figures(chosen, policy, flows, copies=3, duration_s=25e-3):
    def make(seeds):
        scenario = Bottleneck(
            flows,
            duration_s=duration_s,
            warm_up_s=duration_s * 0.6,
            start_rate=(0.2 / flows, min(1, 3 / flows)),
        )
        return FluidBatch([scenario] * len(seeds), seeds.tolist())

    collector = Collector(make, adpg.Deterministic(chosen.feature_set()), chosen.rollout)
    collector.start(seeds(99, 1, flows, copies))
    outcomes = collector.finish(policy)
    return {name: float(np.mean([o[name] for o in outcomes])) for name in outcomes[0]}


@pytest.mark.slow
@pytest.mark.parametrize("flows", [2, 8, 64])
def test_what_it_learned_fills_the_link_fairly_without_loss(trained, flows):
    found = figures(*trained, flows)
    assert found["su"] >= 88
    assert found["fr"] >= 70
    assert found["loss"] == 0
    # The signal's fixed point is at 4.8 us and more; a queue several times that is not held.
    assert found["ql_us"] <= 15


def settle(chosen, act, flows):
    """Smallest / largest rate before and after, and the mean signal at the end, in targets, of
    flows that start unequal and see no noise."""
    law = chosen.feature_set().signal
    scenario = Bottleneck(
        flows, duration_s=50e-3, noise=False, start_rate=(0.2 / flows, min(1.0, 1.8 / flows))
    )
    batch = FluidBatch([scenario], [4])
    before = batch.rates(0)
    late = []
    while (decisions := batch.advance()) is not None:
        if decisions.time_s.max() > 40e-3:
            late.append(law.value(decisions.rtt_s / decisions.base_rtt_s, decisions.rate))
        batch.decide(act(decisions))
    after = batch.rates(0)
    mean = np.mean(np.concatenate(late)) / law.target
    return before.min() / before.max(), after.min() / after.max(), mean


@pytest.mark.parametrize("flows", [2, 8])
def test_a_rule_that_follows_the_error_settles_at_the_target(flows):
    """The fixed point is that of environment and features, for any policy."""
    law = QUICK.feature_set().signal

    def act(decisions):
        s = law.value(decisions.rtt_s / decisions.base_rtt_s, decisions.rate)
        return multiplier(np.clip(0.03 * (1 - s / law.target), -1, 1))

    before, after, mean = settle(QUICK, act, flows)
    assert before < 0.8 and after > 0.95
    assert mean == pytest.approx(1, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("flows", [2, 8, 64])
def test_without_noise_flows_end_up_equal_near_the_target(trained, flows):
    chosen, policy = trained
    agent = adpg.Deterministic(chosen.feature_set())
    agent.reset(flows, 0)
    agent.load(policy)
    before, after, mean = settle(chosen, lambda d: agent.decide(d)[0], flows)
    assert before < 0.8 and after > 0.85
    # Below the target: the policy answers too high a signal more strongly than too low a one, so
    # flows oscillate around a mean below it.
    assert 0.2 < mean < 1.3


@pytest.mark.slow
def test_an_untrained_network_does_not(trained):
    chosen, _ = trained
    found = figures(chosen, adpg.new_policy(chosen), 8)
    assert found["fr"] < 60 or found["su"] < 80 or found["ql_us"] > 15


def test_the_same_seed_gives_the_same_curve_and_another_seed_another(tmp_path):
    curves = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        adpg.train(settings(tmp_path / name, seed=seed))
        curves.append((tmp_path / name / "curves.csv").read_bytes())
    assert curves[0] == curves[1]
    assert curves[0] != curves[2]
    assert len(curve(tmp_path / "a")) == QUICK.updates


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_curve(tmp_path):
    adpg.train(settings(tmp_path / "whole"))
    command = [sys.executable, "-m", "thalweg.train.adpg", "--quiet", "--seed", "5"]
    command += ["--copies", "4", "--updates", "12", "--rollout", "32", "--duration-s", "1.5e-3"]
    command += ["--evaluate-every", "0", "--output", str(tmp_path / "killed")]
    environment = os.environ | {"PYTHONPATH": str(PYTHON)}
    path = tmp_path / "killed" / "checkpoint.safetensors"
    process = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + 120
        # The first checkpoint, of which there are several before the end.
        while not path.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with safe_open(path, "np") as file:
        done = json.loads(file.metadata()["thalweg_checkpoint"])["state"]["update"]
    assert 0 < done < QUICK.updates
    subprocess.run(command, env=environment, check=True, timeout=120)
    curves = [(tmp_path / name / "curves.csv").read_bytes() for name in ("whole", "killed")]
    assert curves[0] == curves[1]
    arrays = [load_file(tmp_path / n / "checkpoint.safetensors") for n in ("whole", "killed")]
    for name in arrays[0]:
        np.testing.assert_array_equal(arrays[0][name], arrays[1][name])


class Broken:
    """An environment whose round-trip times are NaN from some decision on."""

    def __init__(self, batch, good):
        self._batch, self._good = batch, good
        self.flows, self.decide, self.outcome = batch.flows, batch.decide, batch.outcome

    def advance(self):
        decisions = self._batch.advance()
        self._good -= 1
        if decisions is not None and self._good < 0:
            decisions.rtt_s[:] = np.nan
        return decisions


def test_a_run_can_be_longer_and_begin_with_another(tmp_path):
    adpg.train(settings(tmp_path / "a", updates=3))
    first = curve(tmp_path / "a")
    longer = adpg.train(settings(tmp_path / "a", updates=6))
    assert curve(tmp_path / "a")[: len(first)] == first
    assert len(curve(tmp_path / "a")) == len(first) + 3
    with pytest.raises(checkpoint.CheckpointError, match="trained with updates 6, asked for 3"):
        adpg.train(settings(tmp_path / "a", updates=3))
    # With a learning rate of almost nothing it stays what it began with.
    start = {"begin_with": str(tmp_path / "a/checkpoint.safetensors"), "learning_rate": 1e-12}
    warm = adpg.train(settings(tmp_path / "b", updates=1, seed=2, **start))
    np.testing.assert_allclose(flatten(warm)[0], flatten(longer)[0], atol=1e-6)
    with pytest.raises(checkpoint.CheckpointError, match="gone"):
        adpg.train(settings(tmp_path / "c", begin_with=str(tmp_path / "gone")))


def test_numbers_that_are_not_finite_stop_training_and_keep_the_checkpoint(tmp_path):
    chosen = settings(tmp_path)
    healthy = maker(chosen.scenarios, chosen.duration_s)
    made = []

    def make(seeds):
        made.append(1)
        return Broken(healthy(seeds), 10**9 if len(made) < 3 else 20)

    with pytest.raises(Diverged, match=r"round-trip time of nan.*last good checkpoint is.*safet"):
        adpg.train(chosen, make)
    assert len(made) == 3
    path = tmp_path / "checkpoint.safetensors"
    arrays = load_file(path)
    assert arrays and all(np.isfinite(array).all() for array in arrays.values())
    # The run can go on from it.
    adpg.train(chosen)
    assert len(curve(tmp_path)) == chosen.updates


def test_a_learning_rate_that_diverges_is_named(tmp_path):
    with pytest.raises(Diverged, match="update 1: numbers.*no checkpoint yet.*smaller learning"):
        adpg.train(settings(tmp_path, learning_rate=float("inf")))
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_full_disk_ends_training_and_keeps_the_checkpoint(tmp_path, capsys):
    chosen = settings(tmp_path, updates=9)
    path = tmp_path / "checkpoint.safetensors"
    healthy = maker(chosen.scenarios, chosen.duration_s)
    kept = []

    def make(seeds):
        if path.exists():
            kept.append(path.read_bytes())
            # The second checkpoint is written to a device that is always full.
            draft = f".checkpoint.safetensors.{os.getpid()}.draft"
            (tmp_path / draft).symlink_to("/dev/full")
        return healthy(seeds)

    flags = ["--output", str(tmp_path), "--quiet"]
    assert command_line(Settings, lambda _: adpg.train(chosen, make), flags, "") == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said and "last good checkpoint is" in said
    assert said.count(str(path)) == 2  # which could not be written, and which is kept
    assert len(kept) == 1 and path.read_bytes() == kept[0]
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.safetensors", "curves.csv"]
    # With space on the disk it goes on to the same result.
    adpg.train(chosen)
    whole = dataclasses.replace(chosen, output=str(tmp_path / "whole"))
    adpg.train(whole)
    assert curve(tmp_path) == curve(tmp_path / "whole")


def rewrite(path, change):
    with safe_open(path, "np") as file:
        head = json.loads(file.metadata()["thalweg_checkpoint"])
    arrays = load_file(path)
    change(head, arrays)
    save_file(arrays, path, metadata={"thalweg_checkpoint": json.dumps(head)})


def cut(head, arrays):
    arrays["0000"] = arrays["0000"][:1].copy()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h, a: h.update(version=checkpoint.VERSION + 1), "version 2, this program reads"),
        (lambda h, a: h.update(kind="ppo"), "algorithm 'ppo', expected 'adpg'"),
        (lambda h, a: a.popitem(), "arrays, expected"),
        (cut, "array 0000 is float32"),
        (lambda h, a: h["state"]["settings"].update(gamma=0.5), "trained with gamma 0.5"),
        # Arrays have other shapes; the message names the settings.
        (
            lambda h, a: (h["state"]["settings"].update(features=["error"]), cut(h, a)),
            r"trained with features \['error'\], asked for \['action', 'error'\]",
        ),
        (lambda h, a: h["state"].pop("episode"), "state.episode is None, expected int"),
        (lambda h, a: h.update(state=[]), "state.episode is None, expected int"),
        (lambda h, a: a["0001"].fill(np.nan), "array 0001 holds numbers that are not finite"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_kept(tmp_path, change, words):
    chosen = settings(tmp_path, updates=2)
    adpg.train(chosen)
    path = tmp_path / "checkpoint.safetensors"
    rewrite(path, change)
    before = path.read_bytes()
    with pytest.raises(checkpoint.CheckpointError, match=words):
        adpg.train(chosen)
    assert path.read_bytes() == before


def test_a_damaged_checkpoint_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    adpg.train(settings(tmp_path, updates=1))
    whole = path.read_bytes()
    for content in (b"", b"not a checkpoint", b"\xff" * 100, whole[:-1], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(checkpoint.CheckpointError, match="not a checkpoint"):
            adpg.train(settings(tmp_path))
    path.unlink()
    path.mkdir()
    with pytest.raises(checkpoint.CheckpointError, match="checkpoint.safetensors: cannot be read"):
        adpg.train(settings(tmp_path))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--network", "cnn"], "expected mlp or lstm"),
        (["--features", "speed"], "unknown feature 'speed'"),
        (["--copies", "3", "--workers", "2"], "cannot be shared"),
        (["--gamma", "0"], "gamma is 0.0"),
        (["--target", "-1"], "target is -1.0"),
    ],
)
def test_bad_flags_are_named(flags, words, capsys):
    with pytest.raises(SystemExit):
        adpg.main(flags)
    assert words in capsys.readouterr().err


def test_a_scenario_that_is_not_there_is_named(tmp_path, capsys):
    assert adpg.main(["--scenarios", "fluid:2,nowhere.toml", "--output", str(tmp_path)]) == 1
    assert "cannot mix" in capsys.readouterr().err
    assert adpg.main(["--scenarios", "nowhere.toml", "--output", str(tmp_path)]) == 1
    assert "'nowhere.toml' is neither" in capsys.readouterr().err


def test_the_lstm_trains(tmp_path):
    adpg.train(settings(tmp_path, network="lstm", hidden=(16,), updates=4))
    assert all(np.isfinite(float(row["objective"])) for row in curve(tmp_path))


def test_evaluations_are_in_the_curve(tmp_path):
    adpg.train(settings(tmp_path, updates=3, evaluate_every=1))
    last = curve(tmp_path)[-1]
    for flows in (2, 4, 8):
        assert 0 < float(last[f"su_fluid_{flows}"]) <= 100.001
        assert 0 < float(last[f"fr_fluid_{flows}"]) <= 100
