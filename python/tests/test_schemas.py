# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Schemas of the files that users write: every file that ships names its own, and is valid."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

CHECKOUT = Path(__file__).parents[2]
SHIPPED = sorted(
    file
    for folder in ("policies", "scenarios", "examples", "packaging")
    for file in (CHECKOUT / folder).glob("**/*.toml")
    # Lists of tables and sweeps are read by Python, which has no schema of them; rpmlint's does not
    # ship.
    if not file.name.startswith(("tables", "sweep", "rpmlint"))
)


def schema_of(file):
    """The schema that a file's first line names."""
    named = re.match("#:schema (.*)\n", file.read_text())
    assert named, f"{file}: no #:schema"
    path = (file.parent / named[1]).resolve()
    assert path.parent == CHECKOUT / "schemas"
    return json.loads(path.read_text())


def test_files_that_ship_are_valid():
    assert len(SHIPPED) > 150
    for file in SHIPPED:
        schema = schema_of(file)
        faults = jsonschema.Draft7Validator(schema).iter_errors(tomllib.loads(file.read_text()))
        assert not [f"{file}: {fault.json_path}: {fault.message}" for fault in faults]


def test_schemas_are_schemas():
    for file in (CHECKOUT / "schemas").iterdir():
        jsonschema.Draft7Validator.check_schema(json.loads(file.read_text()))


@pytest.mark.parametrize(
    ("file", "good", "bad", "fault"),
    [
        ("examples/agent.toml", "dry_run = true", "dry_run = 1", "boolean"),
        ("examples/datacenter.toml", '"20ms"', '"20"', "does not match"),
        ("examples/branch-office.toml", '"50mbit"', '"50Mbps"', "does not match"),
        ("scenarios/sim/websearch-30.toml", '"poisson"', '"posson"', "anyOf"),
    ],
)
def test_taplo_says_what_is_wrong(tmp_path, file, good, bad, fault):
    """The checker that editors have takes the schemas."""
    text = (CHECKOUT / file).read_text()
    assert text.count(good) == 1
    schema = (CHECKOUT / file).parent / re.match("#:schema (.*)\n", text)[1]
    text = re.sub("#:schema .*", f"#:schema {schema}", text)
    for name, content, code in [("good", text, 0), ("bad", text.replace(good, bad), 1)]:
        (tmp_path / f"{name}.toml").write_text(content)
        command = [
            Path(sys.executable).parent / "taplo",
            "check",
            "--colors",
            "never",
            f"{name}.toml",
        ]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == code, ended.stderr
        assert (fault in ended.stderr) == (name == "bad"), ended.stderr
