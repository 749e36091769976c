"""Training and trained models on the packet simulator."""

from pathlib import Path

import numpy as np
import pytest
from thalweg import model, quantize
from thalweg.features import Signal, multiplier
from thalweg.train import adpg, export
from thalweg.train.environment import START, PacketBatch, seeds
from thalweg.train.rollouts import Collector

sim = pytest.importorskip("thalweg.sim", reason="the compiled part of thalweg.sim is not built")

from thalweg.train import play  # noqa: E402

ROOT = Path(__file__).parents[2]
TRAINING = tuple(str(ROOT / f"scenarios/train/many-to-one-{flows}.toml") for flows in (2, 4, 8))
SIGNAL = Signal(target=0.036, offset=1.0)


def incast(flows: int, line: str = "100gbit", duration: str = "10ms", warmup: str = "5ms"):
    return sim.Scenario.from_text(
        f"""
        name = "incast"
        duration = "{duration}"
        warmup = "{warmup}"
        topology = {{ kind = "star", hosts = {min(flows, 64) + 1} }}
        link = {{ rate = "{line}", delay = "1us", queue = "10mib" }}
        network = {{ base_rtt = "12us" }}
        hosts = {{ start_spread = "100us" }}
        workload = {{ kind = "many-to-one", flows = {flows} }}
        """
    )


def run(batch, act):
    """Runs to the end; ``act(decisions)`` gives multipliers."""
    while (decisions := batch.advance()) is not None:
        batch.decide(act(decisions))


def test_flows_start_at_unlike_rates_and_the_agent_decides_from_then_on():
    batch = PacketBatch([incast(8, duration="2ms", warmup="1ms")] * 16, range(16))
    first: dict[int, float] = {}
    before: dict[int, float] = {}
    while (decisions := batch.advance()) is not None:
        for key, rate in zip(decisions.key, decisions.rate):
            if key in before:
                # Each answer holds, exactly once.
                assert rate == pytest.approx(min(before[key] * 0.99, 1), rel=1e-5)
            else:
                first[key] = rate
            before[key] = rate
        batch.decide(np.full(len(decisions.key), 0.99, np.float32))
    assert len(first) == batch.flows == 128
    rates = np.array(list(first.values()))
    assert rates.min() >= START[0] * 0.999 and rates.max() <= START[1]
    # Log-uniform: half of them below the geometric mean; 5 deviations of a binomial of 128.
    below = (rates < np.sqrt(START[0] * START[1])).sum()
    assert abs(below - 64) < 5 * np.sqrt(32)


def test_what_a_flow_does_raises_its_own_signal():
    """The sign that ADPG assumes: with the rates of all others fixed, the signal grows with the
    rate of a flow."""
    means = []
    for share in (0.2, 0.25, 0.3):
        batch = sim.Batch([incast(4)], [3], initial=0.25)
        signals = []

        def act(decisions, share=share, signals=signals):
            mine = decisions.flow == 0
            s = SIGNAL.value(decisions.rtt_s / decisions.base_rtt_s, decisions.rate)
            signals.extend(s[mine])
            wanted = np.where(mine, share, 0.25)
            return wanted / decisions.rate

        run(batch, act)
        means.append(np.mean(signals))
    assert means[0] < means[1] < means[2]


@pytest.mark.parametrize("flows", [2, 8, 32])
def test_following_the_error_leads_to_equal_rates_at_the_target(flows):
    """The fixed point is that of the network and the features, for any policy: all flows at 1 /
    flows, waiting (offset - 1 + target * sqrt(flows)) base round-trip times."""
    batch = PacketBatch([incast(flows, duration="80ms", warmup="60ms")], [4])

    def act(decisions):
        s = SIGNAL.value(decisions.rtt_s / decisions.base_rtt_s, decisions.rate)
        return multiplier(np.clip(0.1 * (1 - s / SIGNAL.target), -1, 1))

    run(batch, act)
    found = batch.outcome(0)
    assert found["fr"] > 90
    assert found["su"] > 97
    assert found["ql_us"] == pytest.approx(12 * 0.036 * np.sqrt(flows), rel=0.25)


def test_a_short_training_run_fills_the_link_fairly(tmp_path):
    """Fewer updates than for the shipped models; 4 flows at one port."""
    chosen = adpg.Settings(
        output=str(tmp_path / "run"), scenarios=TRAINING, copies=8, target=0.036, offset=1.0,
        smoothness=0.3, updates=60, evaluate_every=0, quiet=True,
    )  # fmt: skip
    policy = adpg.train(chosen)

    def mean(policy):
        collector = Collector(
            lambda these: PacketBatch(
                [incast(4, duration="20ms", warmup="10ms")] * len(these), these.tolist()
            ),
            adpg.Deterministic(chosen.feature_set()),
            chosen.rollout,
        )
        collector.start(seeds(7, 1, 0, 5))
        outcomes = collector.finish(policy)
        return {name: np.mean([o[name] for o in outcomes]) for name in ("su", "fr", "loss")}

    trained, untrained = mean(policy), mean(adpg.new_policy(chosen))
    assert trained["su"] >= 90 and trained["fr"] >= 80 and trained["loss"] == 0
    assert untrained["su"] < 90 or untrained["fr"] < 80 or untrained["loss"] > 0
    path = export.export(tmp_path / "run" / "checkpoint.safetensors", "short", tmp_path)
    made = model.read(path)
    x = np.random.default_rng(1).uniform(-1, 1, (50, 4))
    expected = np.asarray(policy(x.astype(np.float32)))
    assert quantize.infer_float(made.policy, x) == pytest.approx(expected, abs=1e-5)
    assert made.policy.quantised is not None


@pytest.mark.parametrize("name", ["adpg-strict", "adpg-loose", "adpg-plus"])
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(("line", "flows"), [("25gbit", 8), ("100gbit", 8), ("400gbit", 8)])
def test_shipped_models_work_at_other_line_rates(name, line, flows, int8):
    """They were trained at 100 Gbit/s alone, on 2, 4 and 8 flows."""
    shipped = model.read(ROOT / "models" / f"{name}.safetensors")
    scenario = incast(flows, line, duration="30ms", warmup="15ms")
    (found,) = play.play(shipped, scenario, [6], START, int8)
    assert found["su"] >= 90
    assert found["fr"] >= 70
    assert found["loss"] == 0


def test_a_scale_of_a_file_is_the_factor_that_training_names():
    error, fine = model.Feature("error", 5.0), model.Feature("error", 40.0)
    read = model.read(ROOT / "models" / "adpg-strict.safetensors")
    read.features = [model.Feature("action"), error, fine, model.Feature("queue", 0.5)]
    found = play.feature_set(read)
    assert found.scales == (1.0, 5.0, 40.0, 0.5)
    assert found.names[:2] == ("action", "error")
