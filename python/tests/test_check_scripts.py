# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``scripts/test.sh`` and ``scripts/setup.sh`` where a step fails, with stand-ins for programs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

#: What both scripts source.
RUST_ENV = "rust_use() { :; }\nrust_find() { :; }\n"
PYTHON_ENV = "python_env_make() { echo 'error: pip cannot' >&2; return 1; }\n"


@pytest.fixture
def script(tmp_path):
    """Runs a script in a directory of its own with these programs: its end."""

    def run(name, programs, *words):
        files = {
            "scripts/rust-env.sh": RUST_ENV,
            "scripts/python-env.sh": PYTHON_ENV,
            **{file: f"#!/bin/bash\n{text}\n" for file, text in programs.items()},
        }
        for folder in ("scripts", "bin", "tmp"):
            (tmp_path / folder).mkdir()
        for file, text in files.items():
            (tmp_path / file).write_text(text)
            (tmp_path / file).chmod(0o755)
        shutil.copy(CHECKOUT / "scripts" / name, tmp_path / "scripts")
        environment = os.environ | {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(tmp_path / "tmp"),
            "LIBCLANG_PATH": "/",
        }
        return subprocess.run(
            [tmp_path / "scripts" / name, *words], env=environment, capture_output=True, text=True
        )

    return run


def test_failed_build_still_shows_what_the_checks_found(script, tmp_path):
    programs = {
        "bin/cargo": '[[ $1 != build ]] || echo "cannot build" >&2; exit 101',
        "scripts/lint.sh": "echo a fault of form; exit 1",
    }
    ended = script("test.sh", programs)
    assert ended.returncode == 1
    assert "cannot build" in ended.stdout and "a fault of form" in ended.stdout
    assert list((tmp_path / "tmp").iterdir()) == []


#: All packages are installed.
INSTALLED = {
    "bin/dpkg-query": "printf 'installed %s\\n' \"${@:4}\"",
    "bin/apt-get": "",
    "bin/cargo": "",
}


def test_setup_without_a_python_environment_says_so_last(script):
    ended = script("setup.sh", INSTALLED, "--test")
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("setup: error: the Python environment cannot be made, see above")


def test_setup_for_the_demo_makes_no_python_environment(script):
    ended = script("setup.sh", INSTALLED)
    assert (ended.returncode, ended.stderr) == (0, "")
