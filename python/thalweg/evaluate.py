# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Figures of a model, kept in its file: ``python -m thalweg.evaluate FILE...``

Short figures for people who look at a file; a table of kind "controllers" of
:mod:`thalweg.results` says more. The simulator is deterministic: the same model and simulator give
the same file.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thalweg import model
from thalweg.sim import Learned, Outcome, Scenario, run

#: Scenarios of ``scenarios/sim``; simulated seconds, seconds not measured, seeds.
SCENARIOS = ("many-to-one-128", "many-to-one-1024", "many-to-one-8192")
DURATION_S, WARMUP_S, SEEDS = 0.2, 0.1, (1, 2, 3)

#: First rate of flows, a share of the line rate.
INITIAL = 0.001


def evaluate(
    file: Path,
    checkout: Path,
    scenarios: Sequence[str] = SCENARIOS,
    duration_s: float = DURATION_S,
    warmup_s: float = WARMUP_S,
    seeds: Sequence[int] = SEEDS,
) -> list[dict[str, Any]]:
    """Entries of ``evaluation.runs`` (docs/reference/model.md): means over the seeds, one entry for
    each scenario and inference. The queueing delay is of the seeds in which something arrived.
    Raises ValueError if nothing arrived in any."""
    runs = []
    for inference in model.read(file).inferences:
        learned = Learned(file, inference, None, INITIAL)
        for name in scenarios:
            scenario = Scenario.load(checkout / f"scenarios/sim/{name}.toml").replace(
                duration_s=duration_s, warmup_s=warmup_s
            )
            outcomes = [run(scenario, learned, seed) for seed in seeds]
            # Where nothing arrived, nothing has waited: 0 would be the best of all queues.
            waits = [one.queue_latency.mean_us for one in outcomes if one.utilisation_percent > 0]
            if not waits:
                raise ValueError(
                    f"{file}: {name}, {inference}: nothing arrived in any run, so there is no queue"
                    " to measure; train the model further"
                )

            def mean(figure: str, outcomes: list[Outcome] = outcomes) -> float:
                return round(statistics.fmean(getattr(one, figure) for one in outcomes), 4)

            runs.append(
                {
                    "scenario": name,
                    "inference": inference,
                    "initial_fraction": INITIAL,
                    "duration_s": duration_s,
                    "warmup_s": warmup_s,
                    "seeds": len(outcomes),
                    "utilisation_percent": mean("utilisation_percent"),
                    "fairness_percent": mean("fairness_percent"),
                    "queue_us": round(statistics.fmean(waits), 4),
                    "dropped_percent": mean("dropped_percent"),
                }
            )
    return runs


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m thalweg.evaluate", description=(__doc__ or "").split(": ``")[0] + "."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a model file")
    parser.add_argument(
        "--checkout", type=Path, default=Path("."), help="root of the sources; default: here"
    )
    options = parser.parse_args(words)
    try:
        for file in options.files:
            read = model.read(file)
            kept = {key: value for key, value in read.evaluation.items() if key != "runs"}
            runs = evaluate(file, options.checkout)
            model.write(dataclasses.replace(read, evaluation=kept | {"runs": runs}), file)
            print(file)
    except (OSError, ValueError) as why:
        print(f"error: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
