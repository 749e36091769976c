# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m thalweg.sweep``."""

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sim_support import many_to_one
from thalweg import _native
from thalweg.progress import words
from thalweg.sim import Learned, run, simulator
from thalweg.sweep import Cell, Contender, Plan, Store, SweepError, workers
from thalweg.sweep.__main__ import main

parquet = pytest.importorskip("pyarrow.parquet")

SWEEP = """
scenarios = ["*-to-1.toml"]
controllers = ["swift", "fixed:fraction=0.5"]
seeds = [3, 1]
"""


@pytest.fixture
def sweep(tmp_path):
    for flows in (2, 3):
        (tmp_path / f"{flows}-to-1.toml").write_text(many_to_one(flows, duration="2ms").text)
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP)
    return file


def command(sweep, out, *more):
    return [sys.executable, "-m", "thalweg.sweep", str(sweep), "--out", str(out), *more]


def lines(out):
    """Of the finished simulations."""
    return [line for line in (out / "cells.jsonl").read_text().splitlines() if line]


def environment():
    """A process that finds the package wherever this one did."""
    path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def test_results_are_those_of_single_runs(sweep, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([str(sweep), "--out", str(out), "--jobs", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(out / "results.parquet")
    assert "8 simulations, 0 of them done before" in captured.err
    assert captured.err.count(" left\n") == 8
    rows = parquet.read_table(out / "results.parquet").to_pylist()
    order = [
        (flows, controller, seed)
        for flows in (2, 3)
        for controller in ("swift", "fixed:fraction=0.5")
        for seed in (3, 1)
    ]
    assert [(row["flows"], row["controller"], row["seed"]) for row in rows] == order
    for row, (flows, controller, seed) in zip(rows, order):
        outcome = run(many_to_one(flows, duration="2ms"), controller, seed)
        assert row["scenario"] == f"{flows}-to-1"
        assert row["utilisation_percent"] == outcome.utilisation_percent
        assert row["queue_p99_us"] == outcome.queue_latency.p99_us
        assert row["loss_percent"] == outcome.loss_percent
        assert row["events"] == outcome.counts.events
        assert row["recovery_s"] is None and row["completion_mean_us"] is None


def test_only_what_is_missing_is_done(sweep, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([str(sweep), "--out", str(out), "--jobs", "1"]) == 0
    first = (out / "results.parquet").read_bytes()
    (out / "cells.jsonl").write_text("\n".join(lines(out)[1:]))
    capsys.readouterr()
    assert main([str(sweep), "--out", str(out), "--jobs", "1"]) == 0
    assert "8 simulations, 7 of them done before" in capsys.readouterr().err
    assert (out / "results.parquet").read_bytes() == first
    # Another duration of one scenario: its four simulations are new.
    file = tmp_path / "2-to-1.toml"
    file.write_text(file.read_text().replace('"2ms"', '"3ms"'))
    assert main([str(sweep), "--out", str(out), "--jobs", "1"]) == 0
    assert "8 simulations, 4 of them done before" in capsys.readouterr().err
    durations = parquet.read_table(out / "results.parquet")["duration_s"].to_pylist()
    assert durations == pytest.approx([0.003] * 4 + [0.002] * 4)


MODELS = Path(__file__).parents[2] / "models"
MODEL = "learned:model=nets/net.safetensors,initial_fraction=0.5"


@pytest.fixture
def models(sweep, tmp_path):
    """A sweep with a model, whose path is relative to it."""
    file = tmp_path / "nets/net.safetensors"
    file.parent.mkdir()
    file.write_bytes((MODELS / "adpg-strict.safetensors").read_bytes())
    sweep.write_text(SWEEP.replace("fixed:fraction=0.5", MODEL))
    return file


def test_models_take_part(sweep, models, tmp_path, monkeypatch):
    # Paths are relative to the sweep's directory, not the current one.
    monkeypatch.chdir(tmp_path / "nets")
    out = tmp_path / "out"
    assert main([str(sweep), "--out", str(out), "--jobs", "2"]) == 0
    rows = parquet.read_table(out / "results.parquet").to_pylist()
    assert [row["controller"] for row in rows] == ["swift", "swift", MODEL, MODEL] * 2
    for row in rows:
        cc = Learned(models, initial=0.5) if row["controller"] == MODEL else row["controller"]
        outcome = run(many_to_one(row["flows"], duration="2ms"), cc, row["seed"])
        assert row["utilisation_percent"] == outcome.utilisation_percent
        assert row["queue_mean_us"] == outcome.queue_latency.mean_us


def test_a_model_travels_with_its_cells(sweep, models):
    cell = Plan.load(sweep).cells[2]
    there = pickle.dumps(cell)
    models.unlink()
    assert pickle.loads(there).run()["decisions"] > 0


def test_another_model_is_another_simulation(sweep, models, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([str(sweep), "--out", str(out), "--jobs", "2"]) == 0
    first = parquet.read_table(out / "results.parquet").to_pylist()
    # The same path, another network: simulations without it stay.
    models.write_bytes((MODELS / "adpg-loose.safetensors").read_bytes())
    capsys.readouterr()
    assert main([str(sweep), "--out", str(out), "--jobs", "2"]) == 0
    assert "8 simulations, 4 of them done before" in capsys.readouterr().err
    for row, before in zip(parquet.read_table(out / "results.parquet").to_pylist(), first):
        assert (row == before) == (row["controller"] == "swift")


def test_equal_keys_are_equal_simulations():
    """A model, and the same with the target that it has anyway, in the steps of integers."""
    plain = Learned(MODELS / "adpg-strict.safetensors")
    told = Learned(MODELS / "adpg-strict.safetensors", target=plain.target)
    other = Learned(MODELS / "adpg-strict.safetensors", target=2 * plain.target)
    scenario = many_to_one(8, duration="20ms")
    cells = [Cell(scenario, Contender("m", one), 1) for one in (plain, told, other)]
    assert cells[0].key == cells[1].key != cells[2].key
    first, second, third = (cell.run() for cell in cells)
    assert first == second != third


def test_another_simulator_begins_anew(sweep, tmp_path, capsys, monkeypatch):
    assert simulator() == hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()
    out = tmp_path / "out"
    assert main([str(sweep), "--out", str(out), "--jobs", "2"]) == 0
    here, store = Plan.load(sweep).cells, Store(out / "cells.jsonl")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("thalweg.sweep.cells.simulator", lambda: "another")
        there = Plan.load(sweep).cells
        with store.opened():
            assert store.missing(there) == list(there)
        # A machine with another build takes no part.
        with pytest.raises(RuntimeError, match="is not that of the machine that began"):
            here[0].run()
    assert store.missing(here) == []
    capsys.readouterr()
    assert main([str(sweep), "--out", str(out)]) == 0
    assert "8 simulations, 8 of them done before" in capsys.readouterr().err


def test_a_killed_sweep_goes_on(sweep, tmp_path):
    # Long enough for a kill in the middle.
    sweep.write_text(SWEEP.replace("[3, 1]", "6") + "duration_s = 0.05\nwarmup_s = 0.01\n")
    out, whole = tmp_path / "out", tmp_path / "whole"
    process = subprocess.Popen(
        command(sweep, out, "--jobs", "2"), env=environment(), stderr=subprocess.PIPE, text=True
    )
    said = [process.stderr.readline() for _ in range(4)]
    assert said[-1].startswith("[3/24]"), said
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stderr.close()
    done = len(lines(out))
    assert 3 <= done < 24
    assert not (out / "results.parquet").exists()
    # No worker goes on.
    deadline = time.monotonic() + 30
    while any(alive(child) for child in children):
        assert time.monotonic() < deadline, "workers have outlived the sweep"
        time.sleep(0.05)
    again = subprocess.run(
        command(sweep, out, "--jobs", "2"), env=environment(), capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert f"24 simulations, {done} of them done before" in again.stderr
    assert main([str(sweep), "--out", str(whole)]) == 0
    assert (out / "results.parquet").read_bytes() == (whole / "results.parquet").read_bytes()


def alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_ctrl_c_leaves_what_is_done(sweep, tmp_path):
    sweep.write_text(SWEEP.replace("[3, 1]", "50") + "duration_s = 0.05\nwarmup_s = 0.01\n")
    process = subprocess.Popen(
        command(sweep, tmp_path / "out"), env=environment(), stderr=subprocess.PIPE, text=True
    )
    said = [process.stderr.readline() for _ in range(2)]
    assert said[-1].startswith("[1/200]"), said
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rest.endswith("interrupted; the same command goes on from here\n")
    assert lines(tmp_path / "out")


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same(sweep, models, tmp_path):
    pytest.importorskip("ray")
    here, there = tmp_path / "here", tmp_path / "there"
    assert main([str(sweep), "--out", str(here)]) == 0
    # A cluster in a process of its own, so that nothing is left running here.
    clustered = subprocess.run(
        command(sweep, there, "--ray", "local"),
        env=environment() | {"RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert clustered.returncode == 0, clustered.stderr
    assert "[8/8]" in clustered.stderr
    assert (there / "results.parquet").read_bytes() == (here / "results.parquet").read_bytes()


def test_one_sweep_at_a_time(sweep, tmp_path, capsys):
    out = tmp_path / "out"
    with Store(out / "cells.jsonl").opened():
        assert main([str(sweep), "--out", str(out)]) == 2
    assert "another program is writing here" in capsys.readouterr().err
    assert not lines(out)


def test_a_failure_is_told_and_the_others_are_kept(sweep, tmp_path, capsys, monkeypatch):
    first, second, *rest = Plan.load(sweep).cells

    def local(todo, jobs):
        yield first, MemoryError("none left")
        yield second, second.run()

    monkeypatch.setattr(workers, "local", local)
    out = tmp_path / "out"
    assert main([str(sweep), "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert f"{first}: failed: none left" in said and "error: 1 simulations failed" in said
    with Store(out / "cells.jsonl").opened() as store:
        assert store.missing([first, second, *rest]) == [first, *rest]
    assert not (out / "results.parquet").exists()


@pytest.mark.parametrize(
    "text, words",
    [
        ("scenarios = ]", r"sweep\.toml: .*line 1, column 13"),
        (SWEEP + "speed = 3", "sweep.toml: speed: there is no such key; expected controllers,"),
        (SWEEP.replace("scenarios", "scenario"), "sweep.toml: scenario: there is no such key"),
        ('controllers = ["swift"]', "sweep.toml: scenarios: missing"),
        (SWEEP.replace("*-to-1", "none"), r"scenarios\[0\]: no file is called 'none.toml'"),
        (
            SWEEP.replace("*-to-1.toml", "sweep.toml"),
            r"scenarios: [\s\S]*sweep\.toml:\d:1: found the unknown key",
        ),
        (SWEEP.replace('"swift"', '"swoft"'), r"controllers\[0\]: no controller is called `swoft`"),
        (SWEEP.replace('"swift"', '"fixed:fraction=0.50"'), r"controllers\[1\]: .* there already"),
        (
            SWEEP.replace("swift", "learned:model=none.safetensors"),
            r"controllers\[0\]: .*none\.safetensors: .*No such file",
        ),
        (
            SWEEP.replace("swift", "learned:speed=2"),
            r"controllers\[0\]: learned has no parameter `speed`",
        ),
        (SWEEP.replace('"swift"', "1"), r"controllers\[0\]: expected a text, found 1"),
        (SWEEP.replace("[3, 1]", "0"), "seeds: expected a number of seeds, .* found 0"),
        (SWEEP.replace("[3, 1]", "[]"), "seeds: expected a number of seeds"),
        (SWEEP.replace("[3, 1]", "[3, -1]"), r"seeds\[1\]: expected a whole number from 0"),
        (SWEEP.replace("[3, 1]", "[3, 3]"), r"seeds\[1\]: 3 is there already"),
        (SWEEP.replace("[3, 1]", "1000000"), "seeds: 4000000 simulations"),
        (SWEEP + "duration_s = true", "duration_s: expected a number of seconds, found True"),
        (SWEEP + "duration_s = 1e-3", r"scenarios: .*less than the duration"),
    ],
)
def test_bad_files_are_refused(sweep, tmp_path, text, words, capsys):
    sweep.write_text(text)
    with pytest.raises(SweepError, match=words):
        Plan.load(sweep)
    assert main([str(sweep), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {sweep}: ")
    assert not (tmp_path / "out").exists()


def test_two_scenarios_of_one_name(sweep, tmp_path):
    (tmp_path / "4-to-1.toml").write_text(many_to_one(2).text)
    with pytest.raises(SweepError, match=r"2-to-1\.toml and .*4-to-1\.toml are both called"):
        Plan.load(sweep)


def test_times_left_in_words():
    assert [words(s) for s in (7.6, 89, 100, 5400, 7300)] == [
        "8 s",
        "89 s",
        "2 min",
        "1 h 30 min",
        "2 h 2 min",
    ]
