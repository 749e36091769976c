# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The command: simulate, and write the tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from thalweg import files
from thalweg.evaluate import summary
from thalweg.model import read
from thalweg.results.controllers import document, plots, published, tables
from thalweg.sim import Learned, Scenario, run
from thalweg.sweep import workers
from thalweg.sweep.cells import Cell, Contender, Row, Store

T = TypeVar("T")

#: Who is judged beside the models.
BASELINES = ("dcqcn", "hpcc", "swift", "proportional:initial_fraction=0.001")

#: First rate of flows that models decide for, as a share of the line rate. Thousands that begin at
#: the line rate lose nearly all their probes, and can hardly decide.
INITIAL = 0.001

#: Rows of the published tables, by the algorithm of a checkpoint.
PUBLISHED = {"reinforce": "REINFORCE", "ppo": "PPO", "aurora": "Aurora"}

#: What the target is multiplied by in the sweep.
SWEEP = (0.25, 0.5, 1.0, 2.0, 4.0)

#: What traces are drawn of: title, scenario, simulated seconds, distance of samples in us.
TRACES = (
    ("2 to 1", "many-to-one-2", 12e-3, 60.0),
    ("4 to 1", "many-to-one-4", 12e-3, 60.0),
    ("8 to 1", "many-to-one-8", 12e-3, 60.0),
    ("long-short, 128 flows", "long-short-128", 60e-3, 100.0),
)


def arguments() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(prog="python -m thalweg.evaluate", description=__doc__)
    parser.add_argument(
        "tables",
        nargs="+",
        metavar="TABLE",
        choices=[*tables.KINDS, "all"],
        help=f"{', '.join(tables.KINDS)}, or all; int8 and target are of the models alone",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a model file; may be given several times",
    )
    parser.add_argument(
        "--trained",
        action="append",
        default=[],
        type=Path,
        metavar="CHECKPOINT",
        help="what reinforce, ppo or aurora learned; may be given several times; int8 and target "
        "are not of these",
    )
    parser.add_argument(
        "--inference",
        choices=["float", "int8", "tree"],
        help="what the models compute in; default: floating point, or trees if the file has those",
    )
    parser.add_argument(
        "--initial",
        type=float,
        default=INITIAL,
        metavar="SHARE",
        help="first rate of flows of models and of what was trained, a share of the line rate; "
        "default %(default)s",
    )
    parser.add_argument(
        "--cc",
        action="append",
        metavar="NAME",
        help="a controller of the simulator, as NAME or NAME:parameter=value,...; may be given "
        f'several times, "none" for no other than the models; default: {", ".join(BASELINES)}',
    )
    parser.add_argument(
        "--seeds",
        type=_per_table(_positive),
        default={None: 5},
        metavar="N|TABLE=N,...",
        help="seeds, from 1 up, of all tables or each its own; default 5",
    )
    parser.add_argument(
        "--jobs", type=_positive, default=os.cpu_count(), help="simulations at a time"
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help='run on this Ray cluster; "local": on a fresh one here'
    )
    parser.add_argument(
        "--sizes", type=_sizes, default=(), metavar="N,...", help="sizes; default: those published"
    )
    parser.add_argument(
        "--duration",
        type=_per_table(_seconds),
        default={},
        metavar="SECONDS|TABLE=SECONDS,...",
        help="simulate so long instead of what the scenarios say, with as much less warm-up",
    )
    parser.add_argument(
        "--targets",
        type=_factors,
        default=SWEEP,
        metavar="X,...",
        help="what the target is multiplied by in the sweep; default " + ",".join(map(str, SWEEP)),
    )
    parser.add_argument(
        "--curves", type=Path, metavar="CSV", help="draw the curves of this training run, too"
    )
    parser.add_argument("--traces", action="store_true", help="draw rates and queues over time")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE.md", help="the page; pictures beside it"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all means and deviations, too"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("evaluation/cells.jsonl"),
        metavar="FILE",
        help="where results are kept, to go on after an interruption; default %(default)s",
    )
    parser.add_argument(
        "--checkout",
        type=Path,
        default=Path("."),
        metavar="DIR",
        help="root of the sources, with the scenarios; default: here",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"expected 1 to 10000, found {value}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text}")
    return value


def _per_table(number: Callable[[str], T]) -> Callable[[str], dict[str | None, T]]:
    """Reads one value for all tables, key None, and others for some, as ``5,int8=1``."""

    def read(text: str) -> dict[str | None, T]:
        values: dict[str | None, T] = {}
        for part in text.split(","):
            table, given, value = part.rpartition("=")
            if given and table not in tables.KINDS:
                known = ", ".join(tables.KINDS)
                raise argparse.ArgumentTypeError(f"expected a table ({known}), found {table!r}")
            values[table if given else None] = number(value)
        return values

    read.__name__ = number.__name__.strip("_")
    return read


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_positive(part) for part in text.split(",")))


def _factors(text: str) -> tuple[float, ...]:
    factors = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    if not all(0 < factor < 1e6 for factor in factors):
        raise argparse.ArgumentTypeError(f"expected numbers above 0, found {text}")
    return factors


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 where something failed, 2 for wrong arguments."""
    parser = arguments()
    options = parser.parse_args(words)
    try:
        jobs = plan(options)
        rows = simulate([cell for job in jobs for cell in job.cells()], options)
        done = [job.measured(rows) for job in jobs]
        write(done, options, sys.argv[1:] if words is None else words)
    except (ModuleNotFoundError, OSError, ValueError) as why:
        print(f"error: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; what is done is kept in {options.cache}", file=sys.stderr)
        return 1
    return 0


def models(options: argparse.Namespace) -> list[tuple[Path, Learned]]:
    """The models that were named. Raises ValueError where two have one name."""
    found = [
        (file, Learned(file, _inference(file, options), None, options.initial))
        for file in options.model
    ]
    names = [model.name for _, model in found]
    for file, model in found:
        if names.count(model.name) > 1:
            raise ValueError(f"{file}: another model is called {model.name!r} as well")
    return found


def _inference(file: Path, options: argparse.Namespace) -> str | None:
    """What a model is to compute in: as asked, but trees are trees."""
    return None if "tree" in summary.inferences(read(file)) else options.inference


def plan(options: argparse.Namespace) -> list[tables.Job]:
    """A job for each table."""
    figures = published.load()
    figures["target"] = figures["many-to-one"]
    given = models(options)
    named = list(BASELINES) if options.cc is None else [cc for cc in options.cc if cc != "none"]
    everyone = [Contender(model.name, model) for _, model in given]
    everyone += trained(options)
    everyone += [Contender(cc, cc) for cc in dict.fromkeys(named)]
    labels = [one.label for one in everyone]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{label}: two to judge have this name")
    wanted = list(tables.KINDS) if "all" in options.tables else dict.fromkeys(options.tables)
    jobs = []
    for name in wanted:
        contenders = everyone
        if name in ("int8", "target"):
            if not given:
                raise ValueError(f"{name}: this table is of models; none was given with --model")
            make = _quantised if name == "int8" else _targets
            contenders = [one for file, model in given for one in make(file, model, options)]
            if not contenders:
                raise ValueError(f"{name}: this table is of networks, with integers for int8")
        if not contenders:
            raise ValueError(f"{name}: nobody to judge; expected --model or --cc")
        seeds = range(1, options.seeds.get(name, options.seeds.get(None, 5)) + 1)
        scenarios = options.checkout / "scenarios/sim"
        duration = options.duration.get(name, options.duration.get(None))
        job = tables.Job(name, figures[name], contenders, seeds, scenarios, options.sizes, duration)
        jobs.append(job)
    return jobs


def trained(options: argparse.Namespace) -> list[Contender]:
    """What baselines learned, as the checkpoints say; named as the files. Raises OSError,
    ValueError."""
    if not options.trained:
        return []
    from thalweg.train.checkpoint import CheckpointError
    from thalweg.train.trained import Trained

    found = []
    for file in options.trained:
        try:
            policy = Trained.load(file, options.initial)
        except CheckpointError as why:
            raise ValueError(str(why)) from why
        found.append(Contender(file.stem, policy, PUBLISHED[policy.kind]))
    return found


def _quantised(file: Path, model: Learned, options: argparse.Namespace) -> list[Contender]:
    """None for a model that computes in one of the two alone."""
    if "int8" not in summary.inferences(read(file)):
        return []
    return [
        Contender(f"{model.name} {inference}", Learned(file, inference, None, options.initial))
        for inference in ("float", "int8")
    ]


def _targets(file: Path, model: Learned, options: argparse.Namespace) -> list[Contender]:
    """None for trees, which answer as a network does that is there itself."""
    if "tree" in summary.inferences(read(file)):
        return []
    return [
        Contender(
            f"{model.name}, target {model.target * factor:.4g}",
            Learned(file, options.inference, model.target * factor, options.initial),
        )
        for factor in options.targets
    ]


def simulate(wanted: Sequence[Cell], options: argparse.Namespace) -> dict[str, Row]:
    """Rows by key, those made before included. Raises ValueError with the first fault."""
    with (
        Store(options.cache).opened() as store,
        contextlib.closing(workers.simulate(store, wanted, options.jobs, options.ray)) as failures,
    ):
        for failure in failures:
            raise ValueError(failure)
        return {cell.key: store.rows[cell.key] for cell in wanted}


def write(
    done: Sequence[tables.Measured], options: argparse.Namespace, words: Sequence[str]
) -> None:
    """The page, its pictures, and the JSON."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    pictures = []
    stem = options.out.with_suffix("")
    if options.traces:
        for file, model in models(options):
            picture = Path(f"{stem}-traces-{file.stem}.svg")
            plots.traces(
                [
                    (title, run(_trace(options.checkout, name, seconds), model, 1, step))
                    for title, name, seconds, step in TRACES
                ],
                picture,
            )
            pictures.append((f"Rates and queue of {model.name}", picture.name))
    if options.curves is not None:
        picture = Path(f"{stem}-training.svg")
        plots.training(options.curves, picture)
        pictures.append(("Training", picture.name))
    command = shlex.join(["python", "-m", "thalweg.evaluate", *words])
    files.replace(options.out, document.document(done, pictures, command).encode())
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        files.replace(options.json, (json.dumps(_plain(done), indent=1) + "\n").encode())


def _trace(checkout: Path, name: str, seconds: float) -> Scenario:
    """A scenario of the directory; 8 to 1, which training has but no table, is made of 4 to 1."""
    file = checkout / f"scenarios/sim/{name}.toml"
    if file.is_file():
        scenario = Scenario.load(file)
    else:
        text = (checkout / "scenarios/sim/many-to-one-4.toml").read_text()
        for old, new in (("hosts = 5", "hosts = 9"), ("flows = 4", "flows = 8")):
            if old not in text:
                raise ValueError(f"scenarios/sim/many-to-one-4.toml: no `{old}`")
            text = text.replace(old, new)
        scenario = Scenario.from_text(text, name)
    return scenario.replace(duration_s=seconds, warmup_s=0.0)


def _plain(done: Sequence[tables.Measured]) -> list[dict[str, Any]]:
    """Tables as JSON has them; what is not a number is null."""
    return [
        {
            "table": table.name,
            "statistics": list(table.statistics),
            "entries": [
                {
                    "size": part.size,
                    "controller": line.label,
                    "published": line.published,
                    "published_loss": line.published_loss,
                    "mean": line.ours and _numbers(line.ours.mean),
                    "deviation": line.ours and _numbers(line.ours.deviation),
                    "loss_percent": line.ours and line.ours.loss_percent,
                    "runs": line.ours and line.ours.runs,
                }
                for part in table.parts
                for line in part.lines
            ],
        }
        for table in done
    ]


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [None if value != value else value for value in values]


if __name__ == "__main__":
    sys.exit(main())
