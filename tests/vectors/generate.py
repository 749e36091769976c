#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Golden vectors of the learner's arithmetic: unit.json, sequences.json, families.json and
windows.json.

This is a third implementation, in unbounded integers, written from what the comments of
bpf/include/thalweg_abi.h, bpf/include/thalweg_algo.h and the documentation of crates/learner
say, not from their code. Every stored number is checked against its width. A sequence set
that leaves a branch of the algorithm untouched is refused. The arithmetic is in
learner.py, group.py and window.py, what goes into it in inputs.py, units.py, group.py and
window.py.

usage: generate.py          writes the files
       generate.py --check  compares; exit status 1 if they differ
"""

import json
import pathlib
import sys

from group import families
from inputs import sequences
from units import units
from window import windows

HERE = pathlib.Path(__file__).resolve().parent


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def unit_text(data):
    """One case a line."""
    blocks = []
    for function in data["functions"]:
        head = {key: function[key] for key in ("function", "inputs", "outputs")}
        cases = ",\n".join(compact(case) for case in function["cases"])
        blocks.append(compact(head)[:-1] + ',"cases":[\n' + cases + "\n]}")
    return '{"functions":[\n' + ",\n".join(blocks) + "\n]}\n"


def sequences_text(data):
    """One step a line."""
    blocks = []
    for one in data["sequences"]:
        head = {key: one[key] for key in ("name", "params", "start", "end") if key in one}
        steps = ",\n".join(compact(step) for step in one["steps"])
        blocks.append(compact(head)[:-1] + ',"steps":[\n' + steps + "\n]}")
    head = {key: data[key] for key in ("sample_fields", "arm_fields")}
    return compact(head)[:-1] + ',"sequences":[\n' + ",\n".join(blocks) + "\n]}\n"


def families_text(data):
    """One step a line."""
    blocks = []
    for one in data["families"]:
        head = {key: value for key, value in one.items() if key != "steps"}
        steps = ",\n".join(compact(step) for step in one["steps"])
        blocks.append(compact(head)[:-1] + ',"steps":[\n' + steps + "\n]}")
    return '{"families":[\n' + ",\n".join(blocks) + "\n]}\n"


def first_difference(old, new):
    old_lines, new_lines = old.split("\n"), new.split("\n")
    for number, (a, b) in enumerate(zip(old_lines, new_lines), 1):
        if a != b:
            return number
    return min(len(old_lines), len(new_lines)) + 1


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__.rstrip(), file=sys.stderr)
        return 2
    files = {
        "unit.json": unit_text(units()),
        "sequences.json": sequences_text(sequences()),
        "families.json": families_text(families()),
        "windows.json": families_text(windows()),
    }
    for text in files.values():
        json.loads(text)
    status = 0
    for name, text in files.items():
        path = HERE / name
        if not arguments:
            path.write_text(text)
            continue
        committed = path.read_text() if path.exists() else ""
        if committed != text:
            line = first_difference(committed, text)
            print(
                f"{name} differs from what generate.py makes, from line {line} on; "
                "run tests/vectors/generate.py and explain the change",
                file=sys.stderr,
            )
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
