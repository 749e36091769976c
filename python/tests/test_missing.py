# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs without a package or the native module print one line, with the remedy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1]
PROGRAMS = ["train.adpg", "train.ppo", "train.export", "sweep", "evaluate", "results", "distil"]


def run(path, program, *options):
    """Runs a program of the package in ``path``; -S hides what is installed."""
    return subprocess.run(
        [sys.executable, *options, "-m", f"thalweg.{program}", "--help"],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_missing_package_is_one_line(program):
    ended = run(SOURCES, program, "-S")
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: the package ")
    assert 'is missing: pip install "thalweg' in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_missing_native_module_is_one_line(tmp_path):
    shutil.copytree(
        SOURCES / "thalweg",
        tmp_path / "thalweg",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    ended = run(tmp_path, "sweep")
    assert ended.returncode == 1
    # Python itself prints this where it looks for a package with a `__main__`.
    assert "the native module is missing: " in ended.stderr
    assert 'run "pip install ."' in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_other_errors_keep_their_traceback():
    program = "import sys; sys.argv[0] = '-m'; import thalweg; 1 / 0"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" in ended.stderr
    assert "ZeroDivisionError" in ended.stderr
