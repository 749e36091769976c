# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``scripts/tables.sh``, with a stand-in for the program that makes a page."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted(page.stem for page in CHECKOUT.glob("docs/measurements/results*.md"))

#: Makes the page unless the directory ``fails`` has a file of its name, with the exit status.
PYTHON = """#!/bin/bash
while (($#)); do
	[[ $1 != --out ]] || page=$2
	[[ $1 != --tables ]] || [[ -e $CHECKOUT/$2 ]] || exit 3
	shift
done
name=$(basename "$page" .md)
[[ ! -e fails/$name ]] || exit "$(cat fails/$name)"
touch "$page"
"""


@pytest.fixture
def tables(tmp_path):
    """Runs the script in a directory of its own: its end, and the pages that were made."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(CHECKOUT / "scripts/tables.sh", tmp_path / "scripts")
    (tmp_path / "scripts/python-env.sh").write_text(
        'python_env_make() { :; }\npython_env() { echo "$PWD"; }\n'
    )
    (tmp_path / "bin").mkdir()
    for file, text in (("scripts/python-native.sh", "#!/bin/sh\n"), ("bin/python", PYTHON)):
        (tmp_path / file).write_text(text)
        (tmp_path / file).chmod(0o755)

    def run(*words, **fails):
        for folder in ("pages", "fails"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
            (tmp_path / folder).mkdir()
        for name, status in fails.items():
            (tmp_path / "fails" / name.replace("_", "-")).write_text(str(status))
        ended = subprocess.run(
            [tmp_path / "scripts/tables.sh", *words],
            env=os.environ | {"TABLES_OUT": "pages", "CHECKOUT": str(CHECKOUT)},
            capture_output=True,
            text=True,
        )
        return ended, sorted(page.stem for page in (tmp_path / "pages").iterdir())

    return run


def test_every_published_page_is_made(tables):
    ended, made = tables()
    assert (ended.returncode, ended.stderr, made) == (0, "", PAGES)


def test_a_page_that_fails_holds_up_no_other(tables):
    ended, made = tables(results=1, results_rate=3)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "error: not made, or not whole: results",
        "error: not made, or not whole: results-rate",
    ]
    assert made == [page for page in PAGES if page not in ("results", "results-rate")]


def test_an_interruption_ends_all(tables):
    ended, made = tables(results=1, results_stack=130)
    assert (ended.returncode, made) == (130, [])


def test_pages_can_be_chosen(tables):
    ended, made = tables("results-rate", "results-baselines")
    assert (ended.returncode, made) == (0, ["results-baselines", "results-rate"])
    ended, made = tables("results-rates")
    assert (ended.returncode, made) == (2, [])
    assert ended.stderr.startswith("error: results-rates: expected a page of results ")
