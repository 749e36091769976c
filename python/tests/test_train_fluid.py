"""The fluid bottleneck: laws that must hold, and small cases by hand."""

import numpy as np
import pytest
from thalweg.train.environment import Batch
from thalweg.train.fluid import Bottleneck, FluidBatch


def run(batch, rule=lambda d: np.ones(len(d.key), np.float32)):
    seen = []
    while (decisions := batch.advance()) is not None:
        seen.append(decisions)
        batch.decide(rule(decisions))
    return seen


def test_it_is_an_environment():
    assert isinstance(FluidBatch([Bottleneck(2)], [1]), Batch)


@pytest.mark.slow
def test_waiting_grows_with_the_square_root_of_the_flows_at_full_load():
    # N flows of 1 / N each, bursts of 8 KiB at 100 Gb/s: sqrt(pi N / 8) * 0.65536 us.
    for flows in (4, 64, 400):
        scenario = Bottleneck(flows, start_rate=(1 / flows, 1 / flows), duration_s=40e-3)
        batch = FluidBatch([scenario] * 4, range(4))
        run(batch)
        waits = [batch.outcome(env)["ql_us"] for env in range(4)]
        # By rounding of the rates the load may not be quite 1.
        assert np.mean(waits) == pytest.approx(0.65536 * np.sqrt(np.pi * flows / 8), rel=0.1)


@pytest.mark.slow
def test_without_noise_waiting_is_the_mean_of_the_noisy():
    # At 70 % load, where the mean is no longer that of full load.
    def mean(noise):
        scenario = Bottleneck(16, start_rate=(0.7 / 16, 0.7 / 16), duration_s=40e-3, noise=noise)
        batch = FluidBatch([scenario] * 4, range(4))
        run(batch)
        return np.mean([batch.outcome(env)["ql_us"] for env in range(4)])

    assert mean(False) == pytest.approx(mean(True), rel=0.05)
    assert mean(False) < 0.5 * 0.65536 * np.sqrt(np.pi * 16 / 8)


def test_overload_fills_the_queue_and_loses_the_rest():
    # Two flows at full rate: the queue grows by one second per second, 10 MiB are 839 us.
    batch = FluidBatch(
        [Bottleneck(2, start_rate=(1, 1), noise=False, duration_s=4e-3, warm_up_s=2e-3)], [1]
    )
    seen = run(batch)
    outcome = batch.outcome(0)
    limit_us = (10 << 20) * 8 / 100e9 * 1e6
    assert outcome["su"] == pytest.approx(100)
    assert outcome["loss"] == pytest.approx(100, rel=0.01)
    assert outcome["ql_us"] == pytest.approx(limit_us, rel=0.01)
    late = [d for d in seen if d.time_s.min() > 3e-3]
    acked = sum(float(d.acked_bytes.sum()) for d in late)
    lost = sum(float(d.lost_bytes.sum()) for d in late)
    assert lost == pytest.approx(acked, rel=0.01)


def test_a_decision_comes_once_per_round_trip_or_packet():
    # Alone at 0.1 of the line: an RTT of about 12 us. At 1e-3: a packet each 82 us.
    for rate, interval_s in ((0.1, 12e-6), (1e-3, 8192 / 100e9 / 1e-3)):
        batch = FluidBatch(
            [Bottleneck(1, start_rate=(rate, rate), noise=False, minimum_rate=1e-4)], [1]
        )
        seen = run(batch)
        intervals = np.diff([d.time_s[0] for d in seen])
        assert np.median(intervals) == pytest.approx(interval_s, rel=0.1)


def test_the_rate_follows_the_multiplier_within_its_bounds():
    batch = FluidBatch([Bottleneck(1, start_rate=(0.5, 0.5), minimum_rate=0.01)], [1])
    seen = run(batch, lambda d: np.full(len(d.key), 1.5, np.float32))
    assert seen[0].rate[0] == pytest.approx(0.5)
    assert seen[1].rate[0] == pytest.approx(0.75)
    assert seen[2].rate[0] == 1
    batch = FluidBatch([Bottleneck(1, start_rate=(0.5, 0.5), minimum_rate=0.01)], [1])
    assert run(batch, lambda d: np.full(len(d.key), 0.1, np.float32))[-1].rate[0] == (
        pytest.approx(0.01)
    )


def test_the_same_seeds_give_the_same_run_and_others_another():
    def trace(seeds):
        batch = FluidBatch([Bottleneck(2), Bottleneck(4)], seeds)
        return np.concatenate([d.rtt_s for d in run(batch)])

    first = trace([1, 2])
    np.testing.assert_array_equal(first, trace([1, 2]))
    assert not np.array_equal(first[:50], trace([1, 3])[:50])


@pytest.mark.slow
def test_a_narrow_link_and_random_loss():
    # A tenth of the sender's line; a hundredth lost at random, with room for the rest.
    scenario = Bottleneck(
        1, capacity=0.1, random_loss=0.01, start_rate=(0.05, 0.05), duration_s=0.2
    )
    batch = FluidBatch([scenario], [1])
    seen = run(batch)
    assert batch.outcome(0)["su"] == pytest.approx(50, rel=0.01)
    lost = sum(float(d.lost_bytes.sum()) for d in seen)
    acked = sum(float(d.acked_bytes.sum()) for d in seen)
    # 0.2 s at 5 Gb/s are 122,070 packets, of which 1,221 +- 35 are lost.
    assert lost / (lost + acked) == pytest.approx(0.01, abs=0.0015)


def test_misuse_is_refused():
    batch = FluidBatch([Bottleneck(1)], [1])
    with pytest.raises(RuntimeError, match="without decisions"):
        batch.decide(np.ones(1, np.float32))
    decisions = batch.advance()
    with pytest.raises(ValueError, match="shape"):
        batch.decide(np.ones(len(decisions.key) + 1, np.float32))
    with pytest.raises(ValueError, match="not finite"):
        batch.decide(np.full(len(decisions.key), np.nan, np.float32))
    with pytest.raises(RuntimeError, match="before the last decisions"):
        batch.advance()
    with pytest.raises(ValueError, match="2 scenarios but 1 seeds"):
        FluidBatch([Bottleneck(1)] * 2, [1])
