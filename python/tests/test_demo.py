# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``make demo``: ``scripts/demo.sh`` with a stand-in for the program, and its verdict."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "scripts/demo_verdict.py"
ROUNDS = 24


def written(folder, seed, learned):
    """A document: cubic carries 100 Mbit/s, classic 200, and the learner so much; all vary."""
    chance = random.Random(seed)
    modes = [
        {
            "mode": mode,
            "rounds": ROUNDS,
            "connections": [
                {"round": place, "goodput_bps": mbit * 1e6 * chance.uniform(0.8, 1.2)}
                for place in range(ROUNDS)
            ],
        }
        for mode, mbit in (("baseline", 100), ("classic", 200), ("thalweg", learned))
    ]
    scenario = {"name": "loss-5", "system": {"default_cc": "cubic"}}
    file = folder / f"{seed}.json"
    file.write_text(json.dumps({"scenarios": [{"scenario": scenario, "modes": modes}]}))
    return str(file)


@pytest.mark.parametrize(
    ("learned", "word", "end"),
    [
        ([150] * 5, "WORSE", "BEATEN by the published rule, by more than noise: loss-5."),
        ([200] * 5, "no different", "Nowhere does the published rule beat"),
        ([300] * 5, "better", "Nowhere does the published rule beat"),
        # One odd run is noise.
        ([200, 200, 200, 200, 20], "no different", "Nowhere does the published rule beat"),
    ],
)
def test_demo_says_plainly_who_is_beaten(tmp_path, learned, word, end):
    files = [written(tmp_path, seed, mbit) for seed, mbit in enumerate(learned)]
    said = subprocess.run(
        [sys.executable, SCRIPT, *files], capture_output=True, text=True, check=True
    ).stdout
    assert said.count(f": {word}\n") == 2, said
    assert end in said.splitlines()[-1], said
    assert "5 runs" in said
    if min(learned) == 20:
        assert "the worst is run 5, 0.2" in said, said


#: Writes the scenario's document, as the laboratory does of one; misses an expectation in run 3.
LABORATORY = """#!/bin/bash
[[ $1 == run ]] || exit 0
out=${@: -1} file=$2
mkdir -p "$out"
sed "s/loss-5/$(basename "$file" .toml)/" document.json >"$out/results.json"
! grep -q '^seed = 3' "$file" || status=5
echo "$@" >>called
exit ${status:-0}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the demo asks for root")
def test_demo_repeats_and_tells_a_miss(tmp_path):
    for name in ("scripts", "bin", "target/debug"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("demo.sh", "demo_verdict.py"):
        shutil.copy(CHECKOUT / "scripts" / name, tmp_path / "scripts")
    shutil.copytree(CHECKOUT / "scenarios/demo", tmp_path / "scenarios/demo")
    (tmp_path / "scripts/rust-env.sh").write_text("rust_use() { :; }\n")
    for name, text in (
        ("bin/cargo", "#!/bin/sh\n"),
        ("target/debug/thalweg", "#!/bin/sh\n"),
        ("target/debug/thalweg-lab", LABORATORY),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    Path(written(tmp_path, 1, 300)).rename(tmp_path / "document.json")
    ended = subprocess.run(
        [tmp_path / "scripts/demo.sh"],
        env=os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 5, ended.stderr
    assert "Thalweg did not converge everywhere" in ended.stderr
    calls = (tmp_path / "called").read_text().splitlines()
    # The link without loss once, then the lossy one.
    assert ["--mode fixed" in call for call in calls] == [False, True, False, False, False, False]
    assert ["loss-0" in call for call in calls] == [True, False, False, False, False, False]
    assert "loss-5, 5 runs: median of the runs" in ended.stdout
