# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a sweep file asks for."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import platform
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thalweg import files
from thalweg.sim import Learned, Outcome, Scenario, canonical_controller, run, simulator

#: Part of every cell's identity: raised when the same cell would give another row.
FORMAT = 1

#: More cells than anyone means to ask for.
MOST_CELLS = 1_000_000


class SweepError(Exception):
    """A sweep file that is not one. The message names file and key."""


@dataclass(frozen=True)
class Cell:
    """One simulation of a sweep.

    ``controller`` is what results call it; ``model`` decides if it is a model. ``simulator`` is
    the one that the sweep was begun with, by :func:`thalweg.sim.simulator`.
    """

    scenario: Scenario
    controller: str
    seed: int
    model: Learned | None = None
    simulator: str = field(default_factory=lambda: simulator())

    @property
    def key(self) -> str:
        """Name of the cell's part: readable, and different whenever anything differs that its
        result depends on, the simulator and a model's content included."""
        scenario = self.scenario
        identity = [FORMAT, self.simulator, scenario.text, scenario.duration_s, scenario.warmup_s]
        model = self.model and hashlib.sha256(self.model.content).hexdigest()
        text = json.dumps([*identity, self.controller, model, self.seed])
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        controller = re.sub(r"[^A-Za-z0-9.-]+", "_", self.controller)[:48]
        return f"{scenario.name}-{controller}-{self.seed}-{digest}"

    def __str__(self) -> str:
        return f"{self.scenario.name} {self.controller} seed {self.seed}"

    def run(self) -> dict[str, Any]:
        """Simulates it: the row of the results. Raises RuntimeError where this is not the
        simulator that the sweep was begun with, as on another machine of a cluster."""
        if simulator() != self.simulator:
            raise RuntimeError(
                f"the simulator of {platform.node()} is not that of the machine that began the"
                " sweep: install the same build of Thalweg on both"
            )
        return row(self, run(self.scenario, self.model or self.controller, self.seed))


def row(cell: Cell, outcome: Outcome) -> dict[str, Any]:
    """What of an outcome goes into the results, by column."""
    latency, counts, long_short = outcome.queue_latency, outcome.counts, outcome.long_short
    times = outcome.completion_time_us
    return {
        "scenario": outcome.scenario,
        "controller": cell.controller,
        "seed": cell.seed,
        "flows": len(outcome.flow_gbps),
        "duration_s": outcome.duration_s,
        "warmup_s": outcome.warmup_s,
        "utilisation_percent": outcome.utilisation_percent,
        "fairness_percent": outcome.fairness_percent,
        "host_fairness_percent": outcome.host_fairness_percent,
        "jain": outcome.jain,
        "queue_mean_us": latency.mean_us,
        "queue_p50_us": latency.p50_us,
        "queue_p90_us": latency.p90_us,
        "queue_p99_us": latency.p99_us,
        "queue_p999_us": latency.p999_us,
        "queue_max_us": latency.max_us,
        "dropped_gbps": outcome.dropped_gbps,
        "dropped_percent": outcome.dropped_percent,
        "loss_percent": outcome.loss_percent,
        "recovery_s": long_short and long_short.recovery_s,
        "not_recovered": long_short and long_short.not_recovered,
        "long_gbps": long_short and long_short.long_gbps,
        "completions": len(times),
        "completion_mean_us": float(times.mean()) if len(times) else None,
        "sent_packets": counts.sent_packets,
        "delivered_packets": counts.delivered_packets,
        "dropped_packets": counts.dropped_packets,
        "decisions": counts.decisions,
        "notifications": counts.notifications,
        "events": counts.events,
    }


@dataclass(frozen=True)
class Plan:
    """A sweep: its cells in the order of the file, scenarios first and seeds last."""

    cells: tuple[Cell, ...]

    @staticmethod
    def load(path: Path) -> Plan:
        """Reads a sweep file and all scenarios that it names. Raises SweepError for what is wrong
        in any of them, OSError if the sweep file cannot be read."""
        files.check(path)
        text = path.read_bytes()
        try:
            table = tomllib.loads(text.decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as why:
            raise SweepError(f"{path}: {why}") from why
        return _plan(path, table)


def _plan(path: Path, table: dict[str, Any]) -> Plan:
    def fault(key: str, words: str) -> SweepError:
        return SweepError(f"{path}: {key}: {words}")

    known = {"scenarios", "controllers", "seeds", "duration_s", "warmup_s"}
    for key in table:
        if key not in known:
            raise fault(key, f"there is no such key; expected {', '.join(sorted(known))}")

    times = {}
    for key in ("duration_s", "warmup_s"):
        if key in table:
            value = table[key]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and 0 <= value < math.inf):
                raise fault(key, f"expected a number of seconds, found {value!r}")
            times[key] = float(value)

    files: list[Path] = []
    for place, pattern in enumerate(_texts(table, "scenarios", fault)):
        found = sorted(glob.glob(pattern, root_dir=path.parent, recursive=True))
        if not found:
            raise fault(f"scenarios[{place}]", f"no file is called {pattern!r}")
        files += [path.parent / file for file in found if path.parent / file not in files]
    scenarios: dict[str, tuple[Path, Scenario]] = {}
    for file in files:
        try:
            scenario = Scenario.load(file).replace(**times)
        except (OSError, ValueError) as why:
            raise fault("scenarios", str(why)) from why
        if scenario.name in scenarios:
            other = scenarios[scenario.name][0]
            raise fault("scenarios", f"{other} and {file} are both called {scenario.name!r}")
        scenarios[scenario.name] = file, scenario

    controllers: dict[str, Learned | None] = {}
    for place, text in enumerate(_texts(table, "controllers", fault)):
        try:
            controller, model = _controller(text, path.parent)
        except (OSError, ValueError) as why:
            raise fault(f"controllers[{place}]", str(why).removeprefix("cc: ")) from why
        if controller in controllers:
            raise fault(f"controllers[{place}]", f"{controller} is there already")
        controllers[controller] = model

    seeds = _seeds(table, fault)
    if (count := len(scenarios) * len(controllers) * len(seeds)) > MOST_CELLS:
        raise fault("seeds", f"{count} simulations; expected at most {MOST_CELLS}")
    return Plan(
        tuple(
            Cell(scenario, controller, seed, model)
            for _, scenario in scenarios.values()
            for controller, model in controllers.items()
            for seed in seeds
        )
    )


def _controller(text: str, directory: Path) -> tuple[str, Learned | None]:
    """What results call a controller, and the model if it is one, read now: where cells run the
    file need not be. Its path is relative to the directory. Raises ValueError or OSError."""
    given = re.match(r"\s*learned\s*:(?:.*,)?\s*model\s*=\s*([^,]*[^,\s])", text)
    if given is None:
        # Names, and what is wrong in any way.
        return canonical_controller(text), None
    file = str(directory / given[1])
    begin, end = given.span(1)
    model = Learned.from_text(text[:begin] + file + text[end:])
    # As it was given: results do not tell where the sweep file was.
    return canonical_controller(model).replace(f"model={file}", f"model={given[1]}", 1), model


Fault = Callable[[str, str], SweepError]


def _texts(table: dict[str, Any], key: str, fault: Fault) -> list[str]:
    if key not in table:
        raise fault(key, "missing; expected a list of texts")
    values = table[key]
    if not isinstance(values, list) or not values:
        raise fault(key, f"expected a list of texts, found {values!r}")
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise fault(f"{key}[{place}]", f"expected a text, found {value!r}")
    return values


def _seeds(table: dict[str, Any], fault: Fault) -> list[int]:
    """A number of seeds, from 0 up, or a list of them."""
    words = "expected a number of seeds, at least 1, or a list of them"
    value = table.get("seeds", 5)
    if type(value) is int:
        if not 1 <= value <= MOST_CELLS:
            raise fault("seeds", f"{words}, found {value}")
        return list(range(value))
    if not isinstance(value, list) or not value:
        raise fault("seeds", f"{words}, found {value!r}")
    for place, seed in enumerate(value):
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise fault(f"seeds[{place}]", f"expected a whole number from 0, found {seed!r}")
        if seed in value[:place]:
            raise fault(f"seeds[{place}]", f"{seed} is there already")
    return value
