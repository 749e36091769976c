# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``thalweg.evaluate``: tables, what stands in them, and where they are made."""

import dataclasses
import json
import math
import pathlib
import pickle

import pytest
import standin
from thalweg.evaluate.__main__ import main
from thalweg.results.controllers import document, plots, published, tables
from thalweg.sim import Learned, Scenario, canonical_controller, run
from thalweg.sweep import Cell, Contender, Store, workers

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
THREE = ("utilisation", "fairness", "queue-latency")


@pytest.fixture
def call(tmp_path):
    """Runs the command on quick simulations; the page and the JSON."""

    def call(*words):
        out, figures = tmp_path / "page.md", tmp_path / "page.json"
        code = main(
            [
                *words,
                *["--checkout", str(CHECKOUT), "--duration", "0.004", "--jobs", "2"],
                *["--cache", str(tmp_path / "cells.jsonl")],
                *["--out", str(out), "--json", str(figures)],
            ]
        )
        assert code == 0
        return out.read_text(), json.loads(figures.read_text())

    return call


# The published side -----------------------------------------------------------------------------


def test_domination_is_the_papers():
    # Of the many-to-one table at 1024 flows DCQCN (100/50/13), HPCC (59/48/27), SWIFT (89/96/27)
    # and ADPG (90/70/15): only HPCC is worse than another (SWIFT) everywhere or alike.
    entries = [(100, 50, 13), (59, 48, 27), (89, 96, 27), (90, 70, 15), None]
    assert published.undominated(THREE, entries) == [True, False, True, True, False]
    # Within 5 % is alike: 97 and 100, and 9.6 and 10; then 93 and 100 are not.
    assert not published.dominates(THREE, (100, 90, 9.6), (97, 90, 10))
    assert published.dominates(THREE, (100, 90, 9.6), (93, 90, 10))
    # Recovery that never was is worse than any; two such are alike.
    keys = ("recovery", "dropped", "long-rate")
    assert published.dominates(keys, (1e-3, 0, 60), (math.inf, 0, 60))
    assert not published.dominates(keys, (math.inf, 0, 60), (math.inf, 0, 60))


def test_the_published_marks_follow_from_the_figures():
    # Table 1 of the paper.
    wanted = {
        "many-to-one": {"DCQCN": True, "HPCC": False, "SWIFT": False, "ADPG": True, "PPO": False},
        "all-to-all": {"DCQCN": True, "HPCC": True, "SWIFT": True, "ADPG": True},
        "long-short": {"DCQCN": False, "HPCC": True, "SWIFT": True, "ADPG": True},
    }
    for name, table in published.load().items():
        if name in wanted:
            marks = tables.published_marks(table)
            assert {label: marks[label] for label in wanted[name]} == wanted[name]


def test_every_published_entry_has_its_figures():
    sizes = {"many-to-one": [128, 1024, 4096, 8192], "all-to-all": [4, 8]}
    sizes["long-short"] = [2, 128, 1024, 2048]
    for name, table in published.load().items():
        assert table.sizes == sizes.get(name, table.sizes)
        for row in table.rows:
            found = [figures for figures in row.entries.values() if figures is not None]
            assert all(len(figures) == len(table.statistics) for figures in found)
            assert row.cc is None or canonical_controller(row.cc) == row.cc


# Ours -------------------------------------------------------------------------------------------


def row(**columns):
    names = [statistic.column for statistic in published.STATISTICS.values()]
    return {**dict.fromkeys([*names, "dropped_percent"]), **columns}


def test_means_and_deviations():
    rows = [
        row(utilisation_percent=u, fairness_percent=50.0, queue_mean_us=1.0, dropped_percent=d)
        for u, d in [(90.0, 0.0), (92.0, 0.0), (97.0, 0.6)]
    ]
    entry = tables.entry(THREE, rows)
    # (90 + 92 + 97) / 3; squares of -3, -1, 4 over two degrees of freedom: sqrt(13).
    assert entry.mean == pytest.approx((93, 50, 1))
    assert entry.deviation == pytest.approx((math.sqrt(13), 0, 0))
    assert entry.loss_percent == pytest.approx(0.2) and entry.lossy
    nobody = tables.entry(("recovery",), [row(), row()])
    assert math.isnan(nobody.mean[0])
    one = tables.entry(("recovery",), [row(), row(recovery_s=2e-3)])
    assert one.mean == (2e-3,) and math.isnan(one.deviation[0])


def test_figures_as_readers_have_them():
    decimals = {key: statistic.decimals for key, statistic in published.STATISTICS.items()}
    assert decimals["utilisation"] == decimals["fairness"] == decimals["queue-latency"] == 1
    assert document.figure(93.04, math.nan, 1) == "93.0"
    assert document.figure(99.96, 0.449, 1) == "100.0 ± 0.4"
    # What no reader could see is not there.
    assert document.figure(100.0, 3.7e-6, 1) == "100.0 ± 0.0"
    assert document.figure(0.0473, 0.0012, 1) == "0.0 ± 0.0"
    # Recovery times differ by orders of magnitude.
    assert decimals["recovery"] is None
    assert document.figure(0.0123456, 0.001, None) == "0.0123 ± 0.00100"
    assert document.figure(8e-7, 0.0, None) == "8.0e-07 ± 0"
    assert document.figure(math.nan, math.nan, 1) == "–"


def test_the_command_writes_what_was_simulated(call, tmp_path):
    model = standin.file(tmp_path)
    words = ["--sizes", "4", "--seeds", "2", "--model", str(model), "--cc", "swift"]
    page, [table] = call("many-to-one", *words)
    entries = {entry["controller"]: entry for entry in table["entries"]}
    scenario = Scenario.load(CHECKOUT / "scenarios/sim/many-to-one-4.toml")
    share = 0.004 / scenario.duration_s
    scenario = scenario.replace(duration_s=0.004, warmup_s=share * scenario.warmup_s)
    for label, cc in [
        ("stand-in", Learned(model, initial=0.001)),
        ("SWIFT", "swift"),
    ]:
        outcomes = [run(scenario, cc, seed) for seed in (1, 2)]
        mean = sum(outcome.utilisation_percent for outcome in outcomes) / 2
        assert entries[label]["mean"][0] == pytest.approx(mean)
        assert entries[label]["runs"] == 2
        assert f"| 4 | {label} |" in page
    # The stand-in holds four flows near a quarter of the line each.
    assert entries["stand-in"]["mean"][0] > 80 and entries["stand-in"]["loss_percent"] == 0


def test_integers_and_targets_have_their_tables(call, tmp_path):
    model = standin.file(tmp_path)
    page, [int8, target] = call(
        "int8", "target", "--sizes", "2", "--seeds", "1", "--targets", "1,4", "--model", str(model)
    )
    ours = {entry["controller"]: entry["mean"] for entry in int8["entries"] if entry["mean"]}
    assert set(ours) == {"stand-in float", "stand-in int8"}
    assert ours["stand-in int8"] == pytest.approx(ours["stand-in float"], rel=0.1)
    assert "| 2 | quantised | 99.91 |" in page.replace("**", "")
    low, high = [entry["mean"] for entry in target["entries"]]
    # Four times the target: more waiting.
    assert high[2] > 2 * low[2]


def test_what_was_done_is_not_done_again(call, tmp_path, monkeypatch):
    words = ["many-to-one", "--sizes", "2", "--seeds", "2", "--cc", "swift"]
    first = call(*words)

    def local(todo, jobs):
        assert not todo
        yield from ()

    monkeypatch.setattr(workers, "local", local)
    assert call(*words)[1] == first[1]
    # Another model by the same name is another contender.
    one = Contender("m", Learned(standin.file(tmp_path)))
    two = Contender("m", Learned(standin.file(tmp_path, gain=0.5)))
    scenario = Scenario.load(CHECKOUT / "scenarios/sim/many-to-one-2.toml")
    assert Cell(scenario, one, 1).key != Cell(scenario, two, 1).key
    assert Cell(scenario, one, 1).key == pickle.loads(pickle.dumps(Cell(scenario, one, 1))).key


def test_a_line_cut_short_is_done_again(tmp_path):
    scenario = Scenario.load(CHECKOUT / "scenarios/sim/many-to-one-2.toml")
    first, second = (Cell(scenario, Contender("swift", "swift"), seed) for seed in (1, 2))
    file = tmp_path / "cells.jsonl"
    with Store(file).opened() as store:
        store.add(first, {"a": 1.0})
        store.add(second, {"a": 2.0})
        with pytest.raises(BlockingIOError, match="another program"), Store(file).opened():
            pass
    file.write_text(file.read_text().rstrip("\n")[:-5])
    with Store(file).opened() as store:
        assert store.rows == {first.key: {"a": 1.0}} and store.missing([first, second]) == [second]
        store.add(second, {"a": 3.0})
    with Store(file).opened() as store:
        assert store.rows[second.key] == {"a": 3.0}


@pytest.mark.parametrize(
    "words, message",
    [
        (["many-to-one", "--sizes", "3", "--cc", "swift"], "no scenario of 3; there are 2, 4, 16"),
        (["int8"], "int8: this table is of models"),
        (["many-to-one", "--cc", "none"], "nobody to judge"),
        (["many-to-one", "--model", "absent.safetensors"], "absent.safetensors"),
        (["many-to-one", "--sizes", "2", "--cc", "dqcqn"], "no controller is called `dqcqn`"),
    ],
)
def test_faults_are_one_line(words, message, tmp_path, capfd):
    common = ["--checkout", str(CHECKOUT), "--out", str(tmp_path / "page.md")]
    code = main([*words, *common, "--duration", "0.001", "--cache", str(tmp_path / "cells.jsonl")])
    assert code == 1
    [line] = [one for one in capfd.readouterr().err.splitlines() if one.startswith("error: ")]
    assert message in line
    assert not (tmp_path / "page.md").exists()


def test_a_cluster_that_does_not_start_is_one_line(tmp_path, capfd, monkeypatch):
    ray = pytest.importorskip("ray")
    addresses = []

    def init(address, **_):
        addresses.append(address)
        raise Exception("The current node timed out during startup")  # as Ray does

    monkeypatch.setattr(ray, "init", init)
    # What is asked for counts, not where other clusters are.
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:1")
    words = ["many-to-one", "--sizes", "2", "--cc", "swift", "--seeds", "1", "--ray", "local"]
    common = ["--checkout", str(CHECKOUT), "--out", str(tmp_path / "page.md")]
    assert main([*words, *common, "--cache", str(tmp_path / "cells.jsonl")]) == 1
    assert addresses == ["local"]
    assert capfd.readouterr().err.splitlines()[-1] == (
        "error: no Ray cluster at local: The current node timed out during startup"
    )


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    scenario = Scenario.load(CHECKOUT / "scenarios/sim/many-to-one-2.toml")
    outcome = run(scenario.replace(duration_s=1e-3, warmup_s=0.0), "swift", 1, 50.0)
    plots.traces([("2 to 1", outcome)], tmp_path / "a.svg")
    plots.traces([("2 to 1", outcome)], tmp_path / "b.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    curves = tmp_path / "curves.csv"
    curves.write_text("update,loss,su\n1,2.0,\n2,1.0,90\n")
    plots.training(curves, tmp_path / "c.svg")
    assert (tmp_path / "c.svg").stat().st_size > 1000
    for content, words in [
        ("", "curves.csv:1: found nothing"),
        ("update,loss\n1,x\n", "curves.csv:2: "),
        ("update,loss\n", "curves.csv:2: found no rows"),
    ]:
        curves.write_text(content)
        with pytest.raises(ValueError, match=words):
            plots.training(curves, tmp_path / "d.svg")


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same(tmp_path):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    model = Learned(standin.file(tmp_path), "int8", None, 0.01)
    scenario = Scenario.load(CHECKOUT / "scenarios/sim/many-to-one-4.toml")
    scenario = scenario.replace(duration_s=2e-3, warmup_s=0.0)
    todo = [
        Cell(scenario, contender, seed)
        for contender in (Contender("model", model), Contender("swift", "swift"))
        for seed in (1, 2)
    ]
    # What travels needs no file where it arrives.
    (tmp_path / "stand-in.safetensors").unlink()
    here = {cell.key: result for cell, result in workers.local(todo, 2)}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": f"{CHECKOUT}/python:{CHECKOUT}/python/tests"}},
        )
        there = {cell.key: result for cell, result in workers.ray(todo, None)}
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert len(here) == 4 and there == here


def test_lines_pair_ours_with_the_published(tmp_path):
    table = published.load()["many-to-one"]
    job = tables.Job(
        "many-to-one",
        table,
        [Contender("swift", "swift"), Contender("mine", "fixed")],
        [1],
        CHECKOUT / "scenarios/sim",
        [8192],
    )
    [one, two] = job.cells()
    good = row(utilisation_percent=90.0, fairness_percent=90.0, queue_mean_us=9.0)
    measured = job.measured({one.key: good, two.key: dict(good, dropped_percent=5.0)})
    lines = {line.label: line for line in measured.parts[0].lines}
    # Published with loss, ours without.
    assert lines["SWIFT"].published_loss and lines["SWIFT"].ours.mean[0] == 90
    assert lines["mine"].published is None and lines["mine"].ours.lossy
    assert lines["ADPG"].published == (92, 29, 42) and lines["ADPG"].ours is None
    theirs, ours = tables.marked(measured, measured.parts[0])
    by_label = dict(zip(lines, zip(theirs, ours)))
    assert by_label["SWIFT"] == (False, True) and by_label["mine"] == (False, False)
    text = document.section(dataclasses.replace(measured, heading="H"))
    assert "| 8192 | mine | – | – | – | loss 5.00 %; 90.0 | 90.0 | 9.0 |" in text
