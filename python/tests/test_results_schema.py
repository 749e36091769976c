# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Documents of `thalweg-lab run` and `thalweg-lab sim run`: valid by their schemas, with the figures of our
pages."""

import json
import os
import signal
import subprocess
from pathlib import Path

import jsonschema
import pytest
from thalweg.results.__main__ import main
from thalweg.results.figures import FIGURES, rounds

CHECKOUT = Path(__file__).parents[2]
BINARY = CHECKOUT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/thalweg-lab"


def needed(root=False):
    """Skips a test that cannot run here, unless all are to run."""
    if os.environ.get("THALWEG_REQUIRE_PRIVILEGED"):
        return
    if not BINARY.exists():
        pytest.skip("no target/debug/thalweg-lab: cargo build -p thalweg-cli -p thalweg-lab-cli")
    if root and os.geteuid() != 0:
        pytest.skip("network namespaces need root")


def laboratory(*words):
    """The document that a command prints."""
    ended = subprocess.run([BINARY, "--json", *words], capture_output=True, text=True, cwd=CHECKOUT)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def strict(schema):
    """The schema, refusing fields that it does not name: a new field belongs into it."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(one) for key, one in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        made.setdefault("additionalProperties", False)
    return made


def faults(name, document):
    schema = json.loads((CHECKOUT / f"docs/reference/{name}-results.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert document["schema"] == schema["$id"]
    # A reader of this version takes fields that a later one adds.
    more = document | {"more": 1}
    assert not list(jsonschema.Draft202012Validator(schema).iter_errors(more))
    validator = jsonschema.Draft202012Validator(strict(schema))
    assert len(list(validator.iter_errors(more))) == 1
    found = jsonschema.Draft202012Validator(strict(schema)).iter_errors(document)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


SIMULATION = """
name = "{name}"
duration = "2ms"
warmup = "1ms"
series = "100us"
topology = {{ kind = "star", hosts = 5 }}
link = {{ rate = "100gbit", delay = "1us" }}
network = {{ base_rtt = "12us" }}
workload = {workload}
[[expect]]
cc = "swift"
statistic = "dropped"
at_most = 100
"""


def test_simulations_are_as_their_schema_says(tmp_path):
    needed()
    files = []
    for name, workload in (
        ("many", '{ kind = "many-to-one", flows = 4 }'),
        ("long", '{ kind = "long-short", flows = 2, burst = "20kib", idle = "100us" }'),
        ("come", '{ kind = "poisson", sizes = "hadoop", load = "50%", until = "1800us" }'),
    ):
        files.append(tmp_path / f"{name}.toml")
        files[-1].write_text(SIMULATION.format(name=name, workload=workload))
    words = ["--cc", "swift", "--cc", "fixed:fraction=0.1", "--seeds", "2"]
    document = laboratory("sim", "run", *map(str, files), *words)
    assert faults("sim", document) == []
    for scenario in document["scenarios"]:
        for controller in scenario["controllers"]:
            assert set(controller["summary"]) <= set(document["statistics"])
    long = document["scenarios"][1]["controllers"][0]["runs"][0]
    assert long["long_short"] is not None and long["series"] is not None
    assert document["scenarios"][2]["controllers"][0]["runs"][0]["slowdowns"]


LABORATORY = """
name = "{name}"
description = "A short run."
[path]
rate = "20mbit"
queue = "100kb"
[traffic]
connections = 1
duration = "1s"
{traffic}
[[expect]]
mode = "fixed:reno"
statistic = "failures"
at_most = 0
"""


def test_laboratory_runs_are_as_their_schema_says(tmp_path):
    needed(root=True)
    files = []
    for name, traffic in (
        ("beside", 'kind = "competing"\nflows = 2\nagainst = { cc = "reno", flows = 1 }'),
        ("meet", 'kind = "incast"\nsenders = 1\nrpcs = 1'),
    ):
        files.append(tmp_path / f"{name}.toml")
        files[-1].write_text(LABORATORY.format(name=name, traffic=traffic))
    words = ["--backend", "link", "--mode", "fixed:reno", "--mode", "fixed:cubic"]
    document = laboratory("run", *map(str, files), *words, "--out", str(tmp_path / "out"))
    assert faults("lab", document) == []
    # The files have the same, a scenario each.
    written = json.loads((tmp_path / "out/meet/results.json").read_text())
    assert faults("lab", written) == []
    assert written["scenarios"][0]["modes"] == document["scenarios"][1]["modes"]

    definitions = document["definitions"]["statistics"]
    there = set()
    for scenario in document["scenarios"]:
        [one] = rounds({"scenarios": [scenario], "environment": document["environment"]})
        for mode in scenario["modes"]:
            summary = mode["summary"]
            for class_, statistics in [(None, summary["statistics"])] + list(
                summary.get("classes", {}).items()
            ):
                for key in statistics.keys() & FIGURES.keys():
                    assert FIGURES[key].words == definitions[key]["title"]
                    assert FIGURES[key].unit == definitions[key]["unit"]
                    # In a run of one round, both are the same. Null is a flow that failed.
                    whole = float("inf") if statistics[key] is None else statistics[key]
                    assert one.figure(key, mode["mode"], class_) == whole, key
                    there.add(key)
    assert there == set(FIGURES) - {"utilisation"}


LIST = """
title = "A page"
introduction = "Words."
[[table]]
kind = "compared"
title = "Two flows"
note = "N"
across = "flows"
modes = ["fixed:reno"]
column = [{ name = "SU %", figure = "utilisation" }, { name = "FR %", figure = "fairness" }]
target = [{ condition = "2", mode = "fixed:reno", figure = "utilisation", at_least = 1000 }]
[[table.row]]
condition = "2"
run = { scenario = "two.toml", backend = "link", connections = 1 }
[[table]]
kind = "simulated"
title = "Beside the simulator"
note = "N"
[[table.row]]
condition = "2"
mode = "fixed:reno"
modes = ["fixed:reno"]
run = { scenario = "two.toml", backend = "link", connections = 1 }
scenario = "sim.toml"
cc = "fixed:fraction=0.4"
"""


def test_a_page_of_real_runs(tmp_path, monkeypatch):
    needed(root=True)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "tables.toml").write_text(LIST)
    traffic = 'kind = "streams"\nflows = 2'
    (tmp_path / "two.toml").write_text(LABORATORY.format(name="two", traffic=traffic))
    workload = '{ kind = "many-to-one", flows = 2 }'
    (tmp_path / "sim.toml").write_text(SIMULATION.format(name="sim", workload=workload))
    words = ["--tables", "tables.toml", "--cache", "cache", "--out", "page.md"]
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--binary", str(BINARY)]) == 0
    page = Path("page.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| 2 | reno | ")]
    [[_, _, used, fair], beside] = rows
    # A bottleneck gives no more than its rate; on a busy machine Reno may leave much of it.
    assert 20 < float(used.split()[0]) < 110 and 0 < float(fair.split()[0]) <= 100
    # Linux, simulator, difference; two flows at four tenths of the line each.
    assert beside[2] == used and beside[3] == "80.0 [80.0 … 80.0]"
    assert float(beside[4]) == pytest.approx(float(used.split()[0]) - 80.0, abs=0.11)
    assert page.count("**missed**") == 1
    assert page.count("- `thalweg-lab run two.toml --backend link --connections 1") == 2
    made = {path: path.stat().st_mtime_ns for path in Path("cache").glob("*/results.json")}
    assert len(made) == 2
    assert main([*words, "--binary", str(BINARY)]) == 0
    assert made == {path: path.stat().st_mtime_ns for path in made}
    assert Path("page.md").read_text() == page
