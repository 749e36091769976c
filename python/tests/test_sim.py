# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``thalweg.sim``: whole runs and batches."""

import dataclasses
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import standin
from sim_support import many_to_one
from thalweg import fixed, quantize
from thalweg.sim import Batch, Learned, Scenario, controllers, run


def flat(value):
    """All numbers of an outcome, by path."""
    if dataclasses.is_dataclass(value):
        return {
            f"{field.name}.{path}": number
            for field in dataclasses.fields(value)
            for path, number in flat(getattr(value, field.name)).items()
        }
    if isinstance(value, tuple):
        return {f"{n}.{path}": x for n, item in enumerate(value) for path, x in flat(item).items()}
    if isinstance(value, np.ndarray):
        return {"": (value.dtype.str, value.shape, value.tobytes())}
    return {"": value}


def drain(batch, policy):
    """Runs a batch to its end; the decisions it made."""
    seen = []
    while (decisions := batch.advance()) is not None:
        multiplier = policy(decisions)
        seen.append((decisions.key, decisions.time_ps, decisions.rtt_ps, decisions.rate_bps))
        batch.decide(multiplier)
    return [np.concatenate(column) for column in zip(*seen)]


# Whole runs ---------------------------------------------------------------------------------


def test_a_fixed_rate_arrives_in_full():
    # A quarter of 100 Gbit/s each, from two hosts: 25 Gbit/s a flow, half of the port, and
    # nothing waits longer than one packet of 1 KiB, 81.92 ns.
    outcome = run(many_to_one(2), "fixed:fraction=0.25")
    assert outcome.flow_gbps == pytest.approx([25, 25], rel=2e-3)
    assert outcome.utilisation_percent == pytest.approx(50, rel=2e-3)
    assert outcome.queue_latency.max_us <= 0.08192
    assert outcome.loss_percent == 0
    assert (outcome.flow_from == [1, 2]).all() and (outcome.flow_to == 0).all()


def test_a_run_in_which_nothing_arrived_is_neither_fair_nor_without_queue():
    # The first packet is still on its way to the switch.
    outcome = run(many_to_one(2, duration="1us", warmup="0s"), "fixed")
    assert outcome.utilisation_percent == 0 and (outcome.flow_gbps == 0).all()
    assert (outcome.fairness_percent, outcome.host_fairness_percent, outcome.jain) == (0, 0, 0)
    row = outcome.to_dict()
    queue = [name for name in row if name.startswith("queue_")]
    assert len(queue) == 6 and all(row[name] is None for name in queue)


def test_what_does_not_fit_is_lost():
    # Three times 50 Gbit/s through 100: a third is dropped, once the queue of 1 MiB is full
    # (after 8.4 Mbit / 50 Gbit/s = 0.17 ms).
    outcome = run(many_to_one(3, duration="6ms", warmup="2ms"), "fixed:fraction=0.5")
    assert outcome.utilisation_percent == pytest.approx(100, abs=0.1)
    assert outcome.dropped_gbps == pytest.approx(50, rel=0.01)
    assert outcome.loss_percent == pytest.approx(50, rel=0.01)
    assert outcome.dropped_percent == pytest.approx(100 / 3, rel=0.01)
    counts = outcome.counts
    assert counts.sent_packets == (
        counts.delivered_packets + counts.dropped_packets + counts.underway_packets
    )


def test_series_add_up_to_the_rates():
    outcome = run(many_to_one(4), "swift", seed=3, series_us=250)
    series = outcome.series
    assert series.interval_us == 250
    assert series.flow_gbps.shape == (4, 16)
    # The last 3 ms of 4 are measured.
    assert series.flow_gbps[:, 4:].mean(axis=1) == pytest.approx(outcome.flow_gbps, rel=1e-9)
    [queue] = series.queues
    assert queue.port == 0 and len(queue.at_us) == len(queue.bytes) > 0
    assert np.diff(queue.at_us) == pytest.approx(250)


def test_completions_are_arrays():
    # A packet of 1 KiB takes 2 x (81.92 + 1000) ns over two links when nothing waits; ten of
    # them back to back nine times 81.92 ns more.
    scenario = Scenario.from_text(
        """
        name = "two-files"
        duration = "1ms"
        topology = { kind = "star", hosts = 3 }
        link = { rate = "100gbit", delay = "1us" }
        workload = { kind = "flows" }
        [[flow]]
        from = 1
        to = 0
        size = "1kib"
        start = "100us"
        [[flow]]
        from = 2
        to = 0
        size = "10kib"
        start = "200us"
        """
    )
    outcome = run(scenario, "fixed")
    assert (outcome.completion_flow == [0, 1]).all()
    assert outcome.completion_start_us == pytest.approx([100, 200], abs=1e-9)
    assert outcome.completion_time_us == pytest.approx([2.16384, 2.90112], abs=1e-9)


@pytest.mark.parametrize("name", [name for name, _ in controllers()])
def test_same_seed_same_outcome(name):
    # cubic has only a window, which TCP's hosts alone keep.
    scenario = many_to_one(8, duration="2ms", sender="linux" if name == "cubic" else "nic")
    first, again = (flat(run(scenario, name, 5, series_us=500)) for _ in range(2))
    assert first == again
    assert first != flat(run(scenario, name, 6, series_us=500))


def test_outcomes_can_be_pickled():
    outcome = run(many_to_one(2), series_us=500)
    assert flat(pickle.loads(pickle.dumps(outcome))) == flat(outcome)


def test_the_lock_is_released_and_ctrl_c_stops_a_run():
    # A long run: five simulated minutes take half an hour.
    scenario = many_to_one(64).replace(duration_s=300)
    others = []

    def interrupt():
        # This thread runs only if the run does not hold the lock.
        others.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.2, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(scenario, "fixed")
    timer.join()
    assert others


# Scenarios ----------------------------------------------------------------------------------


def test_scenarios_say_what_they_are(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(many_to_one(8).text)
    scenario = Scenario.load(file)
    assert (scenario.name, scenario.flows, scenario.hosts) == ("8-to-1", 8, 9)
    assert scenario.line_rate_bps == 100_000_000_000
    assert (scenario.packet_bytes, scenario.min_rate_bps) == (1024, 1_000_000)
    shorter = scenario.replace(duration_s=0.002)
    assert (shorter.duration_s, shorter.warmup_s) == (0.002, 0.001)
    assert scenario.duration_s == 0.004
    restored = pickle.loads(pickle.dumps(shorter))
    assert flat(run(restored, seed=1)) == flat(run(shorter, seed=1))
    assert flat(run(str(file), seed=1)) == flat(run(scenario, seed=1))


def test_all_to_all_has_every_ordered_pair():
    text = many_to_one(4).text.replace(
        'kind = "many-to-one", flows = 4', 'kind = "all-to-all", flows_per_pair = 2'
    )
    # 5 hosts: 5 x 4 pairs.
    scenario = Scenario.from_text(text)
    assert scenario.flows == 40
    assert len(run(scenario, "fixed:fraction=0.01").flow_gbps) == 40


def test_a_fault_has_its_place(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text('name = "x"\nduration = "1 fortnight"\n')
    with pytest.raises(ValueError, match=r"bad\.toml:2:12: "):
        Scenario.load(file)
    with pytest.raises(ValueError, match=r"^<text>:1:8: .*name"):
        Scenario.from_text(many_to_one(2).text.strip().replace("2-to-1", "a b"))
    with pytest.raises(ValueError, match=r"^there:"):
        Scenario.from_text("", "there")
    with pytest.raises(FileNotFoundError) as missing:
        Scenario.load(tmp_path / "none.toml")
    assert missing.value.filename == str(tmp_path / "none.toml")


#: Slow links, so that 32 bits number the packets of twenty minutes.
LONG_SHORT = [
    "link.rate=10gbit",
    "workload.kind=long-short",
    "workload.burst=9kb",
    "workload.idle=1ms",
]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda s: run(s, "dqcqn"), "cc: no controller is called `dqcqn`; there are dcqcn"),
        (lambda s: run(s, "fixed:fraction=2"), "`fraction` is 2"),
        (lambda s: run(s, series_us=0), "series_us"),
        (lambda s: run(s, series_us=1e-6), "at most 100000000 samples"),
        (lambda s: run(s, series_us=float("nan")), "series_us"),
        (lambda s: s.replace(duration_s=0.001), "warmup: .* less than the duration of 1ms"),
        (lambda s: s.replace(duration_s=-1), "duration_s: expected a time"),
        (lambda s: s.replace(duration_s=600), "duration: .* could send 7324218750 packets"),
        (
            lambda s: s.replace(keys=["series=1us"]).replace(duration_s=60),
            "series: found 120000000 samples",
        ),
        (lambda s: s.replace(keys=LONG_SHORT, duration_s=1200), "duration: .* 120000000 bins"),
        (lambda s: Batch(s, []), "seeds: expected at least one"),
        (lambda s: Batch(s, [1], others="swft"), "cc: no controller is called `swft`"),
        (lambda s: Batch([s, s], [1]), "a seed for each of 2 scenarios, found 1"),
        (lambda s: Batch(s, [1], jobs=0), "jobs: expected at least 1"),
        (lambda s: Batch(s, [1], initial="fast"), "initial: .*'fast'"),
        (lambda s: Batch(s, [1], initial=0.0), "initial"),
    ],
)
def test_bad_values_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(many_to_one(2))


def test_bad_types_are_refused():
    with pytest.raises(TypeError, match="expected a Scenario or the path of its file, found int"):
        run(3)
    with pytest.raises(TypeError, match="cc: expected a name .* found int"):
        run(many_to_one(2), 3)
    with pytest.raises(TypeError, match="found float"):
        Batch(1.5, [1])
    with pytest.raises(TypeError, match=r"seeds: expected numbers .* such as range\(3\), found 3"):
        Batch(many_to_one(2), 3)


# Batches ------------------------------------------------------------------------------------


def proportional(offset, target, gain):
    """The simulator's ``proportional`` rule, for all pending decisions, in double precision."""

    def decide(d):
        share = d.rate_bps / d.line_rate_bps
        s = np.maximum(d.rtt_ps / d.base_rtt_ps - offset, 0) * np.sqrt(share)
        u = np.where(d.probe_lost, -1, np.clip(gain * (target - s), -1, 1))
        return np.where(u >= 0, 1 + 0.2 * u, 1 / (1 - 0.2 * u))

    return decide


@pytest.mark.parametrize("flows", [2, 100])
def test_a_policy_outside_is_the_same_as_inside(flows):
    scenario = many_to_one(flows, duration="2ms")
    inside = run(scenario, "proportional:offset=1.1,target=0.06,gain=8", seed=9)
    batch = Batch(scenario, [9])
    drain(batch, proportional(1.1, 0.06, 8.0))
    assert flat(batch.result(0)) == flat(inside)
    # The policy acts: without it, flows at the line rate lose packets.
    assert inside.counts.dropped_packets < run(scenario, "fixed", 9).counts.dropped_packets
    figures = batch.outcome(0)
    assert figures["su"] == inside.utilisation_percent
    assert figures["fr"] == inside.fairness_percent
    assert figures["ql_us"] == inside.queue_latency.mean_us
    assert figures["loss"] == inside.loss_percent


@pytest.mark.parametrize("initial", [1 / 32, 1.0])
@pytest.mark.parametrize("inference", ["float", "int8"])
def test_a_model_outside_is_the_same_as_inside(tmp_path, inference, initial):
    scenario, model = many_to_one(32), standin.model()
    options = f"inference={inference},initial_fraction={initial},overload=decide"
    inside = run(scenario, f"learned:model={standin.file(tmp_path)},{options}", seed=2)
    batch = Batch(scenario, [2], initial=initial)
    lost = []
    flows = fixed.Flows.of(model.features, model.history, model.target, model.offset, 32)

    def decide(d):
        rate, line = d.rate_bps.astype(np.int64), d.line_rate_bps.astype(np.int64)
        times = (d.rtt_ps + 500) // 1000, (d.base_rtt_ps + 500) // 1000
        inputs = flows.observe(*times, rate, line, d.key, d.probe_lost)
        lost.append(d.probe_lost)
        if inference == "int8":
            actions = fixed.infer_mlp(model.policy.quantised, inputs)
            flows.action[d.key] = actions
            return fixed.next_rate(rate, actions, np.ones_like(rate), line) / d.rate_bps
        u = quantize.infer_float(model.policy, inputs / 32768)
        flows.action[d.key] = np.clip(np.rint(u * 32768), -32767, 32767).astype(np.int64)
        return np.where(u >= 0, 1 + 0.2 * u, 1 / (1 - 0.2 * u))

    drain(batch, decide)
    outside = batch.result(0)
    # Integers are the same to the bit, and rates but for a division. In floating point the last
    # bits differ, then the times of decisions, and rates swing at other times.
    near = {"int8": 1e-3, "float": 0.1}[inference]
    assert outside.flow_gbps == pytest.approx(inside.flow_gbps, rel=near)
    assert outside.queue_latency.mean_us == pytest.approx(inside.queue_latency.mean_us, rel=1e-2)
    # Flows that begin at the line rate, 32 times the rate of the receiver's link, lose probes.
    assert np.concatenate(lost).any() == (initial == 1.0)
    # The model controls: rates differ from the first ones.
    assert inside.counts.decisions > 1000 and inside.utilisation_percent < 99.9


def test_models_can_be_pickled_and_need_no_file_then(tmp_path):
    file = standin.file(tmp_path)
    learned = Learned(file, "int8", 0.07, 0.1)
    assert (learned.name, learned.inference, learned.initial) == ("stand-in", "int8", 0.1)
    assert learned.target == pytest.approx(0.07, abs=2**-24)
    assert learned.content == file.read_bytes()
    scenario = many_to_one(8)
    inside = flat(run(scenario, learned, seed=2))
    text = f"learned:model={file},inference=int8,target=0.07,initial_fraction=0.1"
    assert flat(run(scenario, text, seed=2)) == inside
    data = pickle.dumps(learned)
    file.unlink()
    assert flat(run(scenario, pickle.loads(data), seed=2)) == inside


def test_models_that_cannot_be_used_are_refused(tmp_path):
    file = standin.file(tmp_path)
    for arguments, words in [
        (("tree",), "stand-in.safetensors: `inference` is tree; the file has float, int8"),
        (("int4",), 'inference: expected float, int8 or tree, found "int4"'),
        ((None, -1.0), "`target` is -1"),
        ((None, None, 2.0), "`initial_fraction` is 2"),
    ]:
        with pytest.raises(ValueError, match=words):
            Learned(file, *arguments)
    with pytest.raises(FileNotFoundError):
        Learned(tmp_path / "absent")
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match="stand-in.safetensors: header"):
        Learned(file)
    with pytest.raises(ValueError, match="learned: `model` is missing"):
        run(many_to_one(2), "learned")


def test_any_number_of_threads_gives_the_same():
    scenarios = [many_to_one(flows, duration="2ms") for flows in (2, 8, 33, 64)]
    results = []
    for jobs in (1, 2, 7):
        batch = Batch(scenarios, [3, 1, 4, 1], initial=0.25, jobs=jobs)
        # Not more threads than simulations.
        assert batch.jobs == min(jobs, 4)
        columns = drain(batch, proportional(1.0, 0.05, 10.0))
        results.append(
            [column.tobytes() for column in columns] + [flat(batch.result(n)) for n in range(4)]
        )
    assert results[0] == results[1] == results[2]


def test_simulations_of_a_batch_do_not_know_each_other():
    scenarios = [many_to_one(2), many_to_one(16)]
    together = Batch(scenarios, [1, 2])
    drain(together, proportional(1.0, 0.05, 10.0))
    for env, scenario in enumerate(scenarios):
        alone = Batch(scenario, [env + 1])
        drain(alone, proportional(1.0, 0.05, 10.0))
        assert flat(alone.result(0)) == flat(together.result(env))


def test_decisions_are_described():
    batch = Batch([many_to_one(2), many_to_one(16)], [1, 2], initial=0.02)
    assert (batch.envs, batch.flows, batch.decisions) == (2, 18, 0)
    last, total = {}, 0
    while (d := batch.advance()) is not None:
        n = len(d)
        total += n
        for name, kind in [
            ("env", np.int32),
            ("flow", np.int32),
            ("key", np.int32),
            ("time_s", np.float64),
            ("time_ps", np.int64),
            ("rtt_s", np.float32),
            ("rtt_ps", np.int64),
            ("sent_ps", np.int64),
            ("base_rtt_s", np.float32),
            ("base_rtt_ps", np.int64),
            ("rate", np.float32),
            ("rate_bps", np.float64),
            ("line_rate_bps", np.float64),
            ("acked_bytes", np.float32),
            ("marked_bytes", np.float32),
            ("lost_bytes", np.float32),
            ("probe_lost", np.bool_),
        ]:
            column = getattr(d, name)
            assert column.shape == (n,) and column.dtype == kind, name
        assert d.key is d.key
        assert len(set(d.key.tolist())) == n
        assert (d.key == d.flow + np.where(d.env == 0, 0, 2)).all()
        assert (d.base_rtt_ps == 12_000_000).all()
        # 2 % each of at most 16 flows: no queue but coinciding packets, each 81.92 ns.
        assert (d.rtt_ps >= d.base_rtt_ps).all()
        assert (d.rtt_ps <= d.base_rtt_ps + 16 * 81_920).all()
        assert d.rtt_s == pytest.approx(d.rtt_ps * 1e-12, rel=1e-6)
        assert d.time_s == pytest.approx(d.time_ps * 1e-12)
        assert d.rate == pytest.approx(0.02)
        # The answer takes effect a reaction time of 1 us after the probe came back.
        assert (d.time_ps == d.sent_ps + d.rtt_ps + 1_000_000).all()
        for key, at, acked in zip(d.key.tolist(), d.time_ps.tolist(), d.acked_bytes.tolist()):
            if key in last:
                # 2 Gbit/s since then, up to a packet at each end.
                expected = 2e9 / 8 * (at - last[key]) * 1e-12
                assert abs(acked - expected) <= 2 * 1024
            last[key] = at
        assert not d.lost_bytes.any() and not d.marked_bytes.any() and not d.probe_lost.any()
    assert batch.decisions == total > 18


def test_lost_probes_are_decisions():
    # Twice the rate of the receiver's link: half is lost, and a flow without any answer decides all
    # the same.
    batch = Batch(many_to_one(2, duration="10ms"), [1])
    lost = 0
    while (d := batch.advance()) is not None:
        for at in np.flatnonzero(d.probe_lost):
            lost += 1
            # A report comes back after a round trip at the earliest, with its own packet's loss.
            assert d.rtt_ps[at] >= d.base_rtt_ps[at]
            assert d.time_ps[at] == d.sent_ps[at] + d.rtt_ps[at] + 1_000_000
            assert (d.acked_bytes[at], d.lost_bytes[at]) == (0, 1024)
    # A round trip with the queue of 1 MiB full takes 96 us, of 10 ms; the queue is full after
    # 84 us, and two flows decide.
    assert lost > 20
    assert batch.outcome(0)["loss"] > 50


def test_batch_in_which_nothing_arrived_has_the_worst_queue():
    # The first packet is still on its way to the switch.
    batch = Batch(many_to_one(2, duration="1us", warmup="0s"), [1])
    assert batch.advance() is None
    figures = batch.outcome(0)
    assert (figures["su"], figures["ql_us"], figures["ql_p99_us"]) == (0, np.inf, np.inf)


def test_unanswered_decisions_keep_the_rate():
    scenario = many_to_one(4)
    ones, left = Batch(scenario, [1], initial=0.2), Batch(scenario, [1], initial=0.2)
    drain(ones, lambda d: np.ones(len(d), np.float32))
    while left.advance() is not None:
        pass
    assert flat(ones.result(0)) == flat(left.result(0))


def test_rates_can_be_set():
    batch = Batch(many_to_one(4), [1], initial=0.01)
    shares = np.array([0.05, 0.1, 0.15, 0.2])
    while (d := batch.advance()) is not None:
        batch.decide_rate(shares[d.flow])
    assert batch.result(0).flow_gbps == pytest.approx([5, 10, 15, 20], rel=0.01)


def test_rates_stay_within_their_limits():
    for factor, share in [(100.0, 1.0), (1e-9, 1e-5)]:
        # At 1 Mbit/s a packet takes 8.2 ms.
        batch = Batch(many_to_one(2, duration="40ms"), [1], initial=0.5)
        first, later = batch.advance(), []
        batch.decide(np.full(len(first), factor))
        while (d := batch.advance()) is not None:
            later.extend(d.rate[np.isin(d.key, first.key)])
        # Then they are exact.
        assert later and later == pytest.approx([share] * len(later), rel=1e-6)


def test_single_and_double_precision_answers():
    scenario = many_to_one(4)
    batches = [Batch(scenario, [1]) for _ in range(3)]
    half = np.float32(0.9)
    drain(batches[0], lambda d: np.full(len(d), half))
    drain(batches[1], lambda d: np.full(len(d), float(half)))
    # Not contiguous in memory, either.
    drain(batches[2], lambda d: np.full(2 * len(d), half)[::2])
    outcomes = [flat(batch.result(0)) for batch in batches]
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_bad_answers_are_refused_and_change_nothing():
    batch = Batch(many_to_one(4), [1])
    with pytest.raises(ValueError, match="0 decisions wait"):
        batch.decide([1.0])
    n = len(batch.advance())
    with pytest.raises(ValueError, match=f"{n} decisions wait for an answer: .* found {n + 1}"):
        batch.decide(np.ones(n + 1))
    for bad in (0.0, -1.0, np.nan, np.inf):
        answers = np.ones(n)
        answers[-1] = bad
        with pytest.raises(ValueError, match=rf"multiplier\[{n - 1}\]: expected a positive"):
            batch.decide(answers)
    with pytest.raises(TypeError, match="expected a vector of numbers"):
        batch.decide("fast")
    with pytest.raises(RuntimeError, match="simulation 0 has not ended"):
        batch.outcome(0)
    with pytest.raises(IndexError, match="there is no number 1"):
        batch.outcome(1)
    while batch.advance() is not None:
        pass
    untouched = Batch(many_to_one(4), [1])
    while untouched.advance() is not None:
        pass
    assert flat(batch.result(0)) == flat(untouched.result(0))
    assert batch.advance() is None
