# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs without a package or the native module print one line, with the remedy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1]
TRAINING = ["train.adpg", "train.ppo", "train.reinforce", "train.aurora", "train.export"]
PROGRAMS = [*TRAINING, "train.play", "sweep", "evaluate", "results", "distil"]
#: Those that run without a package.
ALONE = ["results.soak"]

#: A module that hides one package, for any program that has it in its path.
HIDES = """
import importlib.abc, os, sys


class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == os.environ["HIDDEN"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
"""


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


def test_the_list_of_programs_is_whole():
    found = {
        ".".join(path.relative_to(SOURCES / "thalweg").with_suffix("").parts)
        for path in (SOURCES / "thalweg").rglob("*.py")
        if 'if __name__ == "__main__"' in path.read_text()
    }
    assert {name.removesuffix(".__main__") for name in found} == {*PROGRAMS, *ALONE}


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("optax", "train", ["train.ppo", "--help"]),
        ("ray", "ray", ["train.adpg", "--updates", "1", "--copies", "1", "--ray", "--output"]),
        ("ray", "ray", ["sweep", "examples/sweep.toml", "--ray", "local", "--out"]),
        ("pyarrow", "sweep", ["sweep", "examples/sweep.toml", "--out"]),
        ("sklearn", "distil", ["distil", "models/adpg-plus.safetensors", "--out"]),
    ],
)
def test_a_package_that_is_missed_later_is_one_line(tmp_path, package, extra, words):
    (tmp_path / "sitecustomize.py").write_text(HIDES)
    ended = subprocess.run(
        [sys.executable, "-m", f"thalweg.{words[0]}", *words[1:], str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SOURCES}", "HIDDEN": package},
        cwd=SOURCES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in (1, 2)
    assert ended.stderr.endswith(f': pip install "thalweg[{extra}]"\n')
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("package", ["gymnasium", "pettingzoo"])
def test_environments_name_their_extra(tmp_path, package):
    (tmp_path / "sitecustomize.py").write_text(HIDES)
    ended = subprocess.run(
        [sys.executable, "-c", "import thalweg.environments"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SOURCES}", "HIDDEN": package},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr.endswith('PettingZoo: pip install "thalweg[environments]"\n')


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
