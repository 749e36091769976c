# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sweep files: the simulations that one asks for."""

from __future__ import annotations

import glob
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thalweg import files
from thalweg.sim import Learned, Scenario, canonical_controller
from thalweg.sweep.cells import Cell, Contender

#: Limit of cells: a larger sweep is a mistake.
MOST_CELLS = 1_000_000


class SweepError(Exception):
    """An invalid sweep file. The message names file and key."""


@dataclass(frozen=True)
class Plan:
    """A sweep: its cells in the order of the file, scenarios first and seeds last."""

    cells: tuple[Cell, ...]

    @staticmethod
    def load(path: Path) -> Plan:
        """Reads a sweep file and all scenarios that it names. Raises SweepError for a fault in any
        of them, OSError if the sweep file cannot be read."""
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
            scenario = Scenario.load(file).replace(
                duration_s=times.get("duration_s"), warmup_s=times.get("warmup_s")
            )
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

    contenders = [Contender(name, model or name) for name, model in controllers.items()]
    seeds = _seeds(table, fault)
    if (count := len(scenarios) * len(controllers) * len(seeds)) > MOST_CELLS:
        raise fault("seeds", f"{count} simulations; expected at most {MOST_CELLS}")
    return Plan(
        tuple(
            Cell(scenario, contender, seed)
            for _, scenario in scenarios.values()
            for contender in contenders
            for seed in seeds
        )
    )


def _controller(text: str, directory: Path) -> tuple[str, Learned | None]:
    """A controller's name in results, and its model if it has one. The model is read now, since
    cells may run where the file is not. Its path is relative to the directory; results show it as
    given. Raises ValueError or OSError."""
    if text.partition(":")[0].strip() != "learned":
        return canonical_controller(text), None
    model = Learned.from_text(text, directory)
    return canonical_controller(model), model


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
