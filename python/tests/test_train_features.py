"""Features: against values worked out by hand."""

import numpy as np
import pytest
from thalweg import fixed
from thalweg.features import FeatureSet, Observer, Signal, multiplier


def observe(observer, key, rtt, rate, base=10.0):
    key = np.asarray(key)
    n = len(key)
    return observer.observe(key, np.full(n, rtt), np.full(n, base), np.full(n, rate))[0]


def test_signal_and_error_by_hand():
    signal = Signal(target=0.5, offset=1.0, scale=2.0)
    # Inflation 2 at a quarter of the line rate: (2 - 1) * 0.5, which is the target.
    assert signal.value(2.0, 0.25) == pytest.approx(0.5)
    assert signal.error(0.5) == pytest.approx(0)
    # Below the offset nothing counts: 2 * (0.5 - 0) is at the limit.
    assert signal.value(0.9, 1.0) == 0
    assert signal.error(0.0) == pytest.approx(1.0)
    # 2 * (0.5 - 0.7) and, far above, the limit.
    assert signal.error(0.7) == pytest.approx(-0.4)
    assert signal.error(50.0) == -1


def test_flows_at_the_target_with_equal_inflation_have_equal_rates():
    signal = Signal(target=0.033, offset=1.4)
    for flows in (1, 2, 64, 8192):
        # The inflation at which a flow with 1 / N of the line is at the target.
        inflation = 1.4 + 0.033 * np.sqrt(flows)
        assert signal.error(signal.value(inflation, 1 / flows)) == pytest.approx(0, abs=1e-3)
        assert signal.error(signal.value(inflation, 1.5 / flows)) < -0.01
        assert signal.error(signal.value(inflation, 0.5 / flows)) > 0.01


def test_multiplier_is_symmetric_and_in_range():
    u = np.array([-1, -0.5, 0, 0.5, 1], np.float32)
    np.testing.assert_allclose(multiplier(u), [1 / 1.2, 1 / 1.1, 1, 1.1, 1.2], rtol=1e-6)
    np.testing.assert_allclose(multiplier(u) * multiplier(-u), 1, rtol=1e-6)


def test_history_is_oldest_first_and_starts_with_zeros():
    features = FeatureSet(signal=Signal(target=0.5, offset=1.0, scale=1.0))
    observer = Observer(features, keys=2)
    # Inflation 1.2 at full rate: error 0.5 - 0.2. Then 1.6: 0.5 - 0.6.
    np.testing.assert_allclose(observe(observer, [1], 12.0, 1.0), [[0, 0, 0, 0.3]], atol=1e-6)
    observer.acted(np.array([1]), np.array([0.7], np.float32))
    np.testing.assert_allclose(observe(observer, [1], 16.0, 1.0), [[0, 0.3, 0.7, -0.1]], atol=1e-6)
    # The other flow is not affected.
    np.testing.assert_allclose(observe(observer, [0], 16.0, 1.0), [[0, 0, 0, -0.1]], atol=1e-6)


def test_further_features_by_hand():
    names = ("log_rate", "queue", "error_change")
    features = FeatureSet(names, 1, Signal(target=0.5, offset=1.0, scale=0.5))
    observer = Observer(features, keys=1)
    # Rate 2^-4 of the line: -4 / 16. Queueing delay of 1 base RTT: 1 / 8. No earlier signal.
    np.testing.assert_allclose(
        observe(observer, [0], 20.0, 2.0**-4), [[-0.25, 0.125, 0]], atol=1e-6
    )
    # Waiting of 3: signal 0.75, which rose by 0.5, scaled by 0.5.
    np.testing.assert_allclose(
        observe(observer, [0], 40.0, 2.0**-4), [[-0.25, 0.375, -0.25]], atol=1e-6
    )
    # Two are limited; the signal fell by 0.75, to nearly 0.
    np.testing.assert_allclose(
        observe(observer, [0], 4000.0, 2.0**-40), [[-1, 1, 0.375]], atol=1e-3
    )


def test_a_lost_probe_by_hand():
    features = FeatureSet(
        ("action", "error", "log_rate", "queue", "error_change"),
        3,
        Signal(target=0.5, offset=1.0, scale=1.0),
    )
    observer = Observer(features, keys=2)
    key, base, rate = np.array([0]), np.full(1, 10.0), np.full(1, 2.0**-4)
    # Inflation 2, waiting of 1 base RTT: the signal is a quarter.
    observer.observe(key, np.full(1, 20.0), base, rate)
    observer.acted(key, np.array([0.5], np.float32))
    row, error, s = observer.observe(key, np.full(1, 11.0), base, rate, np.array([True]))
    assert error[0] == -1 and s[0] == np.inf
    observer.acted(key, np.array([-0.5], np.float32))
    # The signal falls to an eighth, from an unknown value.
    row, _, _ = observer.observe(key, np.full(1, 15.0), base, rate, np.array([False]))
    expected = [0, 0.25, -0.25, 0.125, 0, 0.5, -1, -0.25, 1, 0, -0.5, 0.375, -0.25, 0.0625, 0]
    np.testing.assert_allclose(row, [expected], atol=1e-6)


def test_features_are_those_of_the_integers():
    names, flows = ("action", "error", "log_rate", "queue", "error_change"), 50
    features = FeatureSet(names, 3, Signal(target=0.0625, offset=1.0, scale=2.0))
    listed = [(name, fixed.fixed(scale, 16)) for name, scale in zip(names, features.scales)]
    observer = Observer(features, flows)
    integers = fixed.Flows(listed, 3, fixed.fixed(0.0625, 24), 1 << 16, flows)
    chance, line, lost_in_all = np.random.default_rng(3), 100_000_000_000, 0
    for _ in range(40):
        key = np.flatnonzero(chance.random(flows) < 0.5)
        rtt_ns = chance.integers(12_000, 40_000, len(key))
        rate = np.exp(chance.uniform(np.log(1e6), np.log(line), len(key))).astype(np.int64)
        lost = chance.random(len(key)) < 0.3
        lost_in_all += lost.sum()
        base_ns = np.full(len(key), 12_000)
        row, _, _ = observer.observe(key, rtt_ns / 1e9, base_ns / 1e9, rate / line, lost)
        inputs = integers.observe(rtt_ns, base_ns, rate, np.full(len(key), line), key, lost)
        # A quantum of the features, and the rounding of an inflation in single precision.
        np.testing.assert_allclose(row, inputs / 32768, atol=1e-3)
        action = chance.integers(-32767, 32768, len(key))
        integers.action[key] = action
        observer.acted(key, (action / 32768).astype(np.float32))
    assert lost_in_all > 100


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FeatureSet(("speed",)), "unknown feature 'speed'"),
        (lambda: FeatureSet(("error", "error")), "twice"),
        (lambda: FeatureSet((), 1), "none named"),
        (lambda: FeatureSet(history=0), "history is 0"),
        (lambda: FeatureSet(history=9), "18 inputs; expected at most 16"),
        (lambda: Signal(target=0.0), "target is 0.0"),
        (lambda: Signal(offset=float("nan")), "offset is nan"),
        (lambda: Signal(scale=-1.0), "scale is -1.0"),
    ],
)
def test_bad_settings_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
