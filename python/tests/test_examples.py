# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The examples in Python do what they say: train, sweep on Ray, draw."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from thalweg.train import PINNED

ROOT = Path(__file__).parents[2]


def program(*words):
    """Runs a program at the root of the sources, and returns what it prints."""
    ended = subprocess.run(
        [sys.executable, *words],
        env=os.environ
        | {"PYTHONPATH": str(ROOT / "python"), "RAY_USAGE_STATS_ENABLED": "0"}
        # Beside other tests, workers of Ray's usual niceness (15) would not get a processor.
        | {"RAY_worker_niceness": "0"}
        # The same training on every processor.
        | {"XLA_FLAGS": " ".join(PINNED)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_the_trained_flow_takes_its_share():
    pytest.importorskip("skrl")
    lines = program("examples/train_oneflow.py").splitlines()
    found = {
        name: (float(reward), float(rate))
        for name, reward, rate in (
            re.fullmatch(r"(\w+) +reward +(\S+)  rate +(\S+) Gbit/s", line).groups()
            for line in lines
        )
    }
    # Random actions, and no actions at all (-0.031), are far from a fair share of 25 Gbit/s.
    assert found["random"][0] < -0.1
    assert found["learned"][0] > -0.025
    assert 15 < found["learned"][1] < 35


@pytest.mark.slow
def test_the_sweep_runs_on_ray_and_is_drawn(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("ray")
    table, picture = tmp_path / "results.parquet", tmp_path / "picture.svg"
    program("-m", "thalweg.sweep", "examples/sweep.toml", "--out", str(tmp_path), "--ray", "local")
    rows = parquet.read_table(table).to_pylist()
    assert len(rows) == 16
    queue = {row["controller"]: row["queue_mean_us"] for row in rows}
    assert queue["hpcc"] < 2 < queue["swift"]
    program("examples/plot.py", str(table), "--out", str(picture))
    drawn = picture.read_text()
    # Text is drawn as curves, with the words in comments.
    for words in ("many-to-one-64", "swift", "mean queueing delay", "utilisation, %"):
        assert f"<!-- {words}" in drawn
