"""Trained baselines, judged; and LSTMs as model files."""

import dataclasses
import pickle
import re
import subprocess
from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from sim_support import many_to_one
from thalweg import evaluate, model
from thalweg.results import lists
from thalweg.results.controllers import tables
from thalweg.sim import Scenario, run
from thalweg.train import adpg, aurora, checkpoint, export, ppo, reinforce
from thalweg.train.stochastic import MULTIPLIERS
from thalweg.train.trained import Trained

CHECKOUT = export.Path(__file__).resolve().parents[2]
SMALL = {"scenarios": ("fluid:2",), "copies": 1, "rollout": 8, "updates": 1, "quiet": True}
SMALL["duration_s"] = 1e-3


def sure(policy, choice):
    """The discrete policy that always takes this choice."""
    actor = policy.actor
    weights = [jnp.zeros_like(weight) for weight in actor.weights]
    biases = [*map(jnp.zeros_like, actor.biases[:-1]), jnp.zeros(6).at[choice].set(1.0)]
    actor = eqx.tree_at(lambda a: (a.weights, a.biases), actor, (weights, biases))
    return eqx.tree_at(lambda p: p.actor, policy, actor)


def test_a_policy_that_leaves_rates_alone_is_a_fixed_rate(tmp_path):
    settings = reinforce.Settings(output=str(tmp_path), **SMALL)
    reinforce.train(settings)
    trained = Trained.load(tmp_path / "checkpoint.safetensors", 1 / 8)
    assert MULTIPLIERS[2] == 1.0
    trained = dataclasses.replace(trained, policy=sure(trained.policy, 2))
    found = trained.run(many_to_one(4), 3)
    expected = run(many_to_one(4), "fixed:fraction=0.125", 3)
    # Four flows at an eighth of the line: its half.
    assert found.utilisation_percent == pytest.approx(50, abs=1)
    assert found.utilisation_percent == pytest.approx(expected.utilisation_percent, abs=0.1)
    assert found.counts.decisions > 500
    # Up by a fifth each time, four flows come to offer four times what the port carries.
    loud = dataclasses.replace(trained, policy=sure(trained.policy, 5)).run(many_to_one(4), 3)
    assert loud.dropped_percent > 30
    # A copy decides alike.
    again = pickle.loads(pickle.dumps(trained)).run(many_to_one(4), 3)
    assert again.flow_gbps.tolist() == found.flow_gbps.tolist()


@pytest.mark.parametrize("name", ["reinforce", "ppo-discrete", "ppo-gaussian"])
def test_what_ships_of_the_baselines_fills_a_link_that_it_was_not_trained_on(name):
    trained = Trained.load(CHECKOUT / f"models/baselines/{name}.safetensors", 0.01)
    scenario = Scenario.load(CHECKOUT / "scenarios/sim/many-to-one-16.toml")
    found = trained.run(scenario.replace(duration_s=0.03, warmup_s=0.015), 1)
    # 16 flows that begin at 1 % offer 16 %; a policy that falls silent stays below that.
    assert found.utilisation_percent > 80 and found.dropped_percent == 0
    # At rest they wait target * sqrt(16) base round-trip times, 1.6 us; 16 flows that swing between
    # an empty queue and one with a packet of each have as much.
    assert found.queue_latency.mean_us < 5


@pytest.mark.slow
def test_trained_policies_stand_beside_the_published(tmp_path):
    files = []
    for name, module, more in [
        ("reinforce", reinforce, {}),
        ("ppo-discrete", ppo, {}),
        ("ppo-gaussian", ppo, {"actions": "gaussian"}),
        ("aurora", aurora, {}),
    ]:
        module.train(module.Settings(output=str(tmp_path / name), **SMALL, **more))
        files.append(tmp_path / f"{name}.safetensors")
        (tmp_path / name / "checkpoint.safetensors").rename(files[-1])
    table = lists.Controllers(
        kind="controllers",
        title="T",
        published="many-to-one",
        scenario=str(CHECKOUT / "scenarios/sim/many-to-one-{size}.toml"),
        sizes=(128,),
        trained=tuple(file.name for file in files),
        seeds=2,
        duration_s=0.002,
    )
    job = tables.Job(table, tmp_path)
    measured = job.measured({cell.key: cell.run() for cell in job.cells()})
    assert (measured.duration_s, measured.warmup_s) == (0.002, 0.001)
    lines = {line.label: line for line in measured.parts[0].lines}
    # Table 2 of the paper, 128 flows.
    assert lines["REINFORCE"].published == (51, 100, 3)
    assert lines["ppo-discrete"].published == lines["ppo-gaussian"].published == (1, 26, 3)
    assert lines["Aurora"].published_loss
    for name in ("REINFORCE", "ppo-discrete", "ppo-gaussian", "Aurora"):
        assert lines[name].ours.spreads[0].worst in (1, 2)
    assert lines["ADPG"].ours is None

    adpg.train(adpg.Settings(output=str(tmp_path / "adpg"), evaluate_every=0, **SMALL))
    other = dataclasses.replace(table, trained=("adpg/checkpoint.safetensors",))
    with pytest.raises(ValueError, match="of algorithm 'adpg', expected reinforce, ppo, aurora"):
        tables.Job(other, tmp_path)


def test_a_checkpoint_of_another_program_is_named(tmp_path):
    ppo.train(ppo.Settings(output=str(tmp_path), **SMALL))
    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(checkpoint.CheckpointError, match="settings: .*speed"):
        checkpoint.settings(path, ppo.Settings, {"speed": 1})
    with pytest.raises(checkpoint.CheckpointError, match="settings: actions is 'none'"):
        checkpoint.settings(path, ppo.Settings, {"actions": "none"})


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_an_lstm_as_a_file_is_the_one_that_was_trained(tmp_path):
    settings = adpg.Settings(
        output=str(tmp_path / "run"), network="lstm", hidden=(16,), evaluate_every=0, **SMALL
    )
    policy = adpg.train(settings)
    checkpoint_file = tmp_path / "run" / "checkpoint.safetensors"
    made = model.read(export.export(checkpoint_file, "remembers", tmp_path))
    # As docs/reference/model.md has it: gates in the order input, forget, candidate, output.
    lstm, rng = made.policy, np.random.default_rng(1)
    h, c = np.zeros((3, 16)), np.zeros((3, 16))
    state = np.zeros((3, 32), np.float32)
    for _ in range(5):
        x = rng.uniform(-1, 1, (3, 4)).astype(np.float32)
        entered = np.maximum(x @ lstm.entry.weight.T + lstm.entry.bias, 0)
        gates = entered @ lstm.weight_input.T + h @ lstm.weight_hidden.T + lstm.bias
        i, f, g, o = np.split(gates, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        expected = np.tanh(h @ lstm.output.weight[0] + lstm.output.bias)
        found, state = policy.step(x, state)
        assert np.asarray(found) == pytest.approx(expected, abs=1e-5)
    assert np.abs(expected).max() > 1e-4
    narrow = dataclasses.replace(settings, output=str(tmp_path / "narrow"), hidden=(8,))
    adpg.train(narrow)
    with pytest.raises(ValueError, match="an LSTM of width 8; files hold those of 16"):
        export.export(tmp_path / "narrow" / "checkpoint.safetensors", "narrow", tmp_path)


@pytest.mark.slow
def test_a_summary_is_of_the_model_in_the_file(tmp_path):
    file = tmp_path / "plus.safetensors"
    file.write_bytes((CHECKOUT / "models/adpg-plus.safetensors").read_bytes())
    short = {"scenarios": ["many-to-one-128"], "duration_s": 0.06, "warmup_s": 0.05}
    runs = evaluate.evaluate(file, CHECKOUT, seeds=(1, 2), **short)
    assert [run["inference"] for run in runs] == ["float", "int8"]
    for entry in runs:
        assert entry["scenario"] == "many-to-one-128" and entry["seeds"] == 2
        # 128 flows wait target * sqrt(128) base round-trip times: 12 us * 0.033 * 11.3.
        assert entry["queue_us"] == pytest.approx(4.5, rel=0.1)
        assert entry["utilisation_percent"] > 90 and entry["dropped_percent"] == 0
    read = model.read(file)
    model.write(dataclasses.replace(read, evaluation={"note": 1, "runs": runs}), file)
    assert model.read(file).evaluation["runs"] == runs
    for change, words in [
        ({"inference": "int4"}, r"runs\[0\].inference: found int4"),
        ({"warmup_s": 1.0}, r"runs\[0\].warmup_s: found 1.0, expected 0 to 0.06"),
        ({"queue_us": float("nan")}, r"runs\[0\].queue_us: found nan"),
        ({"queue_us": "7"}, r"runs\[0\].queue_us: found '7', expected a number"),
        ({"speed": 1}, r"runs\[0\]: found .*speed.*, expected these keys"),
    ]:
        bad = dataclasses.replace(read, evaluation={"runs": [runs[0] | change]})
        with pytest.raises(model.ModelError, match=words):
            model.write(bad, file)


def test_summary_queue_is_of_runs_in_which_something_arrived(monkeypatch):
    def outcome(_scenario, _learned, seed):
        # Seed 1 is dead; the others wait 10 us a seed.
        alive = seed > 1
        return SimpleNamespace(
            utilisation_percent=90.0 * alive,
            fairness_percent=100.0 * alive,
            dropped_percent=0.0,
            queue_latency=SimpleNamespace(mean_us=10.0 * seed * alive),
        )

    monkeypatch.setattr(evaluate, "run", outcome)
    file = CHECKOUT / "models/adpg-plus.safetensors"
    entry, *_ = evaluate.evaluate(file, CHECKOUT, ["many-to-one-128"], seeds=(1, 2, 3))
    assert (entry["queue_us"], entry["utilisation_percent"]) == (25.0, 60.0)
    with pytest.raises(ValueError, match="many-to-one-128, float: nothing arrived in any run"):
        evaluate.evaluate(file, CHECKOUT, ["many-to-one-128"], seeds=(1,))


def test_the_source_of_a_run_is_its_commit_or_what_was_installed(tmp_path, monkeypatch):
    if (CHECKOUT / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{40}\+?", checkpoint.source_commit())
    # An environment within the repository of something else.
    installed = tmp_path / "site-packages" / "checkpoint.py"
    installed.parent.mkdir()
    installed.touch()
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "a"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(checkpoint, "__file__", str(installed))
    assert re.fullmatch(r"0\.1\.0, sha256 [0-9a-f]{16}", checkpoint.source_commit())
