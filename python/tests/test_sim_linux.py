# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Decisions from Python under the kernel's rules, with hosts of the sender "linux"."""

from pathlib import Path

import numpy as np
import pytest

sim = pytest.importorskip("thalweg.sim", reason="the compiled part of thalweg.sim is not built")

from thalweg import model  # noqa: E402
from thalweg.features import Signal  # noqa: E402
from thalweg.train import environment, play  # noqa: E402

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models/adpg-plus.safetensors"
SIGNAL = (0.033, 1.0)


def scenario(flows: int) -> sim.Scenario:
    found = sim.Scenario.load(ROOT / f"scenarios/sim/linux-1g-{flows}.toml")
    return found.replace(duration_s=2, warmup_s=1)


def decided(scenario: sim.Scenario, seed: int = 3) -> sim.Outcome:
    """The run of the shipped model's integers, in Python."""
    read = model.read(MODEL)
    batch = sim.Batch(scenario, [seed], signal=(read.target, read.offset))
    player = play.Player(read, batch.flows, int8=True)
    while (decisions := batch.advance()) is not None:
        batch.decide(player.act(decisions))
    return batch.result(0)


def test_a_model_in_python_is_nearly_that_of_the_kernel():
    # Features in floating point differ in their last bit, and TCP is chaotic: lab/sim compares
    # the decisions of one model bit by bit.
    python = [decided(scenario(8), seed) for seed in range(1, 6)]
    rust = [sim.run(scenario(8), f"thalweg-rl:model={MODEL}", seed) for seed in range(1, 6)]
    for figure, bound in (
        (lambda one: one.utilisation_percent, 1),
        (lambda one: one.fairness_percent, 10),
        (lambda one: one.smoothed_delay.p50_us, 300),
    ):
        here, there = (np.median([figure(one) for one in runs]) for runs in (python, rust))
        assert abs(here - there) < bound


def test_same_seed_same_outcome():
    first, again = (decided(scenario(2)).flow_gbps for _ in range(2))
    assert (first == again).all()
    assert (first != decided(scenario(2), 4).flow_gbps).any()


def test_decisions_are_what_the_model_would_see():
    batch = sim.Batch(scenario(2), [1], signal=SIGNAL)
    decisions = batch.advance()
    assert len(decisions) == 1 and not decisions.probe_lost[0]
    # The handshake took 2.08 ms; nearer hosts count as 2 ms.
    assert 2e-3 <= decisions.base_rtt_s[0] <= 2.2e-3
    assert decisions.rtt_s[0] >= decisions.base_rtt_s[0]
    assert decisions.line_rate_bps[0] == 10e9
    assert decisions.rate[0] == pytest.approx(decisions.rate_bps[0] / 10e9)


def test_a_decision_is_a_step_of_a_fifth_at_most():
    # No queue, so that nothing but the step bounds the rates.
    wide = scenario(2).replace(keys=["link.rate=100gbit", "hosts.start_spread=0s"])
    batch = sim.Batch(wide, [1], signal=SIGNAL)
    before: dict[int, float] = {}
    greatest = 0.0
    while (decisions := batch.advance()) is not None:
        flow, rate = int(decisions.flow[0]), float(decisions.rate_bps[0])
        greatest = max(greatest, rate / before.get(flow, rate))
        before[flow] = rate
        batch.decide(np.full(1, 7.0))
    assert 1.15 < greatest < 1.2001


@pytest.mark.parametrize(
    "sender, options, words",
    [
        ("linux", {}, "signal: expected target and offset"),
        ("linux", {"signal": SIGNAL, "initial": 0.1}, "initial: expected none"),
        ("linux", {"signal": (0.0, 1.0)}, "signal: target: expected"),
        ("linux", {"signal": SIGNAL, "others": "hpcc"}, "others: "),
        ("nic", {"signal": SIGNAL}, "signal: expected none"),
    ],
)
def test_arguments_that_do_not_fit(sender, options, words):
    given = scenario(2).replace(keys=[f"hosts.sender={sender}"]) if sender == "linux" else None
    given = given or sim.Scenario.load(ROOT / "scenarios/train/many-to-one-2.toml")
    with pytest.raises(ValueError, match=words):
        sim.Batch(given, [1], **options)


def test_scenarios_vary_by_seed():
    one = scenario(2)
    texts = [environment.varied(one, seed).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    rates = [environment.varied(one, seed).line_rate_bps for seed in range(50)]
    assert min(rates) < 3e8 and max(rates) > 1e9
    assert environment.LINK_BPS[0] <= min(rates) and max(rates) <= environment.LINK_BPS[1]


def test_makers_of_one_sender():
    tcp = str(ROOT / "scenarios/train/linux-2.toml")
    nic = str(ROOT / "scenarios/train/many-to-one-2.toml")
    with pytest.raises(ValueError, match="cannot mix"):
        environment.maker([tcp, nic], 1, Signal())
    with pytest.raises(ValueError, match="only adpg"):
        environment.maker([tcp], 1)
    with pytest.raises(ValueError, match="vary: expected"):
        environment.maker([nic], 1, Signal(), vary=True)
