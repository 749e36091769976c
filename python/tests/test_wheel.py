# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The wheel of ``make wheel`` in an environment of its own, without Rust and without sources."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

USE = """
import sys, gymnasium, thalweg.environments
from thalweg.sim import Learned, run
root = sys.argv[1]
assert not thalweg.__file__.startswith(root), thalweg.__file__
scenario = root + "/scenarios/sim/many-to-one-16.toml"
print(thalweg.__version__, run(scenario, "hpcc", seed=1).utilisation_percent > 90)
learned = Learned(root + "/models/adpg-plus.safetensors", "int8", initial=0.01)
print(run(scenario, learned, seed=1).fairness_percent > 80)
environment = gymnasium.make("thalweg/OneFlow-v0")
environment.reset(seed=1)
print(environment.step(environment.action_space.sample())[4]["rtt_s"] > 0)
"""


@pytest.fixture(scope="module")
def wheel():
    subprocess.run([ROOT / "scripts/wheel.sh"], check=True, stdout=subprocess.DEVNULL)
    [wheel] = (ROOT / "target/wheels").iterdir()
    return wheel


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Runs the Python of an environment with the wheel; no other program is in PATH."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CARGO"))}
    variables["PATH"] = str(environment / "bin")
    assert shutil.which("cargo", path=variables["PATH"]) is None
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def run(*words):
        return subprocess.run(
            [environment / "bin/python", *words],
            env=variables,
            cwd=elsewhere,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    run("-m", "pip", "--quiet", "install", f"{wheel}[environments,train]")
    run.elsewhere = elsewhere
    return run


def test_its_name_says_which_machines_it_is_for(wheel):
    assert re.fullmatch(
        r"thalweg-[0-9.]+-cp311-abi3-manylinux_2_\d\d_(x86_64|aarch64)\.whl", wheel.name
    )
    assert wheel.stat().st_size < 4 << 20


def test_simulations_models_and_environments_run(python):
    assert python("-c", USE, str(ROOT)).split() == ["0.1.0", "True", "True", "True"]


def test_training_runs_and_says_what_it_was(python):
    assert "--updates" in python("-m", "thalweg.train.adpg", "--help")
    words = ["--updates", "2", "--copies", "2", "--quiet", "--output", "run"]
    python("-m", "thalweg.train.adpg", *words)
    rows = (python.elsewhere / "run/curves.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["update", "1", "2"]
    python("-m", "thalweg.train.export", "run/checkpoint.safetensors", "--name", "mine")
    program = (
        "from thalweg import model; print(model.read('models/mine.safetensors').training.commit)"
    )
    assert re.fullmatch(r"0\.1\.0, sha256 [0-9a-f]{16}\n", python("-c", program))
