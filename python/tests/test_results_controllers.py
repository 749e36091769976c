# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tables of rate controllers in the simulator: their figures, and where they are simulated."""

import dataclasses
import math
import pathlib
import pickle
import signal

import pytest
import standin
from thalweg.results import lists
from thalweg.results.__main__ import main
from thalweg.results.controllers import document, plots, published, tables
from thalweg.sim import Learned, Scenario, canonical_controller, run
from thalweg.sweep import Cell, Contender, Store, workers

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
SCENARIOS = CHECKOUT / "scenarios/sim"
THREE = ("utilisation", "fairness", "queue-latency")
HEAD = 'title = "P"\nintroduction = "I"\n'


def table(title, more, published="many-to-one"):
    """A table of a list, which lies in another directory than the scenarios."""
    beside = f'published = "{published}"' if published else ""
    return f"""
[[table]]
kind = "controllers"
title = "{title}"
scenario = "{SCENARIOS}/many-to-one-{{size}}.toml"
{beside}
{more}
"""


class Bed:
    """A directory with a list, its page and its cache."""

    def __init__(self, folder):
        self.folder = folder

    def main(self, text, *words):
        (self.folder / "tables.toml").write_text(text)
        at = {"tables": "tables.toml", "out": "page.md", "cache": "cache"}
        given = [word for key, name in at.items() for word in (f"--{key}", str(self.folder / name))]
        return main([*given, "--jobs", "2", *words])

    def make(self, *tables):
        """The page of quick simulations, and its rows by title, size and controller."""
        assert self.main(HEAD + "".join(tables), "--duration", "0.004") == 0
        page = (self.folder / "page.md").read_text()
        rows, title = {}, ""
        for line in page.splitlines():
            title = line[3:] if line.startswith("## ") else title
            cells = line.replace("**", "").strip("| ").split(" | ")
            if cells[0].isdecimal():
                rows[title, int(cells[0]), cells[1]] = cells[2:]
        return page, rows


@pytest.fixture
def bed(tmp_path, monkeypatch):
    # Only a process of its own is to have another handler.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return Bed(tmp_path)


# The published side -----------------------------------------------------------------------------


def test_domination_is_the_papers():
    # Of the many-to-one table at 1024 flows DCQCN (100/50/13), HPCC (59/48/27), SWIFT (89/96/27)
    # and ADPG (90/70/15): only HPCC is worse than another (SWIFT) everywhere or alike.
    entries = [(100, 50, 13), (59, 48, 27), (89, 96, 27), (90, 70, 15), None]
    assert published.undominated(THREE, entries) == [True, False, True, True, False]
    # Within 5 % is alike: 97 and 100, and 9.6 and 10; then 93 and 100 are not.
    assert not published.dominates(THREE, (100, 90, 9.6), (97, 90, 10))
    assert published.dominates(THREE, (100, 90, 9.6), (93, 90, 10))
    # No recovery is worse than any; two such entries are alike.
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
            marks = tables.published_marks(table.rows)
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
    return {**dict.fromkeys([*names, "recovery_least_s", "dropped_percent"]), **columns}


def test_medians_and_ranges():
    rows = [
        row(utilisation_percent=u, fairness_percent=50.0, queue_mean_us=q, dropped_percent=d)
        for u, q, d in [(92.0, 1.0, 0.0), (90.0, 1.0, 0.0), (97.0, 3.0, 0.6)]
    ]
    entry = tables.entry(THREE, rows)
    # The worst run has the least utilisation, and the greatest queue.
    assert entry.spreads[0] == tables.SeedSpread(92, 90, 97, 2)
    assert entry.spreads[2] == tables.SeedSpread(1, 1, 3, 3)
    assert entry.loss_percent == pytest.approx(0.2) and entry.lossy
    [nobody] = tables.entry(("recovery",), [row(), row()]).spreads
    assert math.isnan(nobody.median) and math.isnan(nobody.bound)


def test_a_run_without_recovery_is_no_fast_one():
    keys = ("recovery", "dropped", "long-rate")
    fast = row(recovery_s=2e-6, recovery_least_s=2e-6, dropped_gbps=0.0, long_gbps=90.0)
    slow = row(recovery_s=1e-3, recovery_least_s=1e-3, dropped_gbps=0.0, long_gbps=90.0)
    # One of its interruptions ended without recovery.
    never = row(recovery_least_s=4e-3, dropped_gbps=0.0, long_gbps=90.0)
    entries = [tables.entry(keys, rows) for rows in ([slow, slow], [fast, never], [fast, fast])]
    first, second, _ = (one.spreads[0] for one in entries)
    assert first.median == pytest.approx(1e-3) and math.isnan(first.bound)
    assert math.isnan(second.median) and second.bound == pytest.approx(2.001e-3)
    lines = tuple(
        tables.Line(label, None, None, False, one)
        for label, one in zip("abc", entries, strict=True)
    )
    measured = tables.Measured("flows", 2, 1.0, 0.1, keys, (tables.Part(2, lines[:2]),), {})
    text = "\n".join(document.section(measured))
    assert "| 2 | a | **0.00100** | **0.00** | **90.0** |" in text
    assert "| 2 | b | > 0.00200 | 0.00 | 90.0 |" in text
    assert tables.robust(measured) == {"a": (None, True), "b": (None, False)}
    # The bound is bold in no line, whatever else that line is good for.
    alone = dataclasses.replace(measured, parts=(tables.Part(2, lines[1:2]),))
    assert "| 2 | b | > 0.00200 | **0.00** |" in "\n".join(document.section(alone))


def test_figures_as_readers_have_them():
    decimals = {key: statistic.decimals for key, statistic in published.STATISTICS.items()}
    assert decimals["utilisation"] == decimals["fairness"] == decimals["queue-latency"] == 1
    assert document.figure(tables.SeedSpread(93.04, 92.96, 93.04, 2), 1) == "93.0"
    assert document.figure(tables.SeedSpread(99.96, 98.1, 100, 7), 1) == "100.0 [98.1 … 100.0; #7]"
    # Recovery times differ by orders of magnitude.
    assert decimals["recovery"] is None
    found = document.figure(tables.SeedSpread(0.0123456, 8e-7, 0.05, 3), None)
    assert found == "0.0123 [8.0e-07 … 0.0500; #3]"
    assert document.figure(tables.SeedSpread(), 1) == "–"


def test_a_page_has_the_medians_of_its_simulations(bed):
    model = standin.file(bed.folder)
    words = 'sizes = [4]\nseeds = 2\nmodels = ["stand-*.safetensors"]\ncc = ["swift"]'
    passed = '[[table]]\nkind = "passed"\ntitle = "W"\nnote = "N"\npublished = ["many-to-one"]\n'
    page, rows = bed.make(passed, table("T (x)", words))
    scenario = Scenario.load(SCENARIOS / "many-to-one-4.toml")
    share = 0.004 / scenario.duration_s
    scenario = scenario.replace(duration_s=0.004, warmup_s=share * scenario.warmup_s)
    for label, cc in [
        ("stand-in", Learned(model, initial=0.001)),
        ("SWIFT", "swift"),
    ]:
        outcomes = [run(scenario, cc, seed) for seed in (1, 2)]
        median = sum(outcome.utilisation_percent for outcome in outcomes) / 2
        assert rows["T (x)", 4, label][0].split(" [")[0] == f"{median:.1f}"
    assert (
        "\n## T (x)\n\nOurs: 2 seeds, 0.004 s each, of which 0.002 s are not measured.\n\n| flows |"
        in page
    )
    # The stand-in holds four flows near a quarter of the line each.
    assert float(rows["T (x)", 4, "stand-in"][0].split()[0]) > 80
    assert "\n## W\n\nN\n\n| controller | T: published | ours |\n" in page
    assert "| SWIFT | ✗ | ✓ |" in page and "| stand-in | – | ✓ |" in page


def test_integers_and_targets_have_their_tables(bed):
    standin.file(bed.folder)
    of = 'models = ["stand-in.safetensors"]\nseeds = 1\nsizes = [2]\n'
    page, rows = bed.make(
        table("I", of + 'inferences = ["float", "int8"]', "int8"),
        table("T", of + f'targets = [1, 4]\nacross = "flows"\nfigures = {list(THREE)}', None),
    )
    assert rows["I", 2, "quantised"] == ["99.91", "100", "8.29", "–", "–", "–"]
    floats, integers = (rows["I", 2, f"stand-in {kind}"] for kind in ("float", "int8"))
    assert floats[:3] == integers[:3] == ["–"] * 3
    for one, other in zip(floats[3:], integers[3:]):
        assert float(one) == pytest.approx(float(other), rel=0.1)
    assert {key[2] for key in rows if key[0] == "T"} == {
        "stand-in, target 0.05",
        "stand-in, target 0.2",
    }
    # Four times the target: more waiting.
    low, high = (float(rows["T", 2, f"stand-in, target {at}"][2]) for at in ("0.05", "0.2"))
    assert high > 2 * low
    assert "| flows | controller | ours SU % | FR % | QL µs |\n" in page


def test_finished_simulations_are_not_repeated(bed, monkeypatch):
    of = table("T", 'sizes = [2]\nseeds = 2\ncc = ["swift"]')
    first = bed.make(of)

    def local(todo, jobs):
        assert not todo
        yield from ()

    monkeypatch.setattr(workers, "local", local)
    assert bed.make(of) == first
    # Another model by the same name is another contender.
    one = Contender("m", Learned(standin.file(bed.folder)))
    two = Contender("m", Learned(standin.file(bed.folder, gain=0.5)))
    scenario = Scenario.load(SCENARIOS / "many-to-one-2.toml")
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
    "more, message",
    [
        ('sizes = [3]\ncc = ["swift"]', "no scenario of 3; there are 2, 4, 8, 16"),
        ("", "T: nobody to judge"),
        ('models = ["absent*"]', "T: models: no file is called"),
        ('models = ["s.safetensors"]', "s.safetensors"),
        ('sizes = [2]\ncc = ["dqcqn"]', "no controller is called `dqcqn`"),
        ('cc = ["swift"]\nseeds = 0', "table[0].seeds: expected a number above 0, found 0"),
        ('figures = ["speed"]', "table[0].figures[0]: expected one of utilisation, "),
        ('inferences = ["int4"]', "table[0].inferences[0]: expected one of float, int8, tree"),
        ('elsewhere = ["TCP"]', "table[0].elsewhere[0]: expected one of DCQCN, HPCC, "),
        ('beside = [{ row = "TCP", ours = "swift" }]', "table[0].beside[0].row: expected one of "),
        (
            'sizes = [2]\ncc = ["swift"]\nbeside = [{ row = "ADPG", ours = "plus" }]',
            "T: beside: nobody is called 'plus'; there are swift",
        ),
    ],
)
def test_faults_are_one_line(bed, more, message, capfd):
    (bed.folder / "s.safetensors").write_text("no model")
    assert bed.main(HEAD + table("T", more), "--duration", "0.001") == 1
    [line] = [one for one in capfd.readouterr().err.splitlines() if one.startswith("error: ")]
    assert message in line
    assert not (bed.folder / "page.md").exists()


@pytest.mark.parametrize(
    "text, message",
    [
        (table("T", "", None), "table[0].across: missing; nothing is published"),
        (table("T", "").replace("{size}", "2"), "table[0].scenario: expected a path with {size}"),
        (table("T", "", "many"), "table[0].published: expected one of many-to-one, "),
        (
            '[[table]]\nkind = "passed"\ntitle = "W"\nnote = "N"\npublished = ["int8"]\n',
            "table[0].published[0]: expected one table of 'int8', found 0",
        ),
    ],
)
def test_a_fault_in_a_list_has_a_place(bed, text, message, capsys):
    assert bed.main(HEAD + text) == 1
    assert message in capsys.readouterr().err


def test_a_cluster_that_does_not_start_is_one_line(bed, capfd, monkeypatch):
    ray = pytest.importorskip("ray")
    addresses = []

    def init(address, **_):
        addresses.append(address)
        raise Exception("The current node timed out during startup")  # as Ray does

    monkeypatch.setattr(ray, "init", init)
    # --ray has precedence over the environment.
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:1")
    of = HEAD + table("T", 'sizes = [2]\nseeds = 1\ncc = ["swift"]')
    assert bed.main(of, "--ray", "local") == 1
    assert addresses == ["local"]
    assert capfd.readouterr().err.splitlines()[-1] == (
        "error: no Ray cluster at local: The current node timed out during startup"
    )


def test_pictures(bed):
    pytest.importorskip("matplotlib")
    standin.file(bed.folder)
    (bed.folder / "curves.csv").write_text("update,loss,su\n1,2.0,\n2,1.0,90\n")
    traces = f"""
[[table]]
kind = "traces"
title = "Over time"
picture = "a.svg"
model = "stand-in.safetensors"
row = [{{ condition = "2 to 1", scenario = "{SCENARIOS}/many-to-one-2.toml", duration_s = 1e-3, every_us = 50 }}]
"""
    curves = '[[table]]\nkind = "curves"\ntitle = "C"\npicture = "c.svg"\ncsv = "curves.csv"\n'
    page, _ = bed.make(traces, traces.replace("a.svg", "b.svg"), curves)
    assert page.endswith("\n## Over time\n\n![Over time](b.svg)\n\n## C\n\n![C](c.svg)\n")
    first, second, third = (
        (bed.folder / name).read_bytes() for name in ("a.svg", "b.svg", "c.svg")
    )
    assert first == second and b"2 to 1" in first
    assert len(third) > 1000
    file = bed.folder / "curves.csv"
    for content, words in [
        ("", "curves.csv:1: found nothing"),
        ("update,loss\n1,x\n", "curves.csv:2: "),
        ("update,loss\n", "curves.csv:2: found no rows"),
    ]:
        file.write_text(content)
        with pytest.raises(ValueError, match=words):
            plots.training(file)


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
    # A cell travels with its model: the file is not needed elsewhere.
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


def test_ours_stand_beside_the_rows_that_a_list_names():
    page = lists.Controllers(
        kind="controllers",
        title="T",
        published="many-to-one",
        scenario="many-to-one-{size}.toml",
        sizes=(8192,),
        cc=("swift", "proportional"),
        seeds=1,
        beside=(lists.Beside("ADPG", "proportional"),),
        elsewhere=("PPO", "Aurora"),
    )
    job = tables.Job(page, SCENARIOS)
    good = row(utilisation_percent=90.0, fairness_percent=90.0, queue_mean_us=9.0)
    measured = job.measured({cell.key: good for cell in job.cells()})
    lines = {line.label: line for line in measured.parts[0].lines}
    assert list(lines) == ["DCQCN", "HPCC", "SWIFT", "ADPG, proportional", "REINFORCE"]
    both = lines["ADPG, proportional"]
    assert both.published == (92, 29, 42) and [one.median for one in both.ours.spreads] == [
        90,
        90,
        9,
    ]
    # At 4096 flows DCQCN (95/65/12) dominates REINFORCE (53/45/22), also from another page.
    theirs = {}
    for elsewhere in [(), ("DCQCN",)]:
        page = dataclasses.replace(page, sizes=(4096,), elsewhere=elsewhere)
        job = tables.Job(page, SCENARIOS)
        [part] = job.measured({cell.key: good for cell in job.cells()}).parts
        good_lines, _ = tables.marked(measured, part)
        theirs[elsewhere] = dict(zip([line.label for line in part.lines], good_lines))
    assert "DCQCN" not in theirs[("DCQCN",)]
    assert not theirs[()]["REINFORCE"] and not theirs[("DCQCN",)]["REINFORCE"]
    # Table 1 has both sides of it in one row.
    assert tables.robust(measured)["ADPG, proportional"] == (True, True)


def test_lines_pair_ours_with_the_published():
    page = lists.Controllers(
        kind="controllers",
        title="T",
        published="many-to-one",
        scenario="many-to-one-{size}.toml",
        sizes=(8192,),
        cc=("swift", "fixed"),
        seeds=1,
    )
    job = tables.Job(page, SCENARIOS)
    [one, two] = job.cells()
    good = row(utilisation_percent=90.0, fairness_percent=90.0, queue_mean_us=9.0)
    measured = job.measured({one.key: good, two.key: dict(good, dropped_percent=5.0)})
    lines = {line.label: line for line in measured.parts[0].lines}
    # Published with loss, ours without.
    assert lines["SWIFT"].published_loss and lines["SWIFT"].ours.spreads[0].median == 90
    assert lines["fixed"].published is None and lines["fixed"].ours.lossy
    assert lines["ADPG"].published == (92, 29, 42) and lines["ADPG"].ours is None
    theirs, ours = tables.marked(measured, measured.parts[0])
    by_label = dict(zip(lines, zip(theirs, ours)))
    assert by_label["SWIFT"] == (False, True) and by_label["fixed"] == (False, False)
    text = "\n".join(document.section(measured))
    assert "| 8192 | fixed | – | – | – | loss 5.00 %; 90.0 | 90.0 | 9.0 |" in text
