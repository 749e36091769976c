# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rate controllers judged in the simulator, for the tables of a page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from thalweg.results import lists
from thalweg.results.controllers import document, plots
from thalweg.results.controllers.tables import Job, Measured
from thalweg.sim import Learned, Scenario, run
from thalweg.sweep import workers
from thalweg.sweep.cells import Store

#: Simulations that are kept, within the directory of results.
CELLS = "cells.jsonl"


class Judged:
    """The tables of a page that are of the simulator alone. Raises OSError and ValueError for
    missing or invalid scenarios and models."""

    def __init__(self, page: lists.Page, folder: Path) -> None:
        self._folder = folder
        self._jobs = {
            table: Job(table, folder)
            for table in page.table
            if isinstance(table, lists.Controllers)
        }
        self._measured: dict[lists.Controllers, Measured] = {}

    def simulate(self, cache: Path, jobs: int, ray: str | None) -> None:
        """Runs the simulations that the cache lacks: so many at once, or on a Ray cluster. Raises
        OSError, and ValueError with the first fault."""
        cells = [cell for job in self._jobs.values() for cell in job.cells()]
        if not cells:
            return
        with (
            Store(cache / CELLS).opened() as store,
            contextlib.closing(workers.simulate(store, cells, jobs, ray)) as failures,
        ):
            for failure in failures:
                raise ValueError(failure)
        self._measured = {table: job.measured(store.rows) for table, job in self._jobs.items()}

    def lines(
        self,
        table: lists.Controllers | lists.Passed | lists.Traces | lists.Curves,
        pictures: dict[str, bytes],
    ) -> Iterator[str]:
        """The lines of a table, once simulated; its picture joins the others."""
        match table:
            case lists.Controllers():
                yield from document.section(self._measured[table])
            case lists.Passed():
                yield from document.passed(
                    {
                        one.title.split(" (")[0]: self._measured[one]
                        for name in table.published
                        for one in self._jobs
                        if one.published == name
                    }
                )
            case lists.Traces():
                pictures[table.picture] = self._traces(table)
                yield f"![{table.title}]({table.picture})"
            case lists.Curves():
                pictures[table.picture] = plots.training(self._folder / table.csv)
                yield f"![{table.title}]({table.picture})"

    def _traces(self, table: lists.Traces) -> bytes:
        model = Learned(self._folder / table.model, table.inference, None, table.initial)
        outcomes = []
        for row in table.row:
            scenario = Scenario.load(self._folder / row.scenario)
            scenario = scenario.replace(duration_s=row.duration_s, warmup_s=0.0)
            outcomes.append((row.condition, run(scenario, model, 1, row.every_us)))
        return plots.traces(outcomes)
