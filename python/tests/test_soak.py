# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m thalweg.results.soak``: the curves of ``scripts/soak.sh``."""

import json

import pytest
from thalweg.results import soak


def look(second: int) -> dict[str, float]:
    return {
        "seconds": second,
        "anonymous_kib": 4096 if second < 300 else 8192,
        "files": 50,
        "disk_bytes": 2_000_000,
        "map_bytes": 2**24,
    }


def test_the_curves_are_drawn(tmp_path, capsys):
    source, out = tmp_path / "looks.jsonl", tmp_path / "soak.svg"
    source.write_text("".join(json.dumps(look(5 * place)) + "\n" for place in range(120)))
    assert soak.main([str(source), str(out)]) == 0
    svg = out.read_text()
    for title, _ in soak.FIGURES:
        assert f">{title}</text>" in svg
    # Memory doubles halfway: the first six points lie lower.
    line = svg.split("memory of the agent", 1)[1].split('points="', 1)[1].split('"', 1)[0]
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert len(heights) == soak.POINTS
    assert len(set(heights[:6])) == len(set(heights[6:])) == 1
    assert heights[0] > heights[6]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"seconds": 1}\n' * 24, "anonymous_kib"),
        ("{}\n", "at least 12"),
        ("[", "JSON|delimiter|Expecting"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path, capsys, text, why):
    source, out = tmp_path / "looks.jsonl", tmp_path / "soak.svg"
    source.write_text(text)
    assert soak.main([str(source), str(out)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {source}: ")
    assert any(word in said for word in why.split("|"))
    assert not out.exists()
